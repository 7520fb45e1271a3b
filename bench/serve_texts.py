"""Questions in words over HTTP: the server as it comes beside the torch encoder without micro-batching.

python bench/serve_texts.py INDEX DATA [--ways torch-1,torch-2,torch-1x2,auto,int8]

Every way is a server of its own on loopback with the same index, tokenizer, N and k; this process sends dev questions
from several threads, each with one connection. Ways take turns, several rounds, so that what else runs on the machine
meets all of them; the medians of the rounds are shown. CPU is that of the server's processes.
"""

import argparse
import time
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from statistics import median, quantiles

from serving import Server, post, together

from bidr.data.dataset import load

FLAGS = ("--no-access-log", "--limit.seconds=60")
ALONE = ("--encoding.batch=1", "--encoding.program=torch")
WAYS = {
    "torch-1": (*ALONE, "--encoding.parallel=1", "--encoding.threads=1"),
    "torch-2": (*ALONE, "--encoding.parallel=1", "--encoding.threads=2"),
    "torch-1x2": (*ALONE, "--encoding.parallel=2", "--encoding.threads=1"),
    "torch-batched": ("--encoding.program=torch",),
    "onnx-alone": ("--encoding.program=onnx", "--encoding.batch=1"),
    "onnx": ("--encoding.program=onnx",),
    "int8": ("--encoding.program=int8",),
    "auto": (),
}


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("index", type=Path)
    given.add_argument("data")
    given.add_argument("--ways", default="torch-1,torch-2,torch-1x2,auto,int8")
    given.add_argument("--clients", type=int, default=24)
    given.add_argument("--candidates", type=int, default=1_000)
    given.add_argument("--seconds", type=float, default=5.0)
    given.add_argument("--rounds", type=int, default=3)
    asked = given.parse_args()
    questions = [query.text for query in load(asked.data).split("dev").queries]
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in asked.ways.split(",")}
    with ExitStack() as stack:
        servers = {name: stack.enter_context(Server(asked.index, *FLAGS, *WAYS[name])) for name in found}
        for server in servers.values():
            load_of(server, questions, asked.clients, asked.candidates, 1.0)
        programs = {name: server.said("encoding")["program"] for name, server in servers.items()}
        for _ in range(asked.rounds):
            for name, server in servers.items():
                found[name].append(load_of(server, questions, asked.clients, asked.candidates, asked.seconds))
    print(f"{asked.clients} clients, N = {asked.candidates}, k = 10; {asked.rounds} rounds of {asked.seconds:g} s")
    print(
        f"{'way':<14} {'program':<8} {'requests/s':>10} {'p50 ms':>8} {'p99 ms':>8} {'server CPU ms':>14} {'failed':>7}"
    )
    for name, rounds in found.items():
        rate, p50, p99, cpu = (median(column) for column in list(zip(*rounds, strict=True))[:4])
        failed = sum(one[4] for one in rounds)
        print(f"{name:<14} {programs[name]:<8} {rate:>10.1f} {p50:>8.1f} {p99:>8.1f} {cpu:>14.2f} {failed:>7.0f}")


def load_of(server: Server, questions: list[str], clients: int, candidates: int, seconds: float) -> tuple[float, ...]:
    """Requests a second, p50 and p99 in ms, server CPU in ms a request, failed requests."""
    until, took, failed, coming = time.monotonic() + seconds, [], [], cycle(questions)

    def client(_: int) -> None:
        line = server.connection()
        while time.monotonic() < until:
            body = {"texts": [next(coming)], "k": 10, "candidates": candidates, "text": False}
            started = time.perf_counter()
            status, _found = post(line, "/v1/search", body)
            (took if status == 200 else failed).append(time.perf_counter() - started)

    cpu, started = server.cpu(), time.perf_counter()
    together(client, clients)
    wall, cpu = time.perf_counter() - started, server.cpu() - cpu
    marks = quantiles(took, n=100)
    return len(took) / wall, 1000 * marks[49], 1000 * marks[98], 1000 * cpu / len(took), len(failed)


if __name__ == "__main__":
    main()
