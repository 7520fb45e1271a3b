"""CPU of the server a request, of several versions of it (or indexes) in turn: the machine is the same to all.

python bench/serve_versions.py QUERIES.npy before=OLD/src:INDEX after=src:INDEX [--seconds 60] [--threads 0]

A version is a folder with the package, and an index to serve. Each answers the same ten requests, round after round.
Medians of CPU milliseconds a request, and the median over rounds of the ratio to the first version, with its error.
"""

import argparse
import os
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from serve_load import Asking, unit
from serving import Server

EACH, WARM_UP = 10, 500
KINDS = [(kind, k) for kind in ("binary", "json") for k in (100, 10)]


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("queries", type=Path)
    given.add_argument("versions", nargs="+", help="NAME=SOURCES:INDEX")
    given.add_argument("--seconds", type=float, default=60)
    given.add_argument("--threads", type=int, default=0)
    asked = given.parse_args()
    queries = unit(np.load(asked.queries)[:1_000])
    with ExitStack() as open_servers:
        servers = {}
        for version in asked.versions:
            name, _, where = version.partition("=")
            sources, _, index = where.partition(":")
            os.environ["PYTHONPATH"] = sources
            servers[name] = open_servers.enter_context(Server(Path(index), f"--threads={asked.threads}"))
        show(measured(servers, queries, asked.seconds))


def measured(servers: dict[str, Server], queries: np.ndarray, seconds: float) -> dict:
    """Milliseconds a request: by kind and answers, by version, of every round."""
    asks = {(name, kind): Asking(server, kind) for name, server in servers.items() for kind, _ in KINDS}
    for name in servers:
        for query in queries[:WARM_UP]:
            asks[name, "binary"](query, 100, text=False)
    found: dict = {each: {name: [] for name in servers} for each in KINDS}
    names, until, turn = list(servers), time.monotonic() + seconds, 0
    while time.monotonic() < until:
        for kind, k in KINDS:
            some = [queries[(EACH * turn + number) % len(queries)] for number in range(EACH)]
            for name in names if turn // len(KINDS) % 2 else reversed(names):  # each kind in both orders
                ask, cpu = asks[name, kind], servers[name].cpu
                ask(some[-1], k, text=False)  # the other server had the caches
                before = cpu()
                for query in some:
                    ask(query, k, text=False)
                found[kind, k][name].append(1_000 * (cpu() - before) / EACH)
            turn += 1
    return found


def show(found: dict) -> None:
    for (kind, k), times in found.items():
        first = np.array(next(iter(times.values())))
        for name, own in times.items():
            ratio = np.array(own) / first
            error = 1.25 * ratio.std() / len(ratio) ** 0.5
            print(
                f"{kind:<7} k = {k:<4} {name:<10} median {np.median(own):.3f} ms, least {min(own):.3f}, "
                f"of the first {np.median(ratio):.3f} ±{error:.3f} ({len(own)} rounds)",
                flush=True,
            )


if __name__ == "__main__":
    main()
