"""Postings as files of an index: counted while documents stream by, sorted piece by piece, memory mapped afterwards."""

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
from bidr.index.storage.manifest import UNREADABLE, HasFiles, check_content, is_count
from bidr.index.storage.verified_mmap import CheckedArray
from bidr.index.vectors import write_npy_header
from bidr.utils.external_sort import ExternalSorter
from bidr.utils.files import read_up_to
from bidr.utils.step_timer import time_step

ABOUT, HASHES, OFFSETS = "words.json", "words.hashes.npy", "words.offsets.npy"
PLACES, COUNTS, LENGTHS = "words.places.npy", "words.counts.npy", "words.lengths.npy"
AT_ONCE, MOST_ABOUT = 1_024, 1 << 16
HELD = 2 << 20
RECORD = np.dtype([("hash", "<u8"), ("row", "<u4"), ("count", "u1")])


class LexicalIndex(NamedTuple):
    """The words of one segment. `titles`: whether those of titles count too."""

    postings: Postings
    titles: Titles

    @classmethod
    def open(cls, folder: Path, manifest: HasFiles, count: int) -> Self | None:
        """Map the files; None where the index was built without."""
        if ABOUT not in manifest.files:
            return None
        check_content(folder, manifest, ABOUT)
        total, titles = _about(folder / ABOUT)
        kinds = {HASHES: "<u8", OFFSETS: "<u8", PLACES: "<u4", COUNTS: "u1", LENGTHS: "<u4"}
        below = {PLACES: count}
        files = PostingsFiles(
            *(CheckedArray(folder, name, kind, manifest, below=below.get(name)) for name, kind in kinds.items())
        )
        hashes, offsets, places, counts, lengths = (each.unchecked for each in files)
        postings = Postings(hashes, offsets, places, counts, lengths, total, files)
        sizes = (len(postings.offsets), len(postings.counts), len(postings.lengths))
        expected = (len(postings.hashes) + 1, len(postings.places), count)
        if sizes != expected or files.offsets.some(len(postings.hashes), 1) != [len(postings.places)]:
            raise IndexFolderError(f"{folder / PLACES}: arrays of {sizes}, expected {expected}; {REBUILD}")
        return cls(postings, titles)

    def close(self) -> None:
        for each in self.postings.files or ():
            each.close()


def _about(path: Path) -> tuple[int, Titles]:
    """How many words all documents have together, and what of them counted."""
    try:
        about = json.loads(read_up_to(path, MOST_ABOUT))
        total, titles = about["words"], about["titles"]
        if not is_count(total) or titles not in get_args(Titles):
            raise ValueError(f"words {total!r}, titles {titles!r}")
        return total, titles
    except (OSError, *UNREADABLE) as error:
        raise IndexFolderError(f"{path}: damaged ({error}); {REBUILD}") from error


class LexicalIndexWriter:
    """Counts the words of documents as they pass, and writes them when the documents' order is known.

    What does not fit a few ten megabytes waits in a file without a name.
    """

    def __init__(self, folder: Path, titles: Titles) -> None:
        self.titles, self._spill = titles, ExternalSorter(RECORD, folder, HELD)
        self._lengths: list[npt.NDArray[np.uint32]] = []

    def watch(self, documents: Iterable[str | Document]) -> Iterator[str | Document]:
        """The same documents, counted."""
        stream, row = iter(documents), 0
        while batch := list(islice(stream, AT_ONCE)):
            with time_step("words"):
                self._add(count_terms([self._text(each) for each in batch]), row)
            row += len(batch)
            yield from batch

    def _text(self, each: str | Document) -> str:
        if not isinstance(each, Document):
            raise ConfigError("lexical: only ids given, expected documents with their texts; leave lexical out")
        return compose_text(each, self.titles)

    def _add(self, counted: TermCounts, start: int) -> None:
        records = np.empty(len(counted.hashes), dtype=RECORD)
        records["hash"], records["row"], records["count"] = counted.hashes, counted.numbers + start, counted.counts
        self._lengths.append(counted.lengths)
        self._spill.add(records)

    def write(self, step: Step, order: npt.NDArray[Any] | None) -> None:
        """Write the postings by place: `order` says which row stands at which."""
        lengths = np.concatenate([np.zeros(0, np.uint32), *self._lengths])
        place_of = None if order is None else _inverse(order)
        if not self._spill.count:  # arrays on disk are never empty: a word that nobody can ask for
            self._spill.add(np.array([(0, 0, 1)], dtype=RECORD))
        hashes, sizes = list[npt.NDArray[Any]](), list[npt.NDArray[Any]]()
        with self._spill, step.open_file(PLACES) as places, step.open_file(COUNTS) as counts:
            write_npy_header(places, np.dtype("<u4"), (self._spill.count,))
            write_npy_header(counts, np.dtype("u1"), (self._spill.count,))
            for records in self._spill.iter_buckets():
                own = records["row"] if place_of is None else place_of[records["row"]]
                sort = np.lexsort((own, records["hash"]))
                places.write(own[sort].astype("<u4").tobytes())
                counts.write(records["count"][sort].tobytes())
                for into, values in zip((hashes, sizes), np.unique(records["hash"], return_counts=True), strict=True):
                    into.append(values)
        ends = np.cumsum(np.concatenate([np.zeros(1, np.int64), *sizes]))
        write_array(step, HASHES, np.dtype("<u8"), (sum(map(len, hashes)),), hashes)
        write_array(step, OFFSETS, np.dtype("<u8"), ends.shape, [ends])
        write_array(step, LENGTHS, np.dtype("<u4"), lengths.shape, [lengths if order is None else lengths[order]])
        with step.open_file(ABOUT) as out:
            out.write(json.dumps({"words": int(lengths.sum(dtype=np.int64)), "titles": self.titles}).encode() + b"\n")


def _inverse(order: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    places = np.empty(len(order), dtype=np.uint32)
    places[order] = np.arange(len(order), dtype=np.uint32)
    return places
