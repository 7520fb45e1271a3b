"""RAM as a plan says it, as `bidr inspect` says it, and as a process really takes it, side by side."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sample_index import clustered, random_codebooks

from bidr.data.types import Document
from bidr.index.builder.build import build_index
from bidr.index.cost_model.sizes import Shape, estimate_ram

PROBE = Path(__file__).parents[2] / "helpers" / "ram_probe.py"
# Codes so long that they stand out beside what a process takes anyway.
COUNT, SMALL, DIM, CODE_BYTES, NEAR = 50_000, 2_000, 128, 64, 0.10
FILTERS, ONCE = 50, 300_000
KINDS: list = [("scan", 8), ("scan", 4), ("lists", 8), ("hnsw", 8)]
KINDS += [pytest.param("lists", 4, marks=pytest.mark.slow), pytest.param("hnsw", 4, marks=pytest.mark.slow)]


def build(folder: Path, shape: Shape) -> None:
    vectors = clustered(shape.count, shape.dim)
    books = random_codebooks(shape.dim, shape.books, 1 << shape.bits)
    documents = (Document(f"{row}", "", "", {"year": row % 60}) for row in range(shape.count))
    given = {"codebooks": books, "codes": books.encode(vectors), "vectors": vectors, "ids": documents}
    build_index(folder, **given, engine=shape.engine, ef_construction=16)


def probe(*arguments: object) -> dict:
    command = [sys.executable, str(PROBE), *map(str, arguments)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


@pytest.mark.parametrize(("engine", "bits"), KINDS)
def test_plan_inspect_and_a_process_agree(tmp_path: Path, engine: str, bits: int) -> None:
    shapes = [Shape(count, DIM, engine, bits, CODE_BYTES, live=False) for count in (SMALL, COUNT)]
    for shape in shapes:
        build(tmp_path / f"{shape.count}", shape)
    arguments = (tmp_path / f"{SMALL}", tmp_path / f"{COUNT}", FILTERS)
    probe(*arguments)  # compiles kernels where no cache has them, which takes memory
    found = probe(*arguments)
    # Beside the index: a process, and what the kernel keeps for it.
    planned = {part: size for part, size in estimate_ram(shapes[1]).items() if part not in ("process", "page tables")}
    said, took = found["inspect"], found["searched"]
    each = [size / COUNT for size in (sum(planned.values()), sum(said.values()), took)]
    told = f"{each[0]:.2f} bytes a document planned, {each[1]:.2f} inspected, {each[2]:.2f} measured"
    print(f"{engine}, {bits} bits: {told}; {found['filtered'] / FILTERS / COUNT:.2f} a filter")
    for part, size in said.items():
        assert planned[part] == pytest.approx(size, rel=NEAR), part
    assert planned.keys() - said.keys() <= {"a query"}
    assert each[0] == pytest.approx(each[2], rel=NEAR)
    assert each[1] == pytest.approx(each[2], rel=NEAR)
    # Columns stay on disk; which documents passed is kept, a bit each, and something once.
    assert COUNT * FILTERS / 8 * 0.7 < found["filtered"] < COUNT * FILTERS / 8 * 1.3 + ONCE
