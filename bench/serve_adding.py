"""Documents added over HTTP in words, encoders included; each is looked for by the next search.

python bench/serve_adding.py INDEX DATA [--seconds 20] [--program onnx]

A snapshot of INDEX, made beside it and removed again, is served with --writable and two workers. Documents are texts of
DATA under new ids; each is searched for at once by its own first words, and must be among the 10 answers whose
attribute says that they are new.
"""

import argparse
import json
import shutil
import time
from itertools import count, islice
from pathlib import Path

from serving import Server, post, together

from bidr.data.dataset import load
from bidr.pipeline.maintenance import snapshot

WORDS = 40


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("index", type=Path)
    given.add_argument("data")
    given.add_argument("--seconds", type=float, default=20.0)
    given.add_argument("--program", default="auto", help="as --encoding.program of the server")
    asked = given.parse_args()
    texts = [(document.title, document.text) for document in islice(load(asked.data).corpus, 5_000)]
    copy = asked.index.with_name(f".{asked.index.name}.adding")
    shutil.rmtree(copy, ignore_errors=True)
    snapshot(asked.index, copy)
    try:
        flags = ("--writable", "--workers=2", "--no-access-log", "--limit.seconds=60")
        with Server(copy, *flags, f"--encoding.program={asked.program}") as server:
            print(f"program {server.said('encoding')['program']}")
            add(server, texts, 1, 2, 0.0)  # the writer opens its encoders when it is first asked
            for at_once, clients in ((1, 1), (1, 8), (64, 1)):
                print(add(server, texts, at_once, clients, asked.seconds), flush=True)
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def add(server: Server, texts: list[tuple[str, str]], at_once: int, clients: int, seconds: float) -> str:
    """Add for a while; what came of it."""
    coming, done, missed = count(), [0], [0]
    started, cpu = time.monotonic(), server.cpu()

    def run(_: int) -> None:
        line, first = server.connection(), True
        while first or time.monotonic() < started + seconds:
            first = False
            numbers = list(islice(coming, at_once))
            new = [document(f"{at_once}-{clients}-{number}", *texts[number % len(texts)]) for number in numbers]
            status, told = post(line, "/v1/documents", {"documents": new})
            if status != 200:
                raise RuntimeError(f"{status} {told[:300]!r}")
            words = " ".join(f"{new[-1]['title']} {new[-1]['text']}".split()[:WORDS])
            query = {"texts": [words], "k": 10, "text": False, "filter": {"new": True}}
            answers = json.loads(post(line, "/v1/search", query)[1])["results"][0]["answers"]
            missed[0] += new[-1]["id"] not in [each["id"] for each in answers]
            done[0] += at_once

    together(run, clients)
    took, used = time.monotonic() - started, server.cpu() - cpu
    return f"{at_once} a request, {clients} clients: {done[0] / took:.1f} documents a second, " + (
        f"{1000 * used / done[0]:.0f} ms of CPU each with its search; not found at once: {missed[0]}"
    )


def document(name: str, title: str, text: str) -> dict:
    return {"id": f"new-{name}", "title": title, "text": text, "attributes": {"new": True}}


if __name__ == "__main__":
    main()
