"""What a request to one of many indexes of a server costs, beside a server of that index alone.

python bench/named_indexes.py [--indexes 20] [--documents 20000] [--requests 3000]

Both servers run at the same time and get the same binary requests in turn, in blocks. CPU is that of all processes of a
server while its block is answered, which includes following the commits of every index.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from serving import Server, post
from unit import unit

import bidr

DIM, BLOCKS = 128, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--indexes", type=int, default=20)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--requests", type=int, default=3_000)
    arguments = parser.parse_args()
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        vectors = unit(random.standard_normal((arguments.documents, DIM), dtype=np.float32))
        bidr.build_vectors(vectors, None, root / "index-0")
        for number in range(1, arguments.indexes):
            bidr.snapshot(root / "index-0", root / f"index-{number}", copy=True)
        queries = unit(random.standard_normal((arguments.requests, DIM), dtype=np.float32))
        last = f"index-{arguments.indexes - 1}"
        with (
            Server(root / last, "--no-access-log") as alone,
            Server(root / "index-0", f"--root={root}", "--no-access-log") as many,
        ):
            costs: dict[str, list[float]] = {"alone": [], "one of many": []}
            for block in np.array_split(queries, BLOCKS):
                for name, server, path in (
                    ("alone", alone, "/v1/search"),
                    ("one of many", many, f"/v1/indexes/{last}/search"),
                ):
                    line, before = server.connection(), server.cpu()
                    for query in block:
                        status, _ = post(line, f"{path}?k=10", query.tobytes(), "application/octet-stream")
                        assert status == 200
                    costs[name].append(1000 * (server.cpu() - before) / len(block))
            for name, blocks in costs.items():
                print(f"{name}: {np.median(blocks):.3f} ms of CPU a request ({min(blocks):.3f} to {max(blocks):.3f})")


if __name__ == "__main__":
    main()
