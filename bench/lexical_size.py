"""What the index of words takes: RAM as documents grow, disk, time to build, CPU of a query.

python bench/lexical_size.py DATA WORK --sizes 50000 100000 190000

DATA is a data set with texts; codes and vectors are random and small, since only the words are looked at. Every size is
built and opened in a process of its own. Anonymous memory is what asking all questions adds, in bytes. Planned is what
`bidr plan --lexical` says with --data, guessed what it says with --text-bytes alone.
"""

import json
import resource
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import numpy as np
import tyro
from tyro.conf import Positional

from bidr.bench.peers.harness import read_memory
from bidr.data.dataset import load
from bidr.index.builder.build import build_index
from bidr.index.lexical.size_estimate import estimate_lexical_disk, guess_lexical_size
from bidr.index.live.lexical_search import LiveLexicalSearcher
from bidr.index.live.live_reader import LiveIndex
from bidr.quantization.codebooks import Codebooks

DIM, QUESTIONS, K = 16, 300, 100


def main(
    data: Positional[str],
    work: Positional[Path],
    sizes: tuple[int, ...] = (50_000, 100_000, 190_000),
    split: str = "test",
    only: str | None = None,
) -> None:
    """only: what a process of its own is asked to do (for the script itself)."""
    if only is not None:
        step, size = only.split(":")
        made = build if step == "build" else asked
        print(json.dumps(made(data, work / size, int(size), split)))
        return
    print("| documents | postings | disk B/doc | planned | guessed | build s | peak MiB | anonymous bytes | CPU ms |")
    print("|---|---|---|---|---|---|---|---|---|")
    grown = []
    for size in sizes:
        built, found = (_apart(data, work, split, f"{step}:{size}") for step in ("build", "ask"))
        grown.append((size, found["anonymous"]))
        print(
            f"| {size:,} | {built['postings']:,} | {built['disk'] / size:.0f} | {built['planned'] / size:.0f} | "
            f"{built['guessed'] / size:.0f} | {built['seconds']:.0f} | "
            f"{built['peak'] >> 20:,} | {found['anonymous']:,} | {found['cpu_ms']:.2f} |",
            flush=True,
        )
    slope = np.polyfit(*np.array(grown, dtype=float).T, 1)[0] if len(grown) > 1 else 0.0
    print(f"anonymous memory grows by {slope:.3f} bytes a document")


def build(data: str, folder: Path, size: int, split: str) -> dict[str, float]:
    random, started = np.random.default_rng(0), time.process_time()
    books = Codebooks(np.eye(DIM, dtype=np.float32), random.standard_normal((4, 16, 4)).astype(np.float32))
    vectors = random.standard_normal((size, DIM)).astype(np.float32)
    how = {"documents": islice(load(data).corpus, size), "lexical": "prepend", "engine": "scan"}
    path = build_index(folder, codebooks=books, codes=books.encode(vectors), vectors=vectors, **how)  # type: ignore[arg-type]
    files = {file.name: file.stat().st_size for file in path.glob("words.*")}
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = time.process_time() - started
    planned, guess = plans(data, size)
    took = {"disk": sum(files.values()), "seconds": seconds, "peak": peak}
    return {"postings": files["words.counts.npy"], **took, "planned": planned, "guessed": guess}


def plans(data: str, size: int) -> list[int]:
    """Bytes on disk that a plan says, by a sample of the texts and by their mean size."""
    from bidr.planning.plan import measure_corpus  # not before the peak is known: what it imports takes memory too

    seen = measure_corpus(islice(load(data).corpus, size))
    return [
        sum(estimate_lexical_disk(words, size).values()) for words in (seen.words, guess_lexical_size(seen.text_bytes))
    ]


def asked(data: str, folder: Path, size: int, split: str) -> dict[str, float]:
    texts = [query.text for query in load(data).split(split).queries[:QUESTIONS]]
    view = LiveIndex.open(folder).latest()
    finder = LiveLexicalSearcher(view)
    finder.threads = 1
    for text in ("a warm question", "another one"):
        finder.search([text], K)
    before, started = read_memory(), time.process_time()
    for text in texts:
        finder.search([text], K)
    cpu = 1000 * (time.process_time() - started) / len(texts)
    return {"anonymous": read_memory()["anonymous"] - before["anonymous"], "cpu_ms": cpu}


def _apart(data: str, work: Path, split: str, only: str) -> dict[str, float]:
    command = [sys.executable, __file__, data, str(work), "--split", split, "--only", only]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    tyro.cli(main)
