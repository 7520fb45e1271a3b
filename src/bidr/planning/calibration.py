"""Calibrate the rates of index builds on this machine, by running their steps on some thousand vectors.

Runs in a process of its own, because only a fresh process can be limited to one core.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from bidr.data.types import Document
from bidr.data.vector_source import VectorSource, advise_dontneed, open_vectors
from bidr.errors import BidrError, ConfigError
from bidr.index.builder import block_centroid_builder, coarse_clustering, reorder
from bidr.index.builder.build import build_index
from bidr.index.builder.clustering_vectors import DecodedCodes, VectorInput
from bidr.index.builder.journal import WorkFolder, release_pages
from bidr.index.builder.partitioning import sample_input
from bidr.index.candidate_source import EF_CONSTRUCTION
from bidr.index.cost_model.build_time import FAULT_AROUND_BYTES, LINK_CANDIDATES, Rates, count_bisections
from bidr.index.engines.block_centroids import TRAINING_BLOCKS
from bidr.index.engines.fast_scan_kernels import BLOCK
from bidr.index.engines.graph import construction as graph_build
from bidr.index.engines.graph.engine import get_candidate_count
from bidr.index.lexical.size_estimate import measure_lexical_size
from bidr.planning.synthetic import make_documents, make_vectors
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.kmeans import add_rows
from bidr.quantization.opq_config import encode_blocks
from bidr.quantization.pq_training import FIT_ROWS, fit_pq
from bidr.utils.array_types import Codes
from bidr.utils.progress import hide_progress, say
from bidr.utils.step_timer import StepTime, record_steps

# More than the candidates for links of a document; slow steps run on a part of them in each pass.
DOCUMENTS, PASSES = LINK_CANDIDATES + 1_000, 3
DOCUMENTS_PER_PASS = DOCUMENTS // PASSES
FEW_ROUNDS, FIT_ROUNDS = 2, 20
WARM_UP_ROWS, FEW_CLUSTERS, LISTS = 600, 64, 2_048
SMALL_CLUSTER, LARGE_CLUSTER = 100, 4_100
RANGES, PACKED_GROUPS, PIECES, PAGES = 5, 2_048, 20_000, 1_024
CANDIDATES = get_candidate_count(EF_CONSTRUCTION)
ANALYZED_TEXTS = 500
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


class CalibrationConfig(NamedTuple):
    """The planned index (see `plan.CorpusSpec`). vectors: a file to sample; default: synthetic vectors."""

    dim: int
    code_bytes: int
    bits: list[int]
    stored: Any = "fp16"
    stored_dims: int | None = None
    id_bytes: float | None = 12
    text_bytes: float | None = 1_000
    lexical: bool = False
    vectors: str | None = None


class MachineRates(NamedTuple):
    """Rates by the bits of a code, the processor, and the duration of the calibration."""

    rates: dict[int, Rates]
    processor: str
    seconds: float


def calibrate(config: CalibrationConfig) -> MachineRates:
    """Measure the rates of one core of this machine, in about half a minute."""
    if config.vectors is not None:
        _check_vectors(open_vectors(config.vectors, config.vectors, "cosine"), config.dim)
    say("measuring how fast this machine builds, about half a minute")
    start = time.monotonic()
    environment = os.environ | dict.fromkeys(THREAD_VARIABLES, "1")
    command = [sys.executable, "-m", "bidr.planning.calibration", json.dumps(config)]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if process.returncode:
        last = (process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        raise BidrError(f"measure: the steps of a build failed ({last}); plan without it")
    rates = {int(bits): Rates(*values) for bits, values in json.loads(process.stdout).items()}
    return MachineRates(rates, read_cpu_model(), time.monotonic() - start)


def _check_vectors(rows: VectorSource, dim: int) -> None:
    if rows.dim != dim:
        raise ConfigError(f"dim: given {dim}, but {rows.name} has {rows.dim} dimensions; give --dim {rows.dim}")
    if len(rows) < DOCUMENTS:
        raise ConfigError(
            f"vectors: {rows.name} has {len(rows):,}, expected {DOCUMENTS:,} or more to measure on; leave it out to "
            "use synthetic vectors"
        )


def read_cpu_model() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "this machine")


def calibrate_in_process(config: CalibrationConfig) -> dict[int, Rates]:
    """Measure the rates in this process, which should be limited to one core."""
    with tempfile.TemporaryDirectory(prefix="bidr-rates-") as name, hide_progress():
        source = _save_vectors(Path(name) / "vectors.npy", config)
        _compile_kernels(config, source)
        fixtures = {bits: _prepare(source, config.code_bytes * 8 // bits, 1 << bits) for bits in config.bits}
        # Interleaved passes: other load on this machine affects all rates alike.
        passes = [
            {bits: _measure_pass(fixture, number) for bits, fixture in fixtures.items()} for number in range(PASSES)
        ]
        shared = _measure_writing(config, next(iter(fixtures.values())), source)
        shared["finding"] = _measure_page_fault(Path(name) / "pages", source.dim)
        shared["row_bytes"] = float(source.dim * source.array.dtype.itemsize)
        names = passes[0][config.bits[0]]
        means = {bits: {name: fmean(rates[bits][name] for rates in passes) for name in names} for bits in fixtures}
        return {bits: Rates(**fixture.rates, **means[bits], **shared) for bits, fixture in fixtures.items()}


class _Fixture(NamedTuple):
    """Inputs of the measured steps.

    source, setup_seconds: training vectors of the codebooks, and the time of training without any round.
    codes, ordered_codes: in input order, and in the order of a graph; links: of some of the documents.
    rates: those measured while preparing.
    """

    codebooks: Codebooks
    source: VectorSource
    setup_seconds: float
    codes: Codes
    ordered_codes: Codes
    links: graph_build.LinkCandidates
    rates: dict[str, float]


def _compile_kernels(config: CalibrationConfig, source: VectorSource) -> None:
    """Compile and import everything that the first use would."""
    rows, documents = source[:WARM_UP_ROWS], _make_document_options(config, WARM_UP_ROWS)
    codebooks = fit_pq(rows, 1, 16, iterations=1)
    with tempfile.TemporaryDirectory(prefix="bidr-rates-") as folder:
        build_index(folder, codebooks=codebooks, codes=codebooks.encode(rows), vectors=rows, engine="hnsw", **documents)


def _prepare(source: VectorSource, books: int, codewords: int) -> _Fixture:
    codebooks = _train(source, books, codewords, FEW_ROUNDS)
    # Not first: the time of allocating memory would be counted for each of the rounds.
    setup, _ = _time(lambda: _train(source, books, codewords, 0))
    encoding, codes = _time(lambda: _encode(codebooks, source))
    clusters = coarse_clustering.cluster_documents(codebooks, codes, FEW_CLUSTERS)
    ordered = codes[np.concatenate(list(reorder.order_for_graph(DecodedCodes(codebooks, codes), clusters)))]
    links = np.concatenate(list(graph_build.choose_links(codebooks, ordered[:PACKED_GROUPS], CANDIDATES)))
    return _Fixture(codebooks, source, setup, codes, ordered, links, {"coding": encoding / len(source)})


def _train(source: VectorSource, books: int, codewords: int, rounds: int) -> Codebooks:
    return fit_pq(source.gather(np.arange(FIT_ROWS)), books, codewords, iterations=rounds)


def _measure_pass(fixture: _Fixture, number: int) -> dict[str, float]:
    """Measure the steps on one part of the documents, and some of the rounds of training."""
    codebooks, part = fixture.codebooks, slice(number * DOCUMENTS_PER_PASS, (number + 1) * DOCUMENTS_PER_PASS)
    training, _ = _time(lambda: _train(fixture.source, codebooks.books, codebooks.words, FEW_ROUNDS))
    setup = fixture.setup_seconds
    rates = {"fitting": setup + (training - setup) * FIT_ROUNDS / FEW_ROUNDS}
    decoded = DecodedCodes(codebooks, fixture.codes[part])
    _read_blocks(decoded)  # allocates memory, as a build does once
    turning, _ = _time(partial(_read_blocks, decoded))
    rates |= {"turning": turning / DOCUMENTS_PER_PASS} | _measure_reading(fixture.source, part)
    rows = VectorInput(fixture.source[part])
    rates |= _measure_clustering(rows) | _measure_ordering(rows) | _measure_block_centroids(rows)
    return rates | _measure_linking(fixture, number)


def _save_vectors(path: Path, config: CalibrationConfig) -> VectorSource:
    """Write a file of DOCUMENTS vectors, of the type of the given ones."""
    if config.vectors is not None:
        rows = open_vectors(config.vectors, config.vectors, "cosine").array
        np.save(path, np.asarray(rows[np.linspace(0, len(rows) - 1, DOCUMENTS).astype(np.int64)]))
    else:
        np.save(path, make_vectors(DOCUMENTS, config.dim))
    return open_vectors(path, "vectors", "cosine")


def _encode(codebooks: Codebooks, rows: VectorSource) -> Codes:
    def iter_codes() -> Iterator[Codes]:
        for block in encode_blocks(codebooks, rows):
            yield block
            advise_dontneed(rows.array)

    return np.concatenate(list(iter_codes()))


def _read_blocks(source: VectorInput) -> None:
    for _ in source.iter_blocks():
        release_pages(source.array)


def _measure_reading(rows: VectorSource, part: slice) -> dict[str, float]:
    """Measure reading a file, for assignment to lists and for the sample of k-means."""
    source = VectorInput(VectorSource(rows.array[part], rows.name, rows.metric))
    reading, _ = _time(lambda: _read_blocks(source))
    with tempfile.TemporaryDirectory(prefix="bidr-rates-") as folder:
        work = WorkFolder(Path(folder), resumable=False)
        sampling, _ = _time(lambda: sample_input(work, source, len(source), []))
    return {"reading": reading / len(source), "sampling": sampling / len(source)}


def _measure_clustering(rows: VectorInput) -> dict[str, float]:
    state = coarse_clustering.start_round(0, rows[:LISTS])
    comparing, assignments = _time(
        lambda: [block[:, None] for block in coarse_clustering.assign_clusters(rows, state.centroids)]
    )
    add, blocks = partial(add_rows, state.sums[None], state.sizes[None]), [block for _, block in rows.iter_blocks()]
    summing, _ = _time(lambda: list(map(add, blocks, assignments)))
    return {"comparing": comparing / len(rows) / len(state.centroids), "summing": summing / len(rows)}


def _measure_ordering(rows: VectorInput) -> dict[str, float]:
    """Measure with small and with large clusters, to separate the time of a bisection from that of a document."""
    small, large = (_time_ordering(rows, size) for size in (SMALL_CLUSTER, LARGE_CLUSTER))
    rates = {}
    for number, (fixed, bisection, part) in enumerate(
        (("grouping", "halving", reorder.GROUP), ("blocking", "parting", BLOCK))
    ):
        few, many = count_bisections(SMALL_CLUSTER, part), count_bisections(LARGE_CLUSTER, part)
        rates[bisection] = max(0.0, (large[number] - small[number]) / (many - few))
        rates[fixed] = max(0.0, small[number] - few * rates[bisection])
    return rates


def _time_ordering(rows: VectorInput, size: int) -> list[float]:
    offsets, order = np.arange(0, len(rows), size), np.arange(len(rows))
    clusters = coarse_clustering.Clusters(rows[: len(offsets) - 1], offsets, order)
    graph_seconds, _ = _time(lambda: list(reorder.order_for_graph(rows, clusters)))
    block_seconds, _ = _time(lambda: list(reorder.order_in_blocks(rows, offsets, order, BLOCK)))
    return [graph_seconds / int(offsets[-1]), block_seconds / int(offsets[-1])]


def _measure_block_centroids(rows: VectorInput) -> dict[str, float]:
    quantizer = block_centroid_builder.BlockCentroidQuantizer(rows.array.shape[1])
    training, _ = _time(partial(quantizer.fit, rows[:TRAINING_BLOCKS]))

    def encode() -> list[Codes]:
        return [
            quantizer.encode(block_centroid_builder.compute_block_centroids(block)) for _, block in rows.iter_blocks()
        ]

    averaging, _ = _time(encode)
    return {"words_of_means": training, "averaging": averaging / len(rows)}


def _measure_linking(fixture: _Fixture, number: int) -> dict[str, float]:
    codebooks, first = fixture.codebooks, number * RANGES * graph_build.ROWS_PER_RANGE // reorder.GROUP
    ranges = graph_build.choose_links(codebooks, fixture.ordered_codes, CANDIDATES, first)
    next(ranges)  # computes the means of all pieces
    linking, _ = _time(lambda: [next(ranges) for _ in range(RANGES)])
    packing, _ = _time(lambda: list(graph_build.pack_links(fixture.links)))
    means = np.random.default_rng(0).standard_normal((PIECES, codebooks.dim), dtype=np.float32)
    targets = [np.arange(start, start + graph_build.ROWS_PER_RANGE // reorder.PIECE) for start in range(RANGES)]
    piecing, _ = _time(lambda: [graph_build.select_pieces(means, target, PIECES // 8) for target in targets])
    return {
        "linking": linking / (RANGES * graph_build.ROWS_PER_RANGE),
        "packing": packing / PACKED_GROUPS,
        "piecing": piecing / (RANGES * PIECES),
    }


def _measure_writing(config: CalibrationConfig, fixture: _Fixture, source: VectorSource) -> dict[str, float]:
    """Measure a small build, except for its few clusters."""
    options = {"stored": config.stored, "dims": config.stored_dims, "unit": True, "engine": "scan"}
    options |= _make_document_options(config, DOCUMENTS)
    documents: list[Document] = options.get("documents", [])
    postings = measure_lexical_size(document.text for document in documents[:ANALYZED_TEXTS]).postings
    with tempfile.TemporaryDirectory(prefix="bidr-rates-") as folder, record_steps() as times:
        build_index(folder, codebooks=fixture.codebooks, codes=fixture.codes, vectors=source, **options)  # type: ignore[arg-type]
    steps = {"ordering": "order", "placing": "codes", "writing": "vectors", "naming": "names", "splitting": "words"}
    rates = {rate: times.get(step, StepTime()).cpu / DOCUMENTS for rate, step in steps.items()}
    return rates | {"splitting": rates["splitting"] / max(1.0, postings)}


def _make_document_options(config: CalibrationConfig, count: int) -> dict[str, Any]:
    """Return synthetic ids or documents of the configured sizes, as options of `build_index`."""
    documents = make_documents(count, round(config.text_bytes or 0), max(1, round(config.id_bytes or 12)))
    if config.text_bytes is not None:
        return {"documents": documents, "lexical": "prepend" if config.lexical else None}
    return {} if config.id_bytes is None else {"ids": [document.id for document in documents]}


def _measure_page_fault(path: Path, dim: int) -> float:
    """Measure the first access to FAULT_AROUND_BYTES of a mapped file, beyond copying the rows."""
    width = FAULT_AROUND_BYTES // 4
    np.zeros((PAGES, width), dtype=np.float32).tofile(path)
    mapped, seconds = np.memmap(path, np.float32, "r", shape=(PAGES, width)), 0.0

    def read() -> None:
        np.array(mapped[:, :dim])  # freed at once: allocating new memory would be counted too

    for turn in range(8):
        cold = _time(read)[0] + _time(partial(advise_dontneed, mapped))[0]
        read()
        warm, _ = _time(read)
        advise_dontneed(mapped)
        seconds += cold - warm if turn else 0.0
    return max(0.0, seconds) / (7 * PAGES)


def _time(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU seconds of a call, and its result."""
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


if __name__ == "__main__":
    process_config = CalibrationConfig(*json.loads(sys.argv[1]))
    print(json.dumps({bits: list(rates) for bits, rates in calibrate_in_process(process_config).items()}))
