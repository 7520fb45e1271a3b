"""Questions in words over HTTP: the server as it comes beside the torch encoder without micro-batching.

python bench/serve_texts.py INDEX DATA [--ways torch-1,torch-2,torch-1x2,auto,int8]

Every way is a server of its own on loopback with the same index, tokenizer, N and k; this process sends dev questions
from several threads, each with one connection. Ways take turns, several rounds, so that what else runs on the machine
meets all of them; the medians of the rounds are shown. CPU is that of the server's processes.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from http.client import HTTPConnection
from itertools import cycle
from pathlib import Path
from statistics import median, quantiles

from bidr.text import load

TICK = os.sysconf("SC_CLK_TCK")
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
        servers = {name: stack.enter_context(Server(asked.index, WAYS[name])) for name in found}
        for server in servers.values():
            server.load(questions, asked.clients, asked.candidates, 1.0)
        for _ in range(asked.rounds):
            for name, server in servers.items():
                found[name].append(server.load(questions, asked.clients, asked.candidates, asked.seconds))
    print(f"{asked.clients} clients, N = {asked.candidates}, k = 10; {asked.rounds} rounds of {asked.seconds:g} s")
    print(
        f"{'way':<14} {'program':<8} {'requests/s':>10} {'p50 ms':>8} {'p99 ms':>8} {'server CPU ms':>14} {'failed':>7}"
    )
    for name, rounds in found.items():
        rate, p50, p99, cpu = (median(column) for column in list(zip(*rounds, strict=True))[:4])
        failed = sum(one[4] for one in rounds)
        print(
            f"{name:<14} {servers[name].program:<8} {rate:>10.1f} {p50:>8.1f} {p99:>8.1f} {cpu:>14.2f} {failed:>7.0f}"
        )


class Server:
    """`bidr serve` as a process of its own."""

    def __init__(self, index: Path, flags: tuple[str, ...]) -> None:
        self.log = tempfile.NamedTemporaryFile(suffix=".log")  # noqa: SIM115
        command = [
            sys.executable,
            "-m",
            "bidr",
            "serve",
            str(index),
            "--port=0",
            "--no-access-log",
            "--limit.rate=0",
            "--limit.seconds=60",
        ]
        self.process = subprocess.Popen([*command, *flags], stderr=self.log, stdout=self.log)
        while not (ready := self._said("ready")):
            if self.process.poll() is not None:
                sys.exit(Path(self.log.name).read_text())
            time.sleep(0.2)
        self.port = int(re.search(r":(\d+)$", ready["url"])[1])
        self.program = self._said("encoding")["program"]

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.process.wait(30)

    def load(self, questions: list[str], clients: int, candidates: int, seconds: float) -> tuple[float, ...]:
        """Requests a second, p50 and p99 in ms, server CPU in ms a request, failed requests."""
        until, took, failed, coming = time.monotonic() + seconds, [], [], cycle(questions)

        def client() -> None:
            connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
            while time.monotonic() < until:
                body = json.dumps({"texts": [next(coming)], "k": 10, "candidates": candidates, "text": False})
                started = time.perf_counter()
                connection.request("POST", "/v1/search", body, {"content-type": "application/json"})
                reply = connection.getresponse()
                reply.read()
                (took if reply.status == 200 else failed).append(time.perf_counter() - started)

        threads = [threading.Thread(target=client) for _ in range(clients)]
        cpu, started = self._cpu(), time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wall, cpu = time.perf_counter() - started, self._cpu() - cpu
        marks = quantiles(took, n=100)
        return len(took) / wall, 1000 * marks[49], 1000 * marks[98], 1000 * cpu / len(took), len(failed)

    def _cpu(self) -> float:
        """Seconds of all processes of the server."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in children]
        return sum(int(one[11]) + int(one[12]) for one in fields) / TICK

    def _said(self, event: str) -> dict:
        lines = Path(self.log.name).read_text().splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return next((one for one in found if one["event"] == event), {})


if __name__ == "__main__":
    main()
