"""What the server takes and bears: CPU a request, memory, adding, hot swaps and a drain under load.

python bench/serve_load.py VECTORS.npy QUERIES.npy --out FOLDER [--requests 10000] [--only cpu,memory,swap,add]

An index of the vectors is built in FOLDER (32 bytes of codes a document, nothing learned) and served by `bidr serve`;
requests come from this process over loopback. CPU is that of the server's processes, by rounds of 100 requests: on a
machine with other work the least of them is nearest to what it takes.
"""

import argparse
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from http.client import HTTPException
from itertools import pairwise
from pathlib import Path

import numpy as np
from serving import Server, post, together

from bidr.errors import IndexFolderError
from bidr.pipeline.build import build_vectors
from bidr.quantization.exact_search import search_vectors
from bidr.server.worker import get_pss

N, K, ROUND = 1_000, 100, 100
LETS_GO = 60.0


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("vectors", type=Path)
    given.add_argument("queries", type=Path)
    given.add_argument("--out", type=Path, required=True)
    given.add_argument("--requests", type=int, default=10_000)
    given.add_argument("--ids", type=Path, help="names of the rows, one a line, where FOLDER/index was built with them")
    given.add_argument("--swap-documents", type=int, default=5_000)
    given.add_argument("--only", default="cpu,memory,add,swap")
    asked = given.parse_args()
    documents, queries = unit(np.load(asked.vectors)), unit(np.load(asked.queries))
    index = asked.out / "index"
    asked.out.mkdir(parents=True, exist_ok=True)
    if not index.exists() and {"cpu", "memory"} & set(asked.only.split(",")):
        build_vectors(documents, None, index)
    for name in asked.only.split(","):
        {"cpu": cpu, "memory": memory, "add": add, "swap": swap}[name](asked, index, documents, queries)


