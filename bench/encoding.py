"""What encodes queries how fast on this machine: programs, micro-batching and threads, with many clients at once.

python bench/encoding.py --index INDEX --data FOLDER
"""

import asyncio
import time
from itertools import cycle
from pathlib import Path
from statistics import quantiles

import torch
import tyro

from bidr.data.dataset import load
from bidr.pipeline.open import open_index_model
from bidr.server.encoding.service import EncodingConfig, QueryService, choose_encoders

WAYS = {
    "torch, one at a time, 1 thread": EncodingConfig(program="torch", batch=1, parallel=1, threads=1),
    "torch, one at a time, 2 threads": EncodingConfig(program="torch", batch=1, parallel=1, threads=2),
    "torch, two at a time, 1 thread each": EncodingConfig(program="torch", batch=1, parallel=2, threads=1),
    "torch, micro-batched": EncodingConfig(program="torch"),
    "onnx, two at a time": EncodingConfig(program="onnx", batch=1),
    "onnx, micro-batched": EncodingConfig(program="onnx"),
    "int8, two at a time": EncodingConfig(program="int8", batch=1),
    "int8, micro-batched": EncodingConfig(program="int8"),
}


def main(index: Path, data: str, model: Path | None = None, clients: int = 32, seconds: float = 8.0) -> None:
    """Closed loop: each client asks its next question when it has the vector of the last. dev questions."""
    opened = open_index_model(index, model)
    questions = [query.text for query in load(data).split("dev").queries]
    print(f"{clients} clients, {seconds:g} s each")
    print(f"{'way':<36}  {'queries/s':>9} {'p50 ms':>9} {'p99 ms':>8} {'CPU ms/query':>13}")
    for name, encoding in WAYS.items():
        encoders, _ = choose_encoders(opened, index, encoding)
        torch.set_num_threads(encoding.threads)
        service = QueryService(encoders, encoding)
        asyncio.run(ask(service, questions[:32], clients, 0.5))
        cpu = time.process_time()
        started = time.perf_counter()
        took = asyncio.run(ask(service, questions, clients, seconds))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - started
        marks = quantiles(took, n=100)
        p50, p99, each = 1000 * marks[49], 1000 * marks[98], 1000 * cpu / len(took)
        print(f"{name:<36}  {len(took) / wall:>9.1f} {p50:>9.1f} {p99:>8.1f} {each:>13.2f}", flush=True)
        service.close()


async def ask(service: QueryService, questions: list[str], clients: int, seconds: float) -> list[float]:
    """Seconds that each question took."""
    until, took, coming = time.monotonic() + seconds, [], cycle(questions)

    async def client() -> None:
        while time.monotonic() < until:
            started = time.perf_counter()
            await service.encode([next(coming)], started + 1_000_000)
            took.append(time.perf_counter() - started)

    await asyncio.gather(*(client() for _ in range(clients)))
    return took


if __name__ == "__main__":
    tyro.cli(main)
