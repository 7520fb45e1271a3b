"""What a corpus will take before anything is built: RAM, disk, reads, build time, machines, for every engine."""

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
from bidr.index.cost_model.build_time import Rates, build_times, built_in
from bidr.index.cost_model.memory_budget import build_peaks
from bidr.index.cost_model.sizes import ENGINES, MOST_DOCUMENTS, Shape, cold_pages, disk, page_tables, ram
from bidr.index.engines.block_centroids import has_block_centroids
from bidr.index.engines.graph.engine import estimate_comparisons, get_default_ef_search
from bidr.index.engines.ivf import BLOCKS_SHARE, get_default_nprobe
from bidr.index.lexical.size_estimate import (
    SAMPLE_TEXTS,
    LexicalSize,
    estimate_lexical_disk,
    estimate_lexical_ram,
    measure_lexical_size,
)
from bidr.index.vectors import STORAGE_KINDS, StorageKind
from bidr.planning.calibration import Asked, Measured, measure
from bidr.quantization.opq import PLANNED_BYTES, list_bits
from bidr.search.searcher import CANDIDATES


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """What is planned for. `ram`: bytes of one machine; ids and texts by their mean size, None: there are none.

    words: of the texts, where they are indexed too.
    learned_codes: codes are a model's, not fitted to the vectors: what makes them is not counted.
    """

    docs: int
    dim: int
    ram: int
    code_bytes: int = PLANNED_BYTES
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
        least = sum(self.ram_parts(self.shape("scan", 4, 1)).values())
        if least > self.ram:
            raise ConfigError(
                f"ram: given {self.ram:,} bytes, but a process that holds one document takes {least:,}; give more"
            )

    def shape(self, engine: str, bits: int, count: int | None = None, code_bytes: int | None = None) -> Shape:
        size = code_bytes or self.code_bytes
        return Shape(count or self.docs, self.dim, engine, bits, size, self.stored, self.live, self.stored_dims)

    @property
    def postings(self) -> float:
        """Different words of a document that are indexed."""
        return self.words.postings if self.words else 0.0

    def ram_parts(self, shape: Shape) -> dict[str, int]:
        """What an index of this shape takes in RAM, words included."""
        parts = ram(shape)
        if self.words is not None:
            parts["words"] = estimate_lexical_ram(shape.count, self.candidates)
            parts["page tables"] += page_tables(sum(estimate_lexical_disk(self.words, shape.count).values()))
        return parts

    def disk_parts(self, shape: Shape) -> dict[str, int]:
        words = estimate_lexical_disk(self.words, shape.count) if self.words is not None else {}
        return disk(shape, self.id_bytes, self.text_bytes) | words


class Texts(NamedTuple):
    """A corpus as it is planned for: documents, mean sizes in bytes, and some of the texts, evenly spread."""

    documents: int
    id_bytes: float
    text_bytes: float
    sample: list[str]

    @property
    def words(self) -> LexicalSize:
        return measure_lexical_size(self.sample)


def look_through(documents: Iterable[Document], titles: Titles = "prepend") -> Texts:
    """Read a corpus once."""
    count = ids = size = 0
    sample, every = list[str](), 1
    for document in documents:
        ids += len(document.id.encode())
        size += len(document.title.encode()) + len(document.text.encode())
        if count % every == 0:
            sample.append(compose_text(document, titles))
        count += 1
        if len(sample) == 2 * SAMPLE_TEXTS:
            sample, every = sample[::2], 2 * every
    return Texts(count, ids / max(1, count), size / max(1, count), sample)


COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9}


def parse_count(name: str, given: str) -> int:
    """Parse a count such as 1e9, 250000, 10M or 1.5B."""
    match = re.fullmatch(r"\s*([0-9.]+(?:e[+]?[0-9]{1,2})?)\s*([kmbg]?)\s*", re.sub("[_,]", "", given.lower()))
    try:
        number = float(match[1]) * COUNT_UNITS[match[2]] if match else math.nan
    except ValueError:
        number = math.nan
    if not 1 <= number <= 1e15 or round(number, 3) != int(round(number, 3)):
        raise ConfigError(f"{name}: given {given!r}, expected a whole number of 1 or more, such as 1e9 or 10M")
    return int(round(number, 3))


