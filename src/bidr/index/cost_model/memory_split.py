"""Divide RAM between codes and cached vectors: bytes per document, candidates and cache together."""

from collections.abc import Iterable
from typing import NamedTuple

from bidr.data.vector_source import VectorSource
from bidr.errors import ConfigError
from bidr.index.cost_model.sizes import Shape, count_cold_pages, estimate_ram
from bidr.index.engines.engine_choice import choose_engine
from bidr.index.vectors import StorageKind
from bidr.quantization.candidate_estimate import (
    SAMPLE_ROWS,
    CandidateEstimate,
    draw_sample,
    estimate_candidates,
)
from bidr.quantization.opq_config import DEFAULT_BYTES, PlainCodes
from bidr.utils.array_types import Floats
from bidr.utils.progress import show_progress

SIZES = (8, 16, 24, 32, 48, 64, 96, 128)
RECALL, K = 0.98, 10
# Fewer reads take no less time: an SSD answers some 32 at once, and a query has other work.
FEWEST_READS = 64
# Reads of a query in cluster order for each page of its candidates read alone, as neighbors share reads
# (docs/reports/code-sizes.md).
SHARED_READS = 0.52


class MemorySplit(NamedTuple):
    """One division of RAM.

    index_bytes: RAM of the process without cached vectors.
    cache_bytes: RAM that is left for cached vectors; None: RAM is not limited.
    reads: of a query from the disk, whose candidates contain the share of the exact top k.
    """

    code_bytes: int
    candidates: int
    index_bytes: int
    cache_bytes: int | None
    reads: float


class SplitChoice(NamedTuple):
    """All divisions that fit, by code size, and the chosen one; sampled: documents that it was estimated from."""

    splits: list[MemorySplit]
    chosen: MemorySplit
    recall: float
    k: int
    sampled: int

    def explain(self) -> str:
        """Say in one sentence what was chosen, and why."""
        split, others = self.chosen, [split for split in self.splits if split != self.chosen]
        reads = ", ".join(f"{other.code_bytes} bytes {other.candidates:,}" for other in others)
        compared = f" ({reads})" if reads else ""
        limit = (
            "" if split.cache_bytes is None else f", which leaves {_format_mib(split.cache_bytes)} for cached vectors"
        )
        return (
            f"codes of {split.code_bytes} bytes a document: {split.candidates:,} candidates contain {self.recall:.0%} "
            f"of the top {self.k}{compared}, estimated on {self.sampled:,} of your vectors{limit}"
        )


def choose_split(
    rows: VectorSource,
    plain: PlainCodes,
    *,
    engine: str = "auto",
    stored: StorageKind = "fp16",
    dims: int | None = None,
    ram: int | None = None,
    recall: float = RECALL,
    k: int = K,
    count: int | None = None,
    queries: Floats | None = None,
    sizes: Iterable[int] = (),
) -> SplitChoice:
    """Estimate every code size on a sample, and choose.

    With `ram`, the size with the fewest reads counts; without it, the one with the least RAM times reads, of 32 bytes
    and more.

    Args:
        rows: the vectors.
        plain: codewords and metric.
        ram: bytes for searching, the process included.
        recall, k: the candidates should contain this share of the exact top k.
        count: documents to plan for; by default those of `rows`.
        queries: query vectors; by default made from documents.
        sizes: code sizes to choose from; by default all usual ones that the dimensions allow.
    """
    count = count or len(rows)
    usable = list(sizes) or _list_sizes(rows.dim, plain, limited=ram is not None)
    bits = plain.codewords.bit_length() - 1
    shapes = {
        size: Shape(count, rows.dim, choose_engine(engine, count, bits), bits, size, stored, dims=dims)
        for size in usable
    }
    fitting = [size for size in usable if ram is None or sum(estimate_ram(shapes[size]).values()) < ram]
    if not fitting:
        minimum = sum(estimate_ram(shapes[min(usable)]).values())
        raise ConfigError(
            f"serve_ram: given {ram:,} bytes, but searching {count:,} documents with codes of {min(usable)} bytes "
            f"takes {minimum:,}; give more"
        )
    sample, splits = draw_sample(rows, k, queries), []
    with show_progress("compare code sizes", len(fitting), "sizes") as advance:
        for size in fitting:
            estimate = estimate_candidates(sample, count, size, codewords=plain.codewords, recall=recall)
            splits.append(_split(shapes[size], estimate, ram))
            advance(1)
    chosen = min(splits, key=_get_cost if ram is None else _get_reads)
    return SplitChoice(splits, chosen, recall, k, len(sample.documents))


def is_worth_choosing(count: int, ram: int | None) -> bool:
    """Return whether code sizes differ enough: few documents take little RAM and few candidates with any."""
    return ram is not None or count > SAMPLE_ROWS


def _list_sizes(dim: int, plain: PlainCodes, *, limited: bool) -> list[int]:
    """List the valid sizes nearest to the usual ones, of the default size and more unless RAM is limited."""
    default = plain.choose_size(dim, DEFAULT_BYTES)
    nearest = {plain.choose_size(dim, usual) for usual in SIZES}
    return sorted(size for size in nearest if limited or size >= default)


def _split(shape: Shape, estimate: CandidateEstimate, ram: int | None) -> MemorySplit:
    used = sum(estimate_ram(shape).values())
    cache = None if ram is None else ram - used
    cached = 0.0 if cache is None else min(1.0, cache / shape.vector_bytes)
    reads = SHARED_READS * count_cold_pages(shape, estimate.candidates) * (1 - cached)
    return MemorySplit(estimate.code_bytes, estimate.candidates, used, cache, reads)


def _get_cost(split: MemorySplit) -> float:
    return split.code_bytes * max(FEWEST_READS, split.reads)


def _get_reads(split: MemorySplit) -> tuple[float, float]:
    return split.reads, _get_cost(split)


def _format_mib(count: int) -> str:
    return f"{count / (1 << 20):,.0f} MiB"
