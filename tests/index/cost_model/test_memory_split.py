"""RAM is divided between codes and cached vectors: the fewest reads within it, or the least RAM times reads."""

import numpy as np
import pytest

from bidr.data.vector_source import VectorSource
from bidr.errors import ConfigError
from bidr.index.cost_model import memory_split
from bidr.index.cost_model.memory_split import choose_split, is_worth_choosing
from bidr.index.cost_model.sizes import PROCESS_BYTES
from bidr.quantization.candidate_estimate import CandidateEstimate, Sample
from bidr.quantization.opq_config import PlainCodes

DIM, COUNT, MIB = 96, 1_000_000, 1 << 20
CANDIDATES = {8: 9_000, 16: 3_000, 24: 900, 32: 600, 48: 150}


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> VectorSource:
    """Vectors whose estimates are known."""

    def estimate(sample: Sample, count: int, code_bytes: int, **settings: object) -> CandidateEstimate:
        return CandidateEstimate(code_bytes, CANDIDATES[code_bytes], 50)

    monkeypatch.setattr(memory_split, "estimate_candidates", estimate)
    return VectorSource(np.random.default_rng(0).standard_normal((300, DIM)), "vectors", "cosine")


def test_without_a_limit_ram_times_reads_decides(rows: VectorSource) -> None:
    choice = choose_split(rows, PlainCodes(), count=COUNT)
    assert [split.code_bytes for split in choice.splits] == [24, 48], (
        "the default size and more, valid for 96 dimensions"
    )
    assert choice.chosen.code_bytes == 48
    assert choice.chosen.cache_bytes is None
    assert "48 bytes a document: 150 candidates contain 98% of the top 10 (24 bytes 900)" in choice.explain()


def test_within_a_limit_the_fewest_reads_decide_and_the_rest_is_cache(rows: VectorSource) -> None:
    limit = PROCESS_BYTES + 45 * MIB
    choice = choose_split(rows, PlainCodes(), count=COUNT, ram=limit)
    assert [split.code_bytes for split in choice.splits] == [8, 16, 24]
    assert choice.chosen.code_bytes == 24
    for split in choice.splits:
        assert split.cache_bytes == limit - split.index_bytes
    assert "MiB for cached vectors" in choice.explain()
    plenty = choose_split(rows, PlainCodes(), count=COUNT, ram=1 << 34)
    assert {split.reads for split in plenty.splits} == {0.0}, "all vectors are cached"


def test_a_limit_below_the_smallest_codes_is_refused(rows: VectorSource) -> None:
    with pytest.raises(ConfigError, match=r"serve_ram: given 1,000 bytes, .* give more"):
        choose_split(rows, PlainCodes(), count=COUNT, ram=1_000)


def test_given_sizes_are_the_only_ones(rows: VectorSource) -> None:
    assert [split.code_bytes for split in choose_split(rows, PlainCodes(), count=COUNT, sizes=(16, 24)).splits] == [
        16,
        24,
    ]


def test_few_documents_need_no_choice() -> None:
    assert not is_worth_choosing(20_000, None)
    assert is_worth_choosing(20_001, None)
    assert is_worth_choosing(100, 1 << 30)
