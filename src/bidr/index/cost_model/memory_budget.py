"""How much memory a build takes, step by step, computed before it begins; and how much it really took.

Counted is anonymous memory (RssAnon in /proc/PID/status): what the process asked for itself. Pages of files that it
has mapped are not: the kernel takes them back when it needs them.
"""

import math
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bidr.errors import ConfigError
from bidr.index.builder.cluster_input import BLOCK_ROWS
from bidr.index.builder.coarse_clustering import (
    GRAPH_LINKS,
    MAX_BRUTE_FORCE_LISTS,
    MIN_ORDERED_DOCUMENTS,
    SORT_BLOCK_ROWS,
    get_sample_size,
)
from bidr.index.builder.reorder import MAX_BATCH_ROWS, PIECE
from bidr.index.cost_model.sizes import FLOAT, Shape
from bidr.index.engines.block_centroids import TRAINING_BLOCKS, has_block_centroids
from bidr.index.engines.engine_files import list_ram_files
from bidr.index.engines.graph.build import POOL_FACTOR
from bidr.index.engines.graph.engine import get_candidate_count
from bidr.index.storage.live_state import state_in_force
from bidr.index.storage.manifest import open_segment
from bidr.index.types import EF_CONSTRUCTION
from bidr.index.vectors import WRITE_ROWS
from bidr.quantization.codebooks import ENCODE_ROWS
from bidr.quantization.pq_training import FIT_ROWS
from bidr.utils.progress import say

MIB = 1 << 20
LOOK_SECONDS = 0.02
# A process that has imported torch, Faiss and numba and compiled what writing needs; and one that compacts, which
# imports neither torch nor Faiss.
BASE, COMPACTING = 200 * MIB, 90 * MIB
# Arrays of the size of a block that are there at the same time, by step; the fit's are of its sample.
FITTING, CODING, DECODING, WRITING, MEANS, ARRANGING = 5, 5, 5, 6, 4, 4
# And a fit's codes, of this round and the one before, and what it takes besides.
FIT_CODES, FIT_HELD = 8, 48 * MIB
# Hashes of ids on their way to disk, and a 256th of them sorted: so many bytes, and of each document.
NAMES_HELD, NAMED = 96 * MIB, 0.25
# Attributes: a million values, 32 MiB of different words as they are counted, and what merging those on disk takes.
# Measured, of 6 values a document: 55 MiB for 200,000, 68 for 800,000, 69 for 1.6 million.
ATTRIBUTES_HELD = 80 * MIB
# And where their words are written too: lengths and places; postings on their way to disk, and sorted.
WORDED, WORDS_HELD = 12, 200 * MIB
# Links are chosen (vectors that are looked at together, beside the means of all pieces), then put in order: who chose a
# group, some 140 of 5 bytes each and offsets, for each of its four documents. A million took 311 and 410 MiB in all.
LOOKED_AT, CHOOSING, CHOSEN, ORDERING = 1.25, 32 * MIB, 184, 40 * MIB
UNITS = {"": 1, **{f"{unit}B": 1000 ** (power + 1) for power, unit in enumerate("KMGTP")}}
UNITS |= {f"{unit}iB": 1024 ** (power + 1) for power, unit in enumerate("KMGTP")} | {"B": 1}


