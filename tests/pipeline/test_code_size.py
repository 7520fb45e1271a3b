"""A build without a code size chooses one on the vectors, says why, and chooses the same again."""

from pathlib import Path

import numpy as np
import pytest

import bidr
from bidr.errors import ConfigError
from bidr.index.cost_model import memory_split
from bidr.index.cost_model.sizes import PROCESS_BYTES
from bidr.quantization import candidate_estimate

DIM, COUNT = 128, 3_000


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    random = np.random.default_rng(0)
    centers = random.standard_normal((30, DIM))
    scale = np.arange(1, DIM + 1) ** -0.3
    return ((centers[random.integers(0, 30, COUNT)] + random.standard_normal((COUNT, DIM))) * scale).astype(np.float32)


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (memory_split, candidate_estimate):
        monkeypatch.setattr(module, "SAMPLE_ROWS", 2_000)


def build(vectors: np.ndarray, out: Path, **options: object) -> int:
    """Return the code size of an index."""
    bidr.build_vectors(vectors, None, out, engine="flat", **options)
    with bidr.open_index(out) as searcher:
        return int(searcher.reader.latest().segments[0].reader.candidates.codebooks.bytes_per_doc)


@pytest.mark.usefixtures("sample")
def test_the_size_is_chosen_explained_and_the_same_again(
    vectors: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = [build(vectors, tmp_path / name, recall=0.9) for name in ("a", "b")]
    assert sizes[0] == sizes[1] in (32, 64)
    said = [line for line in capsys.readouterr().err.splitlines() if "bytes a document" in line]
    assert said[0] == said[1]
    assert f"codes of {sizes[0]} bytes a document: " in said[0]
    assert "90% of the top 10" in said[0]
    assert "estimated on 2,000 of your vectors" in said[0]
    codes = [next((tmp_path / name).rglob("codes.npy")).read_bytes() for name in ("a", "b")]
    assert codes[0] == codes[1]


@pytest.mark.usefixtures("sample")
def test_a_given_size_is_decisive(vectors: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build(vectors, tmp_path / "i", plain=bidr.PlainCodes(16)) == 16
    assert "bytes a document" not in capsys.readouterr().err


@pytest.mark.usefixtures("sample")
def test_the_size_is_chosen_under_euclidean_distance_and_for_dimensions_that_nothing_divides(
    vectors: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = build(np.ascontiguousarray(vectors[:, :127]), tmp_path / "i", metric="l2", recall=0.9)
    assert size in (32, 48, 63)
    assert f"codes of {size} bytes a document: " in capsys.readouterr().err


def test_few_vectors_keep_the_default(vectors: np.ndarray, tmp_path: Path) -> None:
    assert build(vectors, tmp_path / "i") == 32


def test_ram_for_serving_limits_the_size(vectors: np.ndarray, tmp_path: Path) -> None:
    assert build(vectors, tmp_path / "small", serve_ram=PROCESS_BYTES + 150_000) < 32
    with pytest.raises(ConfigError, match=r"serve_ram: given 2,097,152 bytes, .* give more"):
        build(vectors, tmp_path / "none", serve_ram="2MiB")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"plain": bidr.PlainCodes(16), "recall": 0.9}, "recall given with bytes_per_doc"),
        ({"recall": 1.0}, "recall: given 1, expected a share"),
        ({"serve_ram": "many"}, "serve_ram: given 'many'"),
    ],
)
def test_contradictions_are_refused(
    vectors: np.ndarray, tmp_path: Path, options: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        bidr.build_vectors(vectors, None, tmp_path / "i", **options)
