"""RAM of an open index: one definition for search, evaluation, comparison, inspection, server and plan."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from bidr.index.lexical.size_estimate import estimate_resident_bytes

PROCESS_PARTS = ("page tables", "a query", "process")
"""Parts of a plan that are not the index's own: they serve one query, or the kernel, or exist without an index."""


ROW_CACHE = "row cache"


class RamUsage(NamedTuple):
    """Bytes that an open index holds in memory, by part, whatever its files are cached by the kernel.

    Counted: codes, lists or links, codebooks, deletions, documents of the log, checksums and flags of vector blocks,
    what BM25 keeps, cached filters, and the row cache once vectors are read past the page cache. Ids, texts, postings
    and vectors are read from disk.
    """

    parts: dict[str, int]
    documents: int

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def per_document(self) -> float:
        return self.total / max(self.documents, 1)

    def to_json(self) -> dict[str, float]:
        """Return the bytes per document of each part, and their total."""
        parts = {name: round(size / max(self.documents, 1), 2) for name, size in self.parts.items()}
        return {**parts, "total": round(self.per_document, 2)}


def get_part_label(part: str) -> str:
    """Return the name of a part in tables and messages; JSON keeps the other."""
    return {"seen blocks": "verified-block flags"}.get(part, part)


def measure_ram_usage(engine_parts: Mapping[str, int], readers: Iterable[Any], count: int) -> RamUsage:
    """Measure the RAM of an index.

    Args:
        engine_parts: Bytes of the candidate engine, deletions and log included.
        readers: Readers of the segments.
        count: Number of documents that can be found.
    """
    parts = dict(engine_parts)
    readers = list(readers)
    memories = {id(reader.vectors.memory): reader.vectors.memory for reader in readers}
    parts[ROW_CACHE] = sum(memory.cache.ram_bytes for memory in memories.values())
    for reader in readers:
        words = estimate_resident_bytes(reader.count) if reader.words is not None else 0
        reader_parts = {"codebooks": reader.candidates.codebook_bytes, **reader.vectors.ram_bytes}
        reader_parts |= {"words": words, "filters": reader.documents.columns.cached_bytes}
        for name, size in reader_parts.items():
            parts[name] = parts.get(name, 0) + size
    return RamUsage(
        {name: size for name, size in parts.items() if size or name not in ("words", "filters", ROW_CACHE)}, count
    )


def select_index_parts(planned: Mapping[str, int]) -> dict[str, int]:
    """Select the parts of a plan that `RamUsage` counts."""
    return {name: size for name, size in planned.items() if name not in PROCESS_PARTS}
