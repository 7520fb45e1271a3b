"""Plan an index: RAM, disk, reads, build time and machines for every engine, before anything is built."""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bidr.data.dataset import Titles, compose_text
from bidr.data.types import Document
from bidr.data.vector_source import check_dims
from bidr.errors import ConfigError
from bidr.index.cost_model.build_memory import estimate_build_peaks
from bidr.index.cost_model.build_time import Rates, estimate_build_times, scale_default_rates
from bidr.index.cost_model.sizes import (
    ENGINES,
    MAX_DOCUMENTS,
    Shape,
    count_cold_pages,
    estimate_disk,
    estimate_page_tables,
    estimate_ram,
)
from bidr.index.engines.block_centroids import has_block_centroids
from bidr.index.engines.graph.engine import estimate_comparisons, get_default_ef_search
from bidr.index.engines.ivf import BLOCKS_SHARE, get_default_nprobe
from bidr.index.lexical.size_estimate import (
    SAMPLE_TEXTS,
    LexicalSize,
    estimate_lexical_disk,
    estimate_query_bytes,
    estimate_resident_bytes,
    measure_lexical_size,
)
from bidr.index.ram_usage import RamUsage, select_index_parts
from bidr.index.vectors import STORAGE_KINDS, StorageKind
from bidr.planning.calibration import CalibrationConfig, MachineRates, calibrate
from bidr.quantization.opq_config import PlainCodes, list_bits
from bidr.search.searcher import CANDIDATES

PLANNED_BYTES = (64, 48, 32, 24, 16, 8)
COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9}


