"""Lexical index files: written by external sort while documents stream through, then memory-mapped."""

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self, get_args

import numpy as np
import numpy.typing as npt

from bidr.data.dataset import Titles, compose_text
from bidr.data.types import Document
from bidr.errors import REBUILD, ConfigError, IndexFolderError
from bidr.index.builder.journal import Step, write_array
from bidr.index.lexical.postings import Postings, PostingsFiles, TermCounts, count_terms
from bidr.index.storage.checksums import VerifiedArray
from bidr.index.storage.manifest import PARSE_ERRORS, HasFiles, check_content, is_count
from bidr.index.vectors import write_npy_header
from bidr.utils.external_sort import ExternalSorter
from bidr.utils.files import read_up_to
from bidr.utils.step_timer import time_step

METADATA, HASHES, OFFSETS = "words.json", "words.hashes.npy", "words.offsets.npy"
POSITIONS, COUNTS, LENGTHS = "words.places.npy", "words.counts.npy", "words.lengths.npy"
DOCUMENTS_PER_BATCH, MAX_METADATA_BYTES = 1_024, 1 << 16
RECORDS_IN_MEMORY = 2 << 20
RECORD = np.dtype([("hash", "<u8"), ("row", "<u4"), ("count", "u1")])


class LexicalIndex(NamedTuple):
    """The lexical index of one segment. `titles`: how titles are indexed."""

    postings: Postings
    titles: Titles

    @classmethod
    def open(cls, folder: Path, manifest: HasFiles, count: int) -> Self | None:
        """Map the files; return None if the segment has no lexical index."""
        if METADATA not in manifest.files:
            return None
        check_content(folder, manifest, METADATA)
        total, titles = _load_metadata(folder / METADATA)
        kinds = {HASHES: "<u8", OFFSETS: "<u8", POSITIONS: "<u4", COUNTS: "u1", LENGTHS: "<u4"}
        below = {POSITIONS: count}
        files = PostingsFiles(
            *(VerifiedArray(folder, name, kind, manifest, below=below.get(name)) for name, kind in kinds.items())
        )
        hashes, offsets, positions, counts, lengths = (array.unverified for array in files)
        postings = Postings(hashes, offsets, positions, counts, lengths, total, files)
        sizes = (len(postings.offsets), len(postings.counts), len(postings.lengths))
        expected = (len(postings.hashes) + 1, len(postings.positions), count)
        if sizes != expected or files.offsets.read_slice(len(postings.hashes), 1) != [len(postings.positions)]:
            raise IndexFolderError(f"{folder / POSITIONS}: arrays of {sizes}, expected {expected}; {REBUILD}")
        return cls(postings, titles)

    def close(self) -> None:
        for array in self.postings.files or ():
            array.close()


def _load_metadata(path: Path) -> tuple[int, Titles]:
    """Read the total number of terms, and how titles are indexed."""
    try:
        metadata = json.loads(read_up_to(path, MAX_METADATA_BYTES))
        total, titles = metadata["words"], metadata["titles"]
        if not is_count(total) or titles not in get_args(Titles):
            raise ValueError(f"words {total!r}, titles {titles!r}")
        return total, titles
    except (OSError, *PARSE_ERRORS) as error:
        raise IndexFolderError(f"{path}: damaged ({error}); {REBUILD}") from error


class LexicalIndexWriter:
    """Counts terms of documents that stream through, and writes postings once the index order is known.

    Records beyond a few ten megabytes go to a temporary file.
    """

    def __init__(self, folder: Path, titles: Titles) -> None:
        self.titles, self._sorter = titles, ExternalSorter(RECORD, folder, RECORDS_IN_MEMORY)
        self._lengths: list[npt.NDArray[np.uint32]] = []

    def watch(self, documents: Iterable[str | Document]) -> Iterator[str | Document]:
        """Yield the documents unchanged, and count their terms."""
        stream, row = iter(documents), 0
        while batch := list(islice(stream, DOCUMENTS_PER_BATCH)):
            with time_step("words"):
                self._add(count_terms([self._compose_text(document) for document in batch]), row)
            row += len(batch)
            yield from batch

    def _compose_text(self, document: str | Document) -> str:
        if not isinstance(document, Document):
            raise ConfigError("lexical: only ids given, expected documents with their texts; leave lexical out")
        return compose_text(document, self.titles)

    def _add(self, terms: TermCounts, start: int) -> None:
        records = np.empty(len(terms.hashes), dtype=RECORD)
        records["hash"], records["row"], records["count"] = terms.hashes, terms.rows + start, terms.counts
        self._lengths.append(terms.lengths)
        self._sorter.add(records)

    def write(self, step: Step, order: npt.NDArray[Any] | None) -> None:
        """Write the postings. `order`: the row of each position; None: rows are positions."""
        lengths = np.concatenate([np.zeros(0, np.uint32), *self._lengths])
        position_of = None if order is None else _invert(order)
        if not self._sorter.count:  # arrays on disk are never empty: a term that no query has
            self._sorter.add(np.array([(0, 0, 1)], dtype=RECORD))
        hashes, sizes = list[npt.NDArray[Any]](), list[npt.NDArray[Any]]()
        with self._sorter, step.open_file(POSITIONS) as positions, step.open_file(COUNTS) as counts:
            write_npy_header(positions, np.dtype("<u4"), (self._sorter.count,))
            write_npy_header(counts, np.dtype("u1"), (self._sorter.count,))
            for records in self._sorter.iter_buckets():
                by_record = records["row"] if position_of is None else position_of[records["row"]]
                sort = np.lexsort((by_record, records["hash"]))
                positions.write(by_record[sort].astype("<u4").tobytes())
                counts.write(records["count"][sort].tobytes())
                for into, values in zip((hashes, sizes), np.unique(records["hash"], return_counts=True), strict=True):
                    into.append(values)
        ends = np.cumsum(np.concatenate([np.zeros(1, np.int64), *sizes]))
        write_array(step, HASHES, np.dtype("<u8"), (sum(map(len, hashes)),), hashes)
        write_array(step, OFFSETS, np.dtype("<u8"), ends.shape, [ends])
        write_array(step, LENGTHS, np.dtype("<u4"), lengths.shape, [lengths if order is None else lengths[order]])
        with step.open_file(METADATA) as out:
            out.write(json.dumps({"words": int(lengths.sum(dtype=np.int64)), "titles": self.titles}).encode() + b"\n")


def _invert(order: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    positions = np.empty(len(order), dtype=np.uint32)
    positions[order] = np.arange(len(order), dtype=np.uint32)
    return positions
