"""Codes of vectors whose dimensions no number of codebooks divides."""

from pathlib import Path

import numpy as np
import pytest

import bidr
from bidr.data.vector_source import VectorSource
from bidr.errors import ConfigError
from bidr.planning.plan import CorpusSpec, choose_planned_bytes
from bidr.quantization.opq_config import PlainCodes, list_bits


@pytest.mark.parametrize(
    ("dim", "size", "books"),
    [
        *((128, None, 64), (100, None, 50), (131, None, 64), (257, None, 64), (34, None, 34), (3, None, 2)),
        *((1, None, 2), (131, 16, 32), (16, 5, 10)),
    ],
)
def test_any_dimensions_have_codes_of_the_usual_size(dim: int, size: int | None, books: int) -> None:
    assert PlainCodes(size).count_books(dim) == books


def test_padding_keeps_inner_products() -> None:
    vectors = np.random.default_rng(0).normal(size=(400, 19)).astype(np.float32)
    codebooks = PlainCodes(4).fit(VectorSource(vectors, "vectors", "ip"))
    assert codebooks.rotation.shape == (24, 19)
    rotated = codebooks.rotate(vectors)
    np.testing.assert_allclose(rotated @ rotated.T, vectors @ vectors.T, atol=1e-3)


@pytest.mark.parametrize("engine", ["flat", "ivf", "graph"])
def test_every_engine_searches_padded_codes(engine: str, tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(300, 37)).astype(np.float32)
    bidr.build_vectors(vectors, out=tmp_path, engine=engine, plain=PlainCodes(5))
    with bidr.open_index(tmp_path, ef=300) as index:
        ranking = index.search_vectors(vectors[:20], k=1, candidates=100)
    np.testing.assert_array_equal(ranking.rows[:, 0], np.arange(20))


@pytest.mark.parametrize("size", [0, -1, 10])
def test_sizes_beyond_one_codebook_a_dimension_are_refused(size: int) -> None:
    with pytest.raises(ConfigError, match=rf"bytes_per_doc: given {size}, expected 1 to 9"):
        PlainCodes(size).count_books(19)


def test_plans_of_any_dimensions() -> None:
    corpora = [CorpusSpec(docs=10**6, dim=dim, ram=1 << 36) for dim in (128, 131, 7, 1)]
    assert [choose_planned_bytes(corpus) for corpus in corpora] == [64, 64, 3, 1]
    assert list_bits(131, 16) == [8, 4]
    with pytest.raises(ConfigError, match=r"expected 1 to 131"):
        list_bits(131, 132)