def measured_rates(corpus: Corpus, vectors: Path | None = None) -> Measured:
    """How fast this machine does what a build of such a corpus does; with vectors of a file, or some that are made."""
    asked = Asked(
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
    return measure(asked)


def plan(corpus: Corpus, measured: Measured | None = None) -> dict[str, Any]:
    """Every engine with codes of 8 and of 4 bits, where they can be built, as a program reads it.

    measured: how fast this machine builds; by default how fast one was that bidr was made on.
    """
    bits = list_bits(corpus.dim, corpus.code_bytes)
    rates = measured.rates if measured else {each: _built_in(corpus, each) for each in bits}
    about = {"processor": measured.processor, "seconds": round(measured.seconds, 1)} if measured else {}
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
        "rates": {"measured": bool(measured), **about, "by_bits": {each: rates[each]._asdict() for each in bits}},
        "engines": [_engine(corpus, engine, each, rates[each]) for engine in ENGINES for each in bits],
    }


def _built_in(corpus: Corpus, bits: int) -> Rates:
    return built_in(bits, corpus.dim, corpus.text_bytes or 0)


def _engine(corpus: Corpus, engine: str, bits: int, rates: Rates) -> dict[str, Any]:
    shape = corpus.shape(engine, bits)
    parts, files = corpus.ram_parts(shape), corpus.disk_parts(shape)
    total = sum(parts.values())
    machines = machines_for(corpus, engine, bits)
    share = corpus.shape(engine, bits, -(-corpus.docs // machines))
    fits, named = not corpus.learned_codes, corpus.id_bytes is not None
    times = build_times(share, rates, fits=fits, named=named, postings=corpus.postings)
    return {
        "engine": engine,
        "bits": bits,
        "ram": {"bytes": parts, "total": total, "per_document": total / corpus.docs},
        "fits": machines == 1,
        "largest_code_bytes": largest_codes(corpus, engine, bits),
        "machines": machines,
        "ram_a_machine": sum(corpus.ram_parts(share).values()),
        "disk": {"bytes": files, "total": sum(files.values()), "per_document": sum(files.values()) / corpus.docs},
        "compared_a_query": compared(share, corpus.candidates),
        "reads_a_query": {
            "candidates": min(corpus.candidates, share.count),
            "pages_cold": round(cold_pages(share, min(corpus.candidates, share.count)), 1),
        },
        "build_peak_a_machine": build_peaks(
            share,
            fits=fits,
            named=named,
            worded=corpus.words is not None,
            described=corpus.text_bytes is not None,
        ),
        "build_seconds_a_machine": {step: round(took.clock(corpus.cores), 1) for step, took in times.items()},
        "build_cpu_seconds_a_machine": {step: round(took.cpu, 1) for step, took in times.items()},
    }


def compared(shape: Shape, candidates: int) -> int:
    """Codes that a query is compared with, by default settings."""
    if shape.engine == "lists":
        times = BLOCKS_SHARE if has_block_centroids(shape.engine, shape.count) else 1.0
        visited = get_default_nprobe(shape.lists, times) / shape.lists
        return max(min(candidates, shape.count), round(visited * shape.count))
    return (
        estimate_comparisons(shape.count, get_default_ef_search(candidates)) if shape.engine == "hnsw" else shape.count
    )


def fits(corpus: Corpus, shape: Shape) -> bool:
    return shape.count <= MOST_DOCUMENTS[shape.engine] and sum(corpus.ram_parts(shape).values()) <= corpus.ram


def machines_for(corpus: Corpus, engine: str, bits: int) -> int:
    """How many machines hold the documents between them, each an index of its share."""

    def enough(machines: int) -> bool:
        return fits(corpus, corpus.shape(engine, bits, -(-corpus.docs // machines)))

    return _least(enough, corpus.docs)


def largest_codes(corpus: Corpus, engine: str, bits: int) -> int | None:
    """The longest codes with which one machine holds all; books divide the dimensions, as OPQ's do."""
    books = [number for number in range(1, corpus.dim + 1) if corpus.dim % number == 0 and number * bits % 8 == 0]
    fitting = [
        number * bits // 8
        for number in books
        if fits(corpus, corpus.shape(engine, bits, code_bytes=number * bits // 8))
    ]
    return max(fitting, default=None)


def _least(enough: Callable[[int], bool], most: int) -> int:
    """The smallest number that is enough; what is enough once is enough with more."""
    low, high = 1, 1
    while not enough(high) and high < most:
        low, high = high + 1, min(2 * high, most)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low