def cpu(asked: argparse.Namespace, index: Path, documents: np.ndarray, queries: np.ndarray) -> None:
    """CPU of the server a request, and recall of what it answers."""
    some = queries[:1_000]
    names = asked.ids.read_text().split("\n") if asked.ids else list(map(str, range(len(documents))))
    exact = [{names[row] for row in rows} for rows in search_vectors(some, documents, K).rows.tolist()]
    for threads, kind in ((0, "binary"), (0, "json"), (1, "binary"), (1, "json")):
        with Server(index, f"--threads={threads}") as server:
            ask = Asking(server, kind)
            found = [ask(query, K, text=False) for query in some]  # brings the rows into memory too
            hits = [len(set(one) & near) for one, near in zip(found, exact, strict=True)]
            for k in (K, 10):
                rounds, started = [], time.perf_counter()
                for first in range(0, asked.requests // 5, ROUND):
                    before = server.cpu()
                    for number in range(first, first + ROUND):
                        ask(some[number % len(some)], k, text=False)
                    rounds.append(1000 * (server.cpu() - before) / ROUND)
                took = time.perf_counter() - started
                say(
                    f"cpu, {kind}, {threads} threads",
                    ms_of_server_a_request={
                        "least": round(min(rounds), 3),
                        "median": round(float(np.median(rounds)), 3),
                    },
                    requests_a_second=round(len(rounds) * ROUND / took),
                    N=N,
                    k=k,
                    recall_at_100=round(float(np.mean(hits)) / K, 4),
                )


def memory(asked: argparse.Namespace, index: Path, documents: np.ndarray, queries: np.ndarray) -> None:
    """Growth a 10,000 requests, and what two workers share."""
    for workers in (1, 2):
        with Server(index, f"--workers={workers}") as server:
            pids = server.children("worker")
            sizes = []
            for _ in range(3 if workers == 1 else 1):
                load(server, queries, asked.requests, threads=2)
                sizes.append(sum(map(get_pss, pids)))
            grown = [round((after - before) / 1e6, 3) for before, after in pairwise(sizes)]
            say(f"memory, {workers} workers", pss_mb=[round(size / 1e6, 1) for size in sizes], grown_mb=grown)
            say("  each", **{str(number): shares(each) for number, each in enumerate(pids)})


def add(asked: argparse.Namespace, index: Path, documents: np.ndarray, queries: np.ndarray) -> None:
    """Documents a second over HTTP, each looked for at once; vectors are given."""
    small = asked.out / "added"
    if not small.exists():
        build_vectors(documents[: asked.swap_documents], None, small)
    with Server(small, "--writable", "--workers=2") as server:
        for at_once, threads in ((1, 1), (1, 8), (100, 1)):
            done, missed = [0], [0]

            def run(thread: int, at_once: int = at_once, done: list[int] = done, missed: list[int] = missed) -> None:
                line, ask = server.connection(), Asking(server, "json")
                random = np.random.default_rng([thread, at_once, time.time_ns() % 1_000_000])
                until = time.monotonic() + 5
                while time.monotonic() < until:
                    rows = unit(random.standard_normal((at_once, documents.shape[1])))
                    names = [f"new-{thread}-{at_once}-{done[0]}-{number}" for number in range(at_once)]
                    new = [{"id": i, "vector": row.tolist()} for i, row in zip(names, rows, strict=True)]
                    status, told = post(line, "/v1/documents", {"documents": new})
                    assert status == 200, told
                    missed[0] += ask(rows[0], 1, text=False) != [names[0]]
                    done[0] += at_once

            together(run, threads)
            say(f"add, {at_once} a request, {threads} clients", a_second=round(done[0] / 5, 1), not_found=missed[0])


def swap(asked: argparse.Namespace, index: Path, documents: np.ndarray, queries: np.ndarray) -> None:
    """Requests that fail while the index is rebuilt three times, added to, and every worker drained and replaced."""
    small = asked.out / "swapped"
    build_vectors(documents[: asked.swap_documents], None, small)
    with Server(small, "--writable", "--workers=2") as server:
        line, events = server.connection(), []

        def change() -> None:
            for number in range(3):
                again(lambda part=number: build_vectors(documents[part : part + asked.swap_documents], None, small))
                new = {"documents": [{"id": f"new-{number}", "vector": documents[-1].tolist()}]}
                status, told = post(line, "/v1/documents", new)
                events.append((status, json.loads(told)["generation"]))
            os.kill(server.pid, signal.SIGHUP)
            before = server.children("worker")
            while set(before) & set(server.children("worker")):
                time.sleep(0.1)
            events.append("drained")

        changing = threading.Thread(target=change)
        changing.start()
        counts = load(server, queries, asked.requests, threads=2, until=changing)
        changing.join()
        say("swaps, additions, drain", **counts, events=events)


def again(build: Callable[[], object]) -> None:
    """Build as soon as the server's writer has let go of the index."""
    until = time.monotonic() + LETS_GO
    while True:
        try:
            build()
            return
        except IndexFolderError:  # somebody writes it
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


class Asking:
    """Searches over one connection."""

    def __init__(self, server: Server, kind: str) -> None:
        self.line, self.kind = server.connection(), kind

    def __call__(self, query: np.ndarray, k: int, *, text: bool) -> list[str]:
        if self.kind == "binary":
            path = f"/v1/search?k={k}&candidates={N}&text={str(text).lower()}"
            status, told = post(self.line, path, query.astype("<f4").tobytes(), "application/octet-stream")
        else:
            body = {"vectors": [query.tolist()], "k": k, "candidates": N, "text": text}
            status, told = post(self.line, "/v1/search", body)
        if status != 200:
            raise HTTPException(f"{status} {told[:200]!r}")
        return [each["id"] for each in json.loads(told)["results"][0]["answers"]]


def load(
    server: Server, queries: np.ndarray, requests: int, threads: int, until: threading.Thread | None = None
) -> dict:
    """At least so many searches, and on while something else is going on."""
    counts, times, why = {"requests": 0, "failed": 0}, [], []

    def run(thread: int) -> None:
        ask, number = Asking(server, "binary"), thread
        while counts["requests"] < requests or (until is not None and until.is_alive()):
            started = time.perf_counter()
            try:
                ask(queries[number % len(queries)], 10, text=True)
            except (HTTPException, OSError) as error:
                counts["failed"] += 1
                why.append(repr(error))
                ask = Asking(server, "binary")
            times.append(time.perf_counter() - started)
            counts["requests"] += 1
            number += threads

    together(run, threads)
    shown = {
        "p50_ms": round(1000 * float(np.median(times)), 2),
        "p99_ms": round(1000 * float(np.quantile(times, 0.99)), 2),
    }
    return counts | shown | ({"why": why[:3]} if why else {})


def shares(pid: int) -> str:
    """What of a process's memory is its own."""
    lines = dict(line.split(":") for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    sizes = {name: round(int(lines[name].split()[0]) / 1e3) for name in ("Rss", "Pss", "Private_Dirty")}
    return ", ".join(f"{name} {size} MB" for name, size in sizes.items())


def unit(rows: np.ndarray) -> np.ndarray:
    rows = rows.astype(np.float32)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)


def say(what: str, **found: object) -> None:
    print(what, json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
