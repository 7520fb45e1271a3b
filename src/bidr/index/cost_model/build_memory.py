"""Estimate the peak memory of a build by step, check it against a budget, and measure it.

Anonymous memory counts (RssAnon in /proc/PID/status), not pages of mapped files, which the kernel can evict.
"""

import math
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bidr.errors import ConfigError
from bidr.index.builder.clustering_vectors import BLOCK_ROWS
from bidr.index.builder.coarse_clustering import (
    GRAPH_LINKS,
    MAX_BRUTE_FORCE_LISTS,
    MIN_ORDERED_DOCUMENTS,
    SORT_BLOCK_ROWS,
    get_sample_size,
)
from bidr.index.builder.reorder import MAX_BATCH_ROWS, PIECE
from bidr.index.candidate_source import EF_CONSTRUCTION
from bidr.index.cost_model.sizes import FLOAT, Shape
from bidr.index.engines.block_centroids import TRAINING_BLOCKS, has_block_centroids
from bidr.index.engines.engine_files import list_ram_files
from bidr.index.engines.graph.construction import POOL_FACTOR
from bidr.index.engines.graph.engine import get_candidate_count
from bidr.index.storage.live_state import read_current_state
from bidr.index.storage.manifest import open_segment
from bidr.index.vectors import WRITE_ROWS
from bidr.quantization.codebooks import ENCODE_ROWS
from bidr.quantization.pq_training import FIT_ROWS
from bidr.utils.byte_sizes import parse_bytes
from bidr.utils.progress import say

MIB = 1 << 20
SAMPLING_SECONDS = 0.02
# A process that has imported numba and compiled what writing needs.
BASE = 90 * MIB
# Temporary arrays of the size of a block, by step; those of training have the size of its sample.
FITTING, CODING, DECODING, WRITING, MEANS, ARRANGING = 5, 5, 5, 6, 4, 4
# Codes of two rounds of training, and its remaining memory.
FIT_CODES, FIT_BUFFER_BYTES = 8, 48 * MIB
# Hashes of ids that are buffered, and one sorted bucket of 256: in all, and per document.
ID_BUFFER_BYTES, BYTES_PER_ID = 96 * MIB, 0.25
# Attributes: a million values, 32 MiB of distinct words while they are counted, and merging those on disk.
# Measured with 6 values a document: 55 MiB for 200,000 documents, 68 for 800,000, 69 for 1.6 million.
ATTRIBUTE_BUFFER_BYTES = 80 * MIB
# BM25: lengths and positions per document; postings that are buffered, and one sorted bucket.
BYTES_PER_LENGTH, POSTINGS_BUFFER_BYTES = 12, 200 * MIB
# Links are chosen (vectors of the candidates, beside the means of all pieces), then reversed: some 140 of 5 bytes and
# offsets for each group of four documents. A million documents took 311 and 410 MiB in all.
CANDIDATE_SLACK, CHOOSING, BYTES_PER_LINKS, ORDERING = 1.25, 32 * MIB, 184, 40 * MIB


