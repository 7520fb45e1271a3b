"""How near planned build times are: rates are measured as `bidr plan --measure` does, then whole indexes are built.

OMP_NUM_THREADS=1 python bench/build_rates.py VECTORS.npy --sizes 60000 150000 450000 --code-bytes 16 --bits 8
OMP_NUM_THREADS=1 python bench/build_rates.py VECTORS.npy --rates    # the rates alone, as in times.py

CPU seconds of one core, by step. Rates are of 26,000 made vectors (--own: of a sample of VECTORS).
With OMP_NUM_THREADS=2 and --cores 2: seconds by the clock of a build by two cores, on a machine that does nothing else.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Literal

import numpy as np
import tyro

from bidr.errors import ConfigError
from bidr.index.cost_model.build_time import Rates, estimate_build_times
from bidr.index.cost_model.sizes import Shape
from bidr.pipeline.build import build_vectors
from bidr.planning.calibration import CalibrationConfig, calibrate
from bidr.quantization.opq_config import PlainCodes
from bidr.utils.progress import hide_progress
from bidr.utils.step_timer import StepTime, read_clocks, record_steps

MOST_LINKED = 200_000


def main(
    vectors: Path,
    /,
    sizes: tuple[int, ...] = (60_000, 150_000, 450_000),
    engines: tuple[Literal["scan", "lists", "hnsw"], ...] = ("scan", "lists", "hnsw"),
    code_bytes: int = 16,
    bits: Literal[4, 8] = 8,
    own: bool = False,
    rates: bool = False,
    cores: int = 1,
    json_to: Path | None = None,
) -> None:
    """`own`: measure on a sample of these vectors. Graphs are built of at most 200,000 documents."""
    if os.environ.get("OMP_NUM_THREADS") != str(cores):
        raise ConfigError(f"OMP_NUM_THREADS: expected {cores}, as many as cores; set it")
    rows = np.load(vectors, mmap_mode="r")
    asked = CalibrationConfig(rows.shape[1], code_bytes, [8, 4], lexical=True, vectors=str(vectors) if own else None)
    found = calibrate(asked if rates else asked._replace(bits=[bits], id_bytes=None, text_bytes=None, lexical=False))
    print(f"rates of {found.processor}, measured in {found.seconds:.0f} s; codes of {code_bytes} bytes")
    if rates:
        print("\n".join(f"{each} bits: {known}" for each, known in found.rates.items()))
        return
    known = found.rates[bits]._replace(row_bytes=float(rows.dtype.itemsize * rows.shape[1]))
    report = [
        _compared(rows[:size], engine, code_bytes, bits, known, cores)
        for size in sizes
        for engine in engines
        if engine != "hnsw" or size <= MOST_LINKED
    ]
    if json_to is not None:
        json_to.write_text(json.dumps({"rates": known._asdict(), "builds": report}, indent=1))


def _compared(rows: np.ndarray, engine: str, code_bytes: int, bits: int, rates: Rates, cores: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "vectors.npy"
        np.save(file, rows)
        plain = PlainCodes(code_bytes, 1 << bits)  # type: ignore[arg-type]
        with hide_progress():
            build_vectors(rows[:1_000], None, Path(folder) / "compiles", engine=engine, plain=plain)
            started = read_clocks()
            with record_steps() as spent:
                build_vectors(file, None, Path(folder) / "index", engine=engine, plain=plain)
            whole = _of(read_clocks() - started, cores)
    times = estimate_build_times(Shape(len(rows), rows.shape[1], engine, bits, code_bytes), rates, has_ids=False)
    planned = {step: took.clock(cores) for step, took in times.items()}
    by_step = {step: _of(seconds, cores) for step, seconds in spent.items()}
    expected = sum(planned.values())
    print(f"{len(rows):>9,} {engine:<5} built {whole:6.1f}  planned {expected:6.1f}  {expected / whole:.3f}", end="   ")
    print(_steps(by_step, planned), flush=True)
    return {"count": len(rows), "engine": engine, "built": whole, "planned": expected, "by_step": [by_step, planned]}


def _of(seconds: StepTime, cores: int) -> float:
    return seconds.cpu if cores == 1 else seconds.clock


def _steps(built: dict[str, float], planned: dict[str, float]) -> str:
    return ", ".join(f"{step} {planned.get(step, 0):.1f}/{seconds:.1f}" for step, seconds in built.items())


if __name__ == "__main__":
    tyro.cli(main)