def build_peaks(
    shape: Shape,
    *,
    fits: bool = True,
    named: bool = False,
    worded: bool = False,
    described: bool = False,
    base: int = BASE,
) -> dict[str, int]:
    """Anonymous bytes at the peak of every step.

    fits:   codebooks are fitted to the vectors.
    named:  documents have ids.
    worded: the words of the texts are indexed.
    described: documents may have attributes.
    base:   what the process takes before it begins.
    """
    row, books = FLOAT.itemsize * shape.dim, shape.books
    parts = {"codes": CODING * ENCODE_ROWS * row, "vectors": WRITING * WRITE_ROWS * row}
    if fits:
        parts["codebooks"] = min(FIT_ROWS, shape.count) * (FITTING * row + FIT_CODES * books) + FIT_HELD
    if shape.engine != "scan" or shape.count >= MIN_ORDERED_DOCUMENTS:
        lists = shape.lists if shape.engine != "scan" else max(1, shape.lists // 4)
        sample, links = get_sample_size(shape.count, lists), 12 * GRAPH_LINKS if lists > MAX_BRUTE_FORCE_LISTS else 0
        if shape.learned:  # nothing is sampled, but there are two points a list, and their files
            sample, links = 0, links + 3 * row
        parts["clusters"] = sample * (2 * books + 24) + lists * (3 * row + links) + DECODING * BLOCK_ROWS * row
        parts["order"] = 64 * SORT_BLOCK_ROWS + 24 * lists
    if has_block_centroids(shape.engine, shape.count):
        parts["order"] += ARRANGING * min(MAX_BATCH_ROWS, shape.count) * row
        parts["means"] = TRAINING_BLOCKS * MEANS * row + DECODING * WRITE_ROWS * row
    if named:
        held = NAMES_HELD + WORDS_HELD * worded + ATTRIBUTES_HELD * described
        parts["names"] = held + math.ceil(shape.count * (NAMED + WORDED * worded))
    if shape.engine == "hnsw":
        together = round(LOOKED_AT * POOL_FACTOR * get_candidate_count(EF_CONSTRUCTION)) * row
        choosing = CHOOSING + min(together, shape.count * row) + shape.count // PIECE * row
        parts["links"] = max(choosing, ORDERING + shape.count * CHOSEN)
    return {step: base + size for step, size in parts.items()}


def check_budget(
    budget: int | str | None, peaks: dict[str, int], what: str = "this build", counted: int = 0, base: int = BASE
) -> int | None:
    """Refuse a budget that cannot be kept, before anything is done; else how many bytes it is.

    What the process holds already, a model or arrays of the caller's, is counted.
    what, counted, base: what takes it, and how much of what is held already the peaks have in them: arrays, and the
        process itself.
    """
    if budget is None:
        return None
    given = parse_bytes("ram_budget", str(budget))
    step = max(peaks, key=lambda name: peaks[name])
    least = peaks[step] + max(0, anonymous() - base - counted)
    if least > given:
        less = "; engine 'lists' takes less" if step == "links" else ""
        raise ConfigError(
            f"ram_budget: given {given:,} bytes, but {what} takes up to {_size(least)} (step: {step}); give "
            f"{_size(least)} or more{less}"
        )
    return given


# A size without a unit is bytes; below this it is more likely that the unit was left out.
SMALLEST = 1 << 20


def parse_bytes(name: str, given: str) -> int:
    """A size such as 64GiB, 500MB or 1e9."""
    match = re.fullmatch(r"\s*([0-9.]+(?:e[+]?[0-9]{1,2})?)\s*([A-Za-z]*)\s*", given)
    units = {unit.lower(): size for unit, size in UNITS.items()}
    units |= {unit[0].lower(): size for unit, size in UNITS.items() if unit.endswith("iB")}
    try:
        number = float(match[1]) * units[match[2].lower()] if match else math.nan
    except (ValueError, KeyError):
        number = math.nan
    if not 1 <= number < 1 << 60:
        raise ConfigError(f"{name}: given {given!r}, expected a size such as 64GiB, 500MB or 1.5TiB")
    if match and not match[2] and number < SMALLEST:
        raise ConfigError(f"{name}: given {given!r}, which is {number:,.0f} bytes; did you mean {match[1]}GiB?")
    return int(number)


def loaded_bytes(index: Path) -> int:
    """What an index holds in RAM once it is opened, about: the files of its segments that go there."""
    manifests = [open_segment(index, each.name, each.xxh3) for each in state_in_force(index)[1].segments]
    return COMPACTING + sum(each.files[name].size for each in manifests for name in list_ram_files(each, each.engine))


def anonymous() -> int:
    """Anonymous memory of this process now; 0 where the system does not say."""
    try:
        found = re.search(r"^RssAnon:\s+(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return 1024 * int(found[1]) if found else 0


@contextmanager
def watched(budget: int | None) -> Iterator[None]:
    """Look at this process's memory all the while, and say at the end how much it was, beside the budget."""
    if budget is None:
        yield
        return
    most, ended = [anonymous()], threading.Event()

    def watch() -> None:
        while not ended.wait(LOOK_SECONDS):
            most[0] = max(most[0], anonymous())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if most[0]:
        above = "" if most[0] <= budget else "; more than planned, please report it"
        say(f"memory: {_size(most[0])} at the peak, of {_size(budget)} (anonymous){above}")


def _size(count: int) -> str:
    return f"{-(-count // MIB):,} MiB"
