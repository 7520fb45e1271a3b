"""What an index takes in RAM, measured on real processes."""

import subprocess
import sys
from pathlib import Path

import pytest

PROBE = Path(__file__).parents[2] / "helpers" / "memory_probe.py"
GIB = 1 << 30


def probe(*arguments: object) -> list[float]:
    command = [sys.executable, str(PROBE), *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [float(number) for number in done.stdout.split()]


def slope(folder: Path, engine: str, few: int, many: int) -> tuple[float, float, float]:
    """Measure anonymous bytes a document, from two sizes; return them, the same as computed, and the larger peak.

    Both sizes must need the same kernels: each that is loaded takes some 0.1 MiB. From 65,537 documents on, `order.npy`
    is checked block by block, which loads three more. The least of three processes counts: the first may compile, and
    the rest of a process varies by a megabyte from start to start.
    """
    sizes, totals, peak = [], [], 0.0
    for count in (few, many):
        index = folder / f"{engine}{count}"
        (peak,) = probe("build", index, count, engine)
        searched = [probe("search", index) for _ in range(3)]
        totals.append(searched[0][1] * count)
        sizes.append(min(anonymous for anonymous, _ in searched))
    return (sizes[1] - sizes[0]) / (many - few), (totals[1] - totals[0]) / (many - few), peak


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "limit"), [("scan", 18), ("lists", 24), ("hnsw", 100)])
def test_memory_at_300_000_documents_of_384_dimensions(tmp_path, engine, limit):
    measured, computed, peak = slope(tmp_path, engine, 100_000, 300_000)
    print(
        f"{engine}: {measured:.1f} bytes a document measured, {computed:.1f} computed, build peak {peak / GIB:.2f} GiB"
    )
    assert measured <= limit
    assert measured == pytest.approx(computed, abs=8)
    assert peak < 1.5 * GIB


def test_memory_of_a_scan_grows_by_little_more_than_the_code(tmp_path):
    measured, computed, _ = slope(tmp_path, "scan", 70_000, 110_000)
    assert computed == pytest.approx(16, abs=1)  # verification flags of the vectors beside the codes
    assert measured <= 20
