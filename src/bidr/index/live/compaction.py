"""What compacting an index takes in RAM, and what one that was killed leaves for the next to go on with."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bidr.errors import BidrError, ConfigError
from bidr.index.builder.journal import WorkFolder, open_work_folder
from bidr.index.cost_model.memory_budget import COMPACTION_BASE, check_budget, estimate_build_peaks, watch_memory
from bidr.index.cost_model.sizes import Shape, estimate_engine_ram
from bidr.index.engines.factory import choose_engine
from bidr.index.live.segment import Part
from bidr.index.live.view import LiveView
from bidr.index.storage.commit import COMPACT
from bidr.utils.files import remove

# Where a document stands that is kept; and in a segment with deleted ones a truth value by row and one by place.
KEPT, SORTED_OUT = 4, 2
# Of fewer documents it takes seconds, and begins again.
KEPT_FROM = 20_000
# Copies of the log while it becomes a segment.
LOGGED = 3


def shape_after(view: LiveView, parts: Sequence[Part] = ()) -> Shape:
    """The one segment that an index will be, or some parts of it."""
    first = (parts or view.parts)[0].open.reader
    manifest, count = first.manifest, sum(part.alive for part in parts) if parts else view.count
    bits = manifest.words.bit_length() - 1
    engine = choose_engine("auto" if manifest.auto else manifest.engine, max(1, count), bits)
    learned = first.learned_lists() if engine == "lists" else None
    size, kind = (manifest.books * bits + 7) // 8, first.vectors.kind
    lists = 0 if learned is None else len(learned.means)
    return Shape(count, manifest.dim, engine, bits, size, kind, dims=manifest.dims, learned=lists)


def compact_peaks(view: LiveView, parts: Sequence[Part] = ()) -> dict[str, int]:
    """Anonymous bytes at the peak of every step; the index as it is stays open all the while.

    parts: those that are merged; by default all, and the log.
    """
    shape, held, merged = shape_after(view, parts), sum(view.ram_bytes.values()), parts or view.parts
    readers = [part.open.reader for part in merged]
    described = bool(view.attributes())
    worded = all(reader.words is not None for reader in readers)
    peaks = estimate_build_peaks(
        shape, fits_codebooks=False, has_ids=True, has_postings=worded, has_attributes=described, base=COMPACTION_BASE
    )
    del peaks["codes"]  # they are there, and only copied
    places = KEPT * shape.count + max(
        (SORTED_OUT * part.count for part in merged if part.deleted is not None), default=0
    )
    peaks = {step: size + held + places for step, size in peaks.items()}
    # Codes are read, and put into blocks.
    peaks["opening"] = COMPACTION_BASE + held + places + 2 * sum(estimate_engine_ram(shape).values())
    if not parts:
        peaks["log"] = COMPACTION_BASE + held + LOGGED * view.memory.bytes
    return peaks


def why_not_merged(view: LiveView, budget: int | None) -> str | None:
    """Why all segments but the first cannot be merged within a budget; None: they can."""
    try:
        held = sum(view.ram_bytes.values())
        check_budget(budget, compact_peaks(view, view.parts[1:]), "merging its segments", held, COMPACTION_BASE)
    except ConfigError as error:
        return f"{view.folder}: {len(view.parts)} segments stay as they are, each searched by itself; {error}"
    return None


@contextmanager
def compacting(view: LiveView, ram_budget: int | str | None = None) -> Iterator[WorkFolder | None]:
    """The work of a compaction: within the budget, or refused before anything is done.

    Killed, or stopped by hand, it leaves what it has done, for the next one to go on with; of few documents it keeps
    nothing (None). What fails leaves nothing.
    """
    held, folder, large = sum(view.ram_bytes.values()), view.folder, view.count >= KEPT_FROM
    budget = check_budget(ram_budget, compact_peaks(view), "compacting this index", held, COMPACTION_BASE)
    del view  # or its codes would stay, beside those of the new one
    with watch_memory(budget):
        try:
            if large:
                with open_work_folder(folder, COMPACT) as work:
                    yield work
            else:
                yield None
                remove(folder / COMPACT)
        except (BidrError, OSError):
            remove(folder / COMPACT)
            raise
