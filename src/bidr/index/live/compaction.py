"""Merge segments, and the write-ahead log, into one segment: memory budget, resumable work, streaming of rows."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.data.types import Document
from bidr.errors import REBUILD, BidrError, ConfigError, IndexFolderError
from bidr.index.builder.build import build_index
from bidr.index.builder.journal import WorkFolder, open_work_folder
from bidr.index.code_packing import unpack
from bidr.index.cost_model.build_memory import BASE, check_budget, estimate_build_peaks, watch_memory
from bidr.index.cost_model.sizes import Shape, estimate_engine_ram
from bidr.index.engines.engine_choice import choose_engine
from bidr.index.engines.engine_files import CODES_FILE, open_array
from bidr.index.live.initial_codes import EncodedVectors, FitSettings, fit_codebooks
from bidr.index.live.segment import Segment, unpack_bits
from bidr.index.live.view import LiveView
from bidr.index.storage.commit import COMPACTION_FOLDER, BeginGeneration
from bidr.index.storage.live_state import SegmentEntry
from bidr.index.storage.manifest import MANIFEST, check_content, hash_bytes, hash_file
from bidr.utils.array_types import Codes, Floats, Rows
from bidr.utils.files import remove

# Bytes of a kept document's position; of a document in a segment with deletions: a bool by row and one by position.
POSITION_BYTES, DELETED_BYTES = 4, 2
# Smaller compactions take seconds, and are not resumable.
MIN_RESUMABLE_DOCUMENTS = 20_000
# Copies of the memtable in RAM while it becomes a segment.
MEMTABLE_COPIES = 3
POSITION_DTYPE = np.dtype(np.uint32)
Positions = npt.NDArray[np.uint32]
SegmentPositions = Sequence[npt.NDArray[Any]]
ROWS_PER_BLOCK = 1 << 16


def predict_merged_shape(view: LiveView, segments: Sequence[Segment] = ()) -> Shape:
    """Predict the shape of the segment that an index, or some of its segments, will be merged into."""
    first = (segments or view.segments)[0].reader
    manifest = first.manifest
    count = sum(segment.alive_count for segment in segments) if segments else view.count
    bits = manifest.words.bit_length() - 1
    engine = choose_engine("auto" if manifest.auto else manifest.engine, max(1, count), bits)
    learned = first.load_learned_lists() if engine == "lists" else None
    size, kind = (manifest.books * bits + 7) // 8, first.vectors.kind
    lists = 0 if learned is None else len(learned.means)
    return Shape(count, manifest.dim, engine, bits, size, kind, dims=manifest.dims, learned=lists)


def predict_peak_ram(view: LiveView, segments: Sequence[Segment] = ()) -> dict[str, int]:
    """Predict the peak of anonymous memory of every step; the index stays open meanwhile.

    segments: those that are merged; by default all, and the log.
    """
    shape, index_bytes = predict_merged_shape(view, segments), sum(view.ram_bytes.values())
    merged = segments or view.segments
    readers = [segment.reader for segment in merged]
    has_attributes = bool(view.attributes())
    has_postings = all(reader.words is not None for reader in readers)
    peaks = estimate_build_peaks(
        shape,
        fits_codebooks=False,
        has_ids=True,
        has_postings=has_postings,
        has_attributes=has_attributes,
    )
    del peaks["codes"]  # codes are copied, not computed
    position_bytes = POSITION_BYTES * shape.count + max(
        (DELETED_BYTES * segment.count for segment in merged if segment.deleted is not None), default=0
    )
    peaks = {step: size + index_bytes + position_bytes for step, size in peaks.items()}
    # Opening the result reads codes and arranges them in blocks.
    peaks["opening"] = BASE + index_bytes + position_bytes + 2 * sum(estimate_engine_ram(shape).values())
    if not segments:
        peaks["log"] = BASE + index_bytes + MEMTABLE_COPIES * view.memtable.bytes
    return peaks


def explain_no_merge(view: LiveView, budget: int | None) -> str | None:
    """Explain why all segments but the first cannot be merged within a budget; None if they can."""
    try:
        index_bytes = sum(view.ram_bytes.values())
        check_budget(budget, predict_peak_ram(view, view.segments[1:]), "merging its segments", index_bytes)
    except ConfigError as error:
        return f"{view.folder}: {len(view.segments)} segments are not merged, and are searched one by one; {error}"
    return None


@contextmanager
def run_compaction(view: LiveView, ram_budget: int | str | None = None) -> Iterator[WorkFolder | None]:
    """Yield the work folder of a compaction; None for a small index, whose compaction is not resumable.

    Raises ConfigError first if the budget is too small. After a kill or an interrupt the next compaction resumes;
    after an error nothing is kept.
    """
    index_bytes, folder = sum(view.ram_bytes.values()), view.folder
    is_resumable = view.count >= MIN_RESUMABLE_DOCUMENTS
    budget = check_budget(ram_budget, predict_peak_ram(view), "compacting this index", index_bytes)
    del view  # it would keep the old codes in RAM beside the new ones
    with watch_memory(budget):
        try:
            if is_resumable:
                with open_work_folder(folder, COMPACTION_FOLDER) as work:
                    yield work
            else:
                yield None
                remove(folder / COMPACTION_FOLDER)
        except (BidrError, OSError):
            remove(folder / COMPACTION_FOLDER)
            raise


class MergedArray:
    """Array-like over chosen positions of several segments; rows are read when it is sliced.

    stamp: fingerprint of the content, for the journal of the build.
    """

    ndim = 2

    def __init__(self, positions: SegmentPositions, width: int, stamp: str = "") -> None:
        self._positions, self.stamp = positions, stamp
        self._ends = np.cumsum([len(block) for block in positions])
        self.shape = (int(self._ends[-1]), width)

    def __len__(self) -> int:
        return self.shape[0]

    def _make_output(self, selection: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        return np.empty((len(_as_rows(selection, len(self))), self.shape[1]), dtype=dtype)

    def _locate(self, selection: Any) -> Iterator[tuple[int, npt.NDArray[np.bool_], Any]]:
        """Yield by segment: its number, which of the selected rows are in it, and their positions there."""
        rows = _as_rows(selection, len(self))
        numbers = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(numbers).tolist():
            in_segment = numbers == number
            first = self._ends[number] - len(self._positions[number])
            yield number, in_segment, self._positions[number][rows[in_segment] - first]


def _as_rows(selection: Any, count: int) -> Rows:
    return np.arange(*selection.indices(count)) if isinstance(selection, slice) else np.asarray(selection)


class MergedVectors(MergedArray):
    """Vectors of chosen positions of several segments."""

    dtype = np.dtype(np.float32)

    def __init__(self, view: LiveView, segments: list[Segment], positions: SegmentPositions, stamp: str = "") -> None:
        super().__init__(positions, view.vectors.dim, stamp)
        self.view, self._starts = view, [segment.start for segment in segments]

    def __getitem__(self, selection: Any) -> Floats:
        rows = np.empty(len(_as_rows(selection, len(self))), dtype=np.int64)
        for number, in_segment, positions in self._locate(selection):
            rows[in_segment] = self._starts[number] + positions
        vectors = self.view.vectors.read(rows)
        if not np.isfinite(vectors).all():
            raise IndexFolderError(f"{self.view.folder}: a vector holds a number that is not finite; {REBUILD}")
        return vectors


class MergedCodes(MergedArray):
    """Codes of chosen positions of several segments, read from their files."""

    dtype = np.dtype(np.uint8)

    def __init__(self, segments: list[Segment], positions: SegmentPositions, stamp: str = "") -> None:
        readers = [segment.reader for segment in segments]
        super().__init__(positions, readers[0].codebooks.books, stamp)
        for reader in readers:  # verify again: damage would get a valid checksum in the new segment
            check_content(reader.generation, reader.manifest, CODES_FILE)
        self._files = [open_array(reader.generation / CODES_FILE, self.dtype, 2) for reader in readers]
        self._codebooks = readers[0].codebooks

    def __getitem__(self, selection: Any) -> Codes:
        codes = self._make_output(selection, self.dtype)
        for number, in_segment, positions in self._locate(selection):
            codes[in_segment] = unpack(self._files[number][positions], self._codebooks.books, self._codebooks.bits)
        return codes


def fingerprint_segments(segments: list[Segment]) -> str:
    """Compute a fingerprint of the alive documents of segments: manifest checksums and deleted rows."""
    fields = [
        (
            segment.name,
            segment.entry.xxh3,
            _hash_deleted(segment),
            *([segment.overlay.stamp] if segment.overlay else []),
        )
        for segment in segments
    ]
    return hash_bytes(json.dumps(fields).encode())


def _hash_deleted(segment: Segment) -> str:
    return "" if segment.deleted is None else hash_bytes(segment.deleted.tobytes())


def merge_segments(
    view: LiveView, segments: list[Segment], begin: BeginGeneration, like: Segment, work: WorkFolder | None = None
) -> SegmentEntry:
    """Write the alive documents of several segments as one segment.

    Args:
        view: The index.
        segments: Those to merge.
        begin: Starts the generation of the new segment.
        like: Segment whose engine and lists the new one gets, unless the engine is chosen by document count.
        work: Folder of resumable steps.
    """
    positions, stamp = [get_alive_positions(segment) for segment in segments], fingerprint_segments(segments)
    has_text = any(segment.reader.documents.has_text for segment in segments)
    path = build_index(
        view.folder,
        codebooks=view.codebooks,
        codes=MergedCodes(segments, positions, stamp),  # type: ignore[arg-type]
        vectors=MergedVectors(view, segments, positions, stamp),  # type: ignore[arg-type]
        **{"documents" if has_text else "ids": _iter_documents(segments, positions)},  # type: ignore[arg-type]
        model=view.state.model,
        engine="auto" if like.reader.manifest.auto else like.reader.manifest.engine,
        lists=like.reader.load_learned_lists(),
        **_get_build_options(view),
        begin=begin,
        work=work,
        documents_stamp=[stamp, has_text],
    )
    return make_entry(path, sum(map(len, positions)))


def write_fitted_segment(view: LiveView, settings: FitSettings, begin: BeginGeneration) -> SegmentEntry:
    """Write all documents of the segments as one segment, with codes that are fitted to their vectors."""
    segments = [segment for segment in view.segments if segment.alive_count]
    positions = [get_alive_positions(segment) for segment in segments]
    vectors = MergedVectors(view, segments, positions)
    codebooks = fit_codebooks(vectors, settings.codes)
    has_text = any(segment.reader.documents.has_text for segment in segments)
    path = build_index(
        view.folder,
        codebooks=codebooks,
        codes=EncodedVectors(vectors, codebooks, ""),  # type: ignore[arg-type]
        vectors=vectors,  # type: ignore[arg-type]
        **{"documents" if has_text else "ids": _iter_documents(segments, positions)},  # type: ignore[arg-type]
        model=view.state.model,
        engine=settings.engine,
        **_get_build_options(view),
        begin=begin,
    )
    return make_entry(path, sum(map(len, positions)))


def _iter_documents(segments: list[Segment], positions: SegmentPositions) -> Iterator[Document]:
    """Yield the documents at positions of several segments."""
    for segment, alive in zip(segments, positions, strict=True):
        for start in range(0, len(alive), ROWS_PER_BLOCK):
            rows = segment.get_rows(alive[start : start + ROWS_PER_BLOCK].astype(np.int64))
            yield from map(segment.get_record, rows.tolist())


def get_alive_positions(segment: Segment) -> Positions:
    """Positions of the alive documents of a segment, 4 bytes each."""
    bits = segment.get_bitmap(None)
    if bits is None:
        return np.arange(segment.count, dtype=POSITION_DTYPE)
    alive, end = np.empty(segment.alive_count, dtype=POSITION_DTYPE), 0
    for start in range(0, segment.count, ROWS_PER_BLOCK):  # at once it would take 9 more bytes per document
        count = min(ROWS_PER_BLOCK, segment.count - start)
        positions = np.flatnonzero(unpack_bits(bits[start // 8 : (start + count + 7) // 8], count))
        alive[end : end + len(positions)] = positions + start
        end += len(positions)
    return alive


def write_memtable_segment(view: LiveView, begin: BeginGeneration) -> SegmentEntry:
    """Write the alive documents of the memtable as a segment."""
    memtable = view.memtable
    rows = np.flatnonzero(memtable.alive)
    documents = [memtable.documents[row] for row in rows]
    path = build_index(
        view.folder,
        codebooks=view.codebooks,
        codes=memtable.codes[rows],
        vectors=memtable.vectors[rows],
        **{"documents" if memtable.has_text else "ids": documents},  # type: ignore[arg-type]
        model=view.state.model,
        engine="scan",
        **_get_build_options(view),
        begin=begin,
    )
    return make_entry(path, len(rows))


def _get_build_options(view: LiveView) -> dict[str, Any]:
    """Return the options of `build_index` with which the first segment was built."""
    first = view.segments[0].reader
    titles = first.words.titles if first.words else None
    manifest = first.manifest
    truncation = {} if manifest.dims is None else {"full_dim": manifest.dim, "code_error": manifest.code_error}
    options = {"stored": first.vectors.kind, "unit": manifest.unit, "metric": manifest.metric}
    return {**options, "encoder": manifest.encoder, "lexical": titles, **truncation}


def make_entry(path: Path, count: int) -> SegmentEntry:
    """Return the entry of a segment for the state that will list it."""
    return SegmentEntry(path.name, hash_file(path / MANIFEST), count)