def estimate_build_peaks(
    shape: Shape,
    *,
    fits_codebooks: bool = True,
    has_ids: bool = False,
    has_postings: bool = False,
    has_attributes: bool = False,
) -> dict[str, int]:
    """Return the anonymous bytes at the peak of every step.

    Args:
        shape: of the index.
        fits_codebooks: codebooks are trained on the vectors.
        has_ids: documents have ids.
        has_postings: texts are indexed for BM25.
        has_attributes: documents may have attributes.
    """
    row, books = FLOAT.itemsize * shape.dim, shape.books
    peaks = {"codes": CODING * ENCODE_ROWS * row, "vectors": WRITING * WRITE_ROWS * row}
    if fits_codebooks:
        peaks["codebooks"] = min(FIT_ROWS, shape.count) * (FITTING * row + FIT_CODES * books) + FIT_BUFFER_BYTES
    if shape.engine != "scan" or shape.count >= MIN_ORDERED_DOCUMENTS:
        lists = shape.lists if shape.engine != "scan" else max(1, shape.lists // 4)
        sample, links = get_sample_size(shape.count, lists), 12 * GRAPH_LINKS if lists > MAX_BRUTE_FORCE_LISTS else 0
        if shape.learned:  # nothing is sampled, but each list has two centroids and their file
            sample, links = 0, links + 3 * row
        peaks["clusters"] = sample * (2 * books + 24) + lists * (3 * row + links) + DECODING * BLOCK_ROWS * row
        peaks["order"] = 64 * SORT_BLOCK_ROWS + 24 * lists
    if has_block_centroids(shape.engine, shape.count):
        peaks["order"] += ARRANGING * min(MAX_BATCH_ROWS, shape.count) * row
        peaks["means"] = TRAINING_BLOCKS * MEANS * row + DECODING * WRITE_ROWS * row
    if has_ids:
        buffers = ID_BUFFER_BYTES + POSTINGS_BUFFER_BYTES * has_postings + ATTRIBUTE_BUFFER_BYTES * has_attributes
        peaks["names"] = buffers + math.ceil(shape.count * (BYTES_PER_ID + BYTES_PER_LENGTH * has_postings))
    if shape.engine == "hnsw":
        candidates = round(CANDIDATE_SLACK * POOL_FACTOR * get_candidate_count(EF_CONSTRUCTION)) * row
        choosing = CHOOSING + min(candidates, shape.count * row) + shape.count // PIECE * row
        peaks["links"] = max(choosing, ORDERING + shape.count * BYTES_PER_LINKS)
    return {step: BASE + size for step, size in peaks.items()}


def check_budget(
    budget: int | str | None, peaks: dict[str, int], what: str = "this build", counted: int = 0
) -> int | None:
    """Return a memory budget in bytes; raise ConfigError if the estimated peak exceeds it.

    Memory that the process has now (a model, arrays of the caller) is added to the peak.

    Args:
        budget: bytes, or a size such as "1GiB"; None: unlimited.
        peaks: by step, with the process itself and `counted` included.
        what: names the job in the error.
        counted: bytes of arrays in memory now that the peaks include.
    """
    if budget is None:
        return None
    budget_bytes = parse_bytes("ram_budget", str(budget))
    step = max(peaks, key=lambda name: peaks[name])
    required = peaks[step] + max(0, read_anonymous_memory() - BASE - counted)
    if required > budget_bytes:
        size, advice = _format_size(required), "; engine 'lists' takes less" if step == "links" else ""
        raise ConfigError(
            f"ram_budget: given {budget_bytes:,} bytes, but {what} takes up to {size} (step: {step}); "
            f"give {size} or more{advice}"
        )
    return budget_bytes


def estimate_loaded_bytes(index: Path) -> int:
    """Return the approximate RAM of an open index: the files of its segments that are loaded."""
    segments = read_current_state(index)[1].segments
    manifests = [open_segment(index, segment.name, segment.xxh3) for segment in segments]
    sizes = (manifest.files[name].size for manifest in manifests for name in list_ram_files(manifest, manifest.engine))
    return BASE + sum(sizes)


def read_anonymous_memory() -> int:
    """Return the anonymous memory of this process; 0 where the system does not report it."""
    try:
        match = re.search(r"^RssAnon:\s+(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return 1024 * int(match[1]) if match else 0


@contextmanager
def watch_memory(budget: int | None) -> Iterator[None]:
    """Sample the memory of this process in a thread, and print the peak beside the budget at the end of the block."""
    if budget is None:
        yield
        return
    peak, stop = read_anonymous_memory(), threading.Event()

    def sample() -> None:
        nonlocal peak
        while not stop.wait(SAMPLING_SECONDS):
            peak = max(peak, read_anonymous_memory())

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if peak:
        warning = "" if peak <= budget else "; more than planned, please report it"
        say(f"memory: {_format_size(peak)} at the peak, of {_format_size(budget)} (anonymous){warning}")


def _format_size(count: int) -> str:
    return f"{-(-count // MIB):,} MiB"