@dataclass(frozen=True, kw_only=True)
class CorpusSpec:
    """Corpus and machine to plan for.

    ram: bytes of one machine.
    id_bytes, text_bytes: mean sizes; None: there are none.
    words: size of the BM25 index; None: texts are not indexed.
    learned_codes: codes come from a model, whose encoding is not included.
    """

    docs: int
    dim: int
    ram: int
    code_bytes: int = 16
    stored: StorageKind = "fp16"
    stored_dims: int | None = None
    candidates: int = CANDIDATES
    id_bytes: float | None = 12
    text_bytes: float | None = 1_000
    cores: int = 16
    live: bool = True
    words: LexicalSize | None = None
    learned_codes: bool = False

    def __post_init__(self) -> None:
        for name in ("docs", "dim", "ram", "code_bytes", "candidates", "cores"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: given {getattr(self, name)}, expected 1 or more")
        for name in ("id_bytes", "text_bytes"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ConfigError(f"{name}: given {value}, expected a mean size in bytes of 0 or more")
        if self.stored not in STORAGE_KINDS:
            raise ConfigError(f"stored: given {self.stored!r}, expected one of {', '.join(STORAGE_KINDS)}")
        check_dims(self.stored_dims, self.dim)
        if self.words is not None and self.text_bytes is None:
            raise ConfigError("lexical: there are no texts (text_bytes 0), expected some; leave lexical out")
        required = sum(self.estimate_ram(self.make_shape("scan", 4, 1)).values())
        if required > self.ram:
            raise ConfigError(
                f"ram: given {self.ram:,} bytes, but a process with one document takes {required:,}; give more"
            )

    def make_shape(self, engine: str, bits: int, count: int | None = None, code_bytes: int | None = None) -> Shape:
        size = code_bytes or self.code_bytes
        return Shape(count or self.docs, self.dim, engine, bits, size, self.stored, self.live, self.stored_dims)

    @property
    def postings(self) -> float:
        """Mean number of distinct terms per document that are indexed."""
        return self.words.postings if self.words else 0.0

    def estimate_ram(self, shape: Shape) -> dict[str, int]:
        """Return the RAM of an index by part, BM25 included."""
        parts = estimate_ram(shape)
        if self.words is not None:
            parts["words"] = estimate_resident_bytes(shape.count)
            parts["a query"] += estimate_query_bytes(self.candidates)
            parts["page tables"] += estimate_page_tables(sum(estimate_lexical_disk(self.words, shape.count).values()))
        return parts

    def estimate_disk(self, shape: Shape) -> dict[str, int]:
        words = estimate_lexical_disk(self.words, shape.count) if self.words is not None else {}
        return estimate_disk(shape, self.id_bytes, self.text_bytes) | words


class CorpusStats(NamedTuple):
    """Number of documents, mean sizes in bytes, and an evenly spaced sample of texts."""

    documents: int
    id_bytes: float
    text_bytes: float
    sample: list[str]

    @property
    def words(self) -> LexicalSize:
        return measure_lexical_size(self.sample)


def measure_corpus(documents: Iterable[Document], titles: Titles = "prepend") -> CorpusStats:
    """Read a corpus once."""
    count = ids = size = 0
    sample, step = list[str](), 1
    for document in documents:
        ids += len(document.id.encode())
        size += len(document.title.encode()) + len(document.text.encode())
        if count % step == 0:
            sample.append(compose_text(document, titles))
        count += 1
        if len(sample) == 2 * SAMPLE_TEXTS:
            sample, step = sample[::2], 2 * step
    return CorpusStats(count, ids / max(1, count), size / max(1, count), sample)


def parse_count(name: str, text: str) -> int:
    """Parse a count such as 1e9, 250000, 10M or 1.5B."""
    match = re.fullmatch(r"\s*([0-9.]+(?:e[+]?[0-9]{1,2})?)\s*([kmbg]?)\s*", re.sub("[_,]", "", text.lower()))
    try:
        number = float(match[1]) * COUNT_UNITS[match[2]] if match else math.nan
    except ValueError:
        number = math.nan
    if not 1 <= number <= 1e15 or round(number, 3) != int(round(number, 3)):
        raise ConfigError(f"{name}: given {text!r}, expected a whole number of 1 or more, such as 1e9 or 10M")
    return int(round(number, 3))


def measure_rates(corpus: CorpusSpec, vectors: Path | None = None) -> MachineRates:
    """Measure the rates of this machine for a corpus, on vectors of a file or synthetic ones."""
    config = CalibrationConfig(
        corpus.dim,
        corpus.code_bytes,
        list_bits(corpus.dim, corpus.code_bytes),
        corpus.stored,
        corpus.stored_dims,
        corpus.id_bytes,
        corpus.text_bytes,
        corpus.words is not None,
        None if vectors is None else str(vectors),
    )
    return calibrate(config)


def plan(corpus: CorpusSpec, measured: MachineRates | None = None) -> dict[str, Any]:
    """Return the plan of every engine with codes of 8 and of 4 bits, for JSON.

    measured: rates of this machine; default: the built-in rates.
    """
    bits = list_bits(corpus.dim, corpus.code_bytes)
    rates = measured.rates if measured else {size: _get_default_rates(corpus, size) for size in bits}
    calibration = {"processor": measured.processor, "seconds": round(measured.seconds, 1)} if measured else {}
    return {
        "documents": corpus.docs,
        "dimensions": corpus.dim,
        "ram_budget": corpus.ram,
        "code_bytes": corpus.code_bytes,
        "stored": corpus.stored,
        "stored_dims": corpus.stored_dims or corpus.dim,
        "candidates": corpus.candidates,
        "id_bytes": corpus.id_bytes,
        "text_bytes": corpus.text_bytes,
        "cores": corpus.cores,
        "live": corpus.live,
        "words": corpus.words._asdict() if corpus.words else None,
        "learned_codes": corpus.learned_codes,
        "rates": {"measured": bool(measured), **calibration, "by_bits": {size: rates[size]._asdict() for size in bits}},
        "engines": [_plan_engine(corpus, engine, size, rates[size]) for engine in ENGINES for size in bits],
    }


def _get_default_rates(corpus: CorpusSpec, bits: int) -> Rates:
    return scale_default_rates(bits, corpus.dim, corpus.text_bytes or 0)


def _plan_engine(corpus: CorpusSpec, engine: str, bits: int, rates: Rates) -> dict[str, Any]:
    shape = corpus.make_shape(engine, bits)
    parts, files = corpus.estimate_ram(shape), corpus.estimate_disk(shape)
    total = sum(parts.values())
    machines = count_machines(corpus, engine, bits)
    share = corpus.make_shape(engine, bits, -(-corpus.docs // machines))
    fits_codebooks, has_ids = not corpus.learned_codes, corpus.id_bytes is not None
    costs = estimate_build_times(share, rates, fits_codebooks=fits_codebooks, has_ids=has_ids, postings=corpus.postings)
    return {
        "engine": engine,
        "bits": bits,
        "ram": {
            "bytes": parts,
            "total": total,
            "per_document": RamUsage(select_index_parts(parts), corpus.docs).per_document,
        },
        "fits": machines == 1,
        "largest_code_bytes": find_largest_codes(corpus, engine, bits),
        "machines": machines,
        "ram_a_machine": sum(corpus.estimate_ram(share).values()),
        "disk": {"bytes": files, "total": sum(files.values()), "per_document": sum(files.values()) / corpus.docs},
        "compared_a_query": count_compared_codes(share, corpus.candidates),
        "reads_a_query": {
            "candidates": min(corpus.candidates, share.count),
            "pages_cold": round(count_cold_pages(share, min(corpus.candidates, share.count)), 1),
        },
        "build_peak_a_machine": estimate_build_peaks(
            share,
            fits_codebooks=fits_codebooks,
            has_ids=has_ids,
            has_postings=corpus.words is not None,
            has_attributes=corpus.text_bytes is not None,
        ),
        "build_seconds_a_machine": {step: round(cost.get_wall_time(corpus.cores), 1) for step, cost in costs.items()},
        "build_cpu_seconds_a_machine": {step: round(cost.cpu, 1) for step, cost in costs.items()},
    }


def count_compared_codes(shape: Shape, candidates: int) -> int:
    """Return the number of codes that a query is compared with at default settings."""
    if shape.engine == "lists":
        factor = BLOCKS_SHARE if has_block_centroids(shape.engine, shape.count) else 1.0
        share = get_default_nprobe(shape.lists, factor) / shape.lists
        return max(min(candidates, shape.count), round(share * shape.count))
    return (
        estimate_comparisons(shape.count, get_default_ef_search(candidates)) if shape.engine == "hnsw" else shape.count
    )


def can_hold(corpus: CorpusSpec, shape: Shape) -> bool:
    """Return whether one machine can hold an index of this shape."""
    return shape.count <= MAX_DOCUMENTS[shape.engine] and sum(corpus.estimate_ram(shape).values()) <= corpus.ram


def count_machines(corpus: CorpusSpec, engine: str, bits: int) -> int:
    """Return the number of machines needed, each with an index of its share of the documents."""

    def is_enough(machines: int) -> bool:
        return can_hold(corpus, corpus.make_shape(engine, bits, -(-corpus.docs // machines)))

    return _find_minimum(is_enough, corpus.docs)


def find_largest_codes(corpus: CorpusSpec, engine: str, bits: int) -> int | None:
    """Return the size of the longest codes that fit one machine; as in OPQ, books divide the dimensions."""
    books = [number for number in range(1, corpus.dim + 1) if corpus.dim % number == 0 and number * bits % 8 == 0]
    fitting = [
        number * bits // 8
        for number in books
        if can_hold(corpus, corpus.make_shape(engine, bits, code_bytes=number * bits // 8))
    ]
    return max(fitting, default=None)


def choose_planned_bytes(corpus: CorpusSpec) -> int:
    """Return the largest usual code size with which inverted lists fit one machine, or the smallest."""
    sizes = {PlainCodes(codewords=16).choose_size(corpus.dim, usual) for usual in PLANNED_BYTES}
    bits = {size: list_bits(corpus.dim, size)[-1] for size in sizes}
    fitting = [size for size in sizes if can_hold(corpus, corpus.make_shape("lists", bits[size], code_bytes=size))]
    return max(fitting, default=min(sizes))


def _find_minimum(is_enough: Callable[[int], bool], maximum: int) -> int:
    """Return the smallest number for which a monotonic predicate is true."""
    low, high = 1, 1
    while not is_enough(high) and high < maximum:
        low, high = high + 1, min(2 * high, maximum)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle + 1, high)
    return low
