"""How fast this machine builds each part of an index: the real steps, on some thousand vectors, by one core.

Measured in a process of its own: only a fresh one can be told to use one core.
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

from bidr.data.vector_source import VectorSource, advise_dontneed, open_vectors
from bidr.errors import BidrError, ConfigError
from bidr.index.builder import block_centroids as coding
from bidr.index.builder import coarse_clustering as clusters
from bidr.index.builder import reorder as arrange
from bidr.index.builder.build import build_index
from bidr.index.builder.cluster_input import DecodedCodes, VectorInput
from bidr.index.builder.journal import WorkFolder, release_pages
from bidr.index.builder.partitioning import sample_input
from bidr.index.cost_model.build_time import BROUGHT, LOOKED_THROUGH, Rates, halvings
from bidr.index.engines.block_centroids import TRAINING_BLOCKS
from bidr.index.engines.graph import build as linking
from bidr.index.engines.graph.engine import get_candidate_count
from bidr.index.engines.pshufb import BLOCK
from bidr.index.lexical.size_estimate import measure_lexical_size
from bidr.index.types import EF_CONSTRUCTION
from bidr.planning.synthetic import made_documents, made_vectors
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.kmeans import add_rows
from bidr.quantization.opq import encode_blocks
from bidr.quantization.pq_training import FIT_ROWS, fit_pq
from bidr.utils.array_types import Codes
from bidr.utils.progress import hide_progress, say
from bidr.utils.step_timer import StepTime, record_steps

# As many as links are chosen from, and a few more; what takes long is done with some of them, in turns.
DOCUMENTS, PASSES = LOOKED_THROUGH + 1_000, 3
IN_A_PASS = DOCUMENTS // PASSES
FEW_ROUNDS, FIT_ROUNDS = 2, 20
COMPILED, FEW_CLUSTERS, LISTS = 600, 64, 2_048
SMALL, LARGE = 100, 4_100
RANGES, PACKED, PIECES, STRETCHES = 5, 2_048, 20_000, 1_024
NEAR = get_candidate_count(EF_CONSTRUCTION)
SPLIT = 500
ONE_CORE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


class Asked(NamedTuple):
    """What will be built (see `plan.Corpus`). vectors: a file to take a sample of; by default they are made."""

    dim: int
    code_bytes: int
    bits: list[int]
    stored: Any = "fp16"
    stored_dims: int | None = None
    id_bytes: float | None = 12
    text_bytes: float | None = 1_000
    lexical: bool = False
    vectors: str | None = None


class Measured(NamedTuple):
    """Rates by the bits of a codeword, of which processor they are, and how long measuring took."""

    rates: dict[int, Rates]
    processor: str
    seconds: float


def measure(asked: Asked) -> Measured:
    """Rates of one core of this machine, in about half a minute."""
    if asked.vectors is not None:
        _check(open_vectors(asked.vectors, asked.vectors, "cosine"), asked.dim)
    say("measuring how fast this machine builds, about half a minute")
    started = time.monotonic()
    one_core = os.environ | dict.fromkeys(ONE_CORE, "1")
    command = [sys.executable, "-m", "bidr.planning.calibration", json.dumps(asked)]
    found = subprocess.run(command, env=one_core, capture_output=True, text=True, check=False)
    if found.returncode:
        last = (found.stderr.strip().splitlines() or [f"it ended with {found.returncode}"])[-1]
        raise BidrError(f"measure: the steps of a build failed ({last}); plan without it")
    rates = {int(bits): Rates(*own) for bits, own in json.loads(found.stdout).items()}
    return Measured(rates, processor(), time.monotonic() - started)


def _check(rows: VectorSource, dim: int) -> None:
    if rows.dim != dim:
        raise ConfigError(f"dim: given {dim}, but {rows.name} has {rows.dim} dimensions; give --dim {rows.dim}")
    if len(rows) < DOCUMENTS:
        raise ConfigError(
            f"vectors: {rows.name} has {len(rows):,}, expected {DOCUMENTS:,} or more to measure on; leave it out, and "
            "some are made"
        )


def processor() -> str:
    """What this machine calls its processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "this machine")


def measure_here(asked: Asked) -> dict[int, Rates]:
    """The same in this process, which should use one core alone."""
    with tempfile.TemporaryDirectory(prefix="bidr-rates-") as name, hide_progress():
        source = _vectors(Path(name) / "vectors.npy", asked)
        _compile(asked, source)
        ready = {bits: _ready(source, asked.code_bytes * 8 // bits, 1 << bits) for bits in asked.bits}
        # In turns: what others do on this machine is in all rates alike.
        found = [{bits: _pass(own, number) for bits, own in ready.items()} for number in range(PASSES)]
        once = _writing(asked, next(iter(ready.values())), source)
        once |= {"finding": _finding(Path(name) / "stretches", source.dim), "row_bytes": float(source.array.strides[0])}
        means = {bits: {rate: fmean(each[bits][rate] for each in found) for rate in found[0][bits]} for bits in ready}
        return {bits: Rates(**own.known, **means[bits], **once) for bits, own in ready.items()}


class _Ready(NamedTuple):
    """Documents as codes, as given and as they stand in a graph, what was noted of some, and what is known by then.

    source, unfitted: what codebooks are fitted to, and what that takes without any round.
    """

    codebooks: Codebooks
    source: VectorSource
    unfitted: float
    codes: Codes
    placed: Codes
    noted: linking.LinkCandidates
    known: dict[str, float]


def _compile(asked: Asked, source: VectorSource) -> None:
    """Have ready all that is compiled or brought in when it is first used."""
    some, names = source[:COMPILED], _names(asked, COMPILED)
    codebooks = fit_pq(some, 1, 16, iterations=1)
    with tempfile.TemporaryDirectory(prefix="bidr-rates-") as folder:
        build_index(folder, codebooks=codebooks, codes=codebooks.encode(some), vectors=some, engine="hnsw", **names)


def _ready(source: VectorSource, books: int, words: int) -> _Ready:
    codebooks = _fitted(source, books, words, FEW_ROUNDS)
    none, _ = _took(lambda: _fitted(source, books, words, 0))  # not first: new memory would be counted ten times
    spent, codes = _took(lambda: _coded(codebooks, source))
    found = clusters.cluster_documents(codebooks, codes, FEW_CLUSTERS)
    placed = codes[np.concatenate(list(arrange.order_for_graph(DecodedCodes(codebooks, codes), found)))]
    noted = np.concatenate(list(linking.choose_links(codebooks, placed[:PACKED], NEAR)))
    return _Ready(codebooks, source, none, codes, placed, noted, {"coding": spent / len(source)})


def _fitted(source: VectorSource, books: int, words: int, rounds: int) -> Codebooks:
    return fit_pq(source.gather(np.arange(FIT_ROWS)), books, words, iterations=rounds)


def _pass(ready: _Ready, number: int) -> dict[str, float]:
    """What some of the documents take, others in every pass; and some of the rounds of a fit."""
    codebooks, mine = ready.codebooks, slice(number * IN_A_PASS, (number + 1) * IN_A_PASS)
    spent, _ = _took(lambda: _fitted(ready.source, codebooks.books, codebooks.words, FEW_ROUNDS))
    found = {"fitting": ready.unfitted + (spent - ready.unfitted) * FIT_ROUNDS / FEW_ROUNDS}
    decoded = DecodedCodes(codebooks, ready.codes[mine])
    _looked_at(decoded)  # which asks for memory, as a build does once
    turning, _ = _took(partial(_looked_at, decoded))
    found |= {"turning": turning / IN_A_PASS} | _reading(ready.source, mine)
    own = VectorInput(ready.source[mine])
    return found | _clustering(own) | _arranging(own) | _averaging(own) | _linking(ready, number)


def _vectors(path: Path, asked: Asked) -> VectorSource:
    """A file of DOCUMENTS vectors, of the type of those that are given."""
    if asked.vectors is not None:
        rows = open_vectors(asked.vectors, asked.vectors, "cosine").array
        np.save(path, np.asarray(rows[np.linspace(0, len(rows) - 1, DOCUMENTS).astype(np.int64)]))
    else:
        np.save(path, made_vectors(DOCUMENTS, asked.dim))
    return open_vectors(path, "vectors", "cosine")


def _coded(codebooks: Codebooks, rows: VectorSource) -> Codes:
    def blocks() -> Iterator[Codes]:
        for block in encode_blocks(codebooks, rows):
            yield block
            advise_dontneed(rows.array)

    return np.concatenate(list(blocks()))


def _looked_at(source: VectorInput) -> None:
    for _ in source.iter_blocks():
        release_pages(source.array)


def _reading(rows: VectorSource, mine: slice) -> dict[str, float]:
    """Of a file, as lists are divided by it; and for the sample of k-means."""
    own = VectorInput(VectorSource(rows.array[mine], rows.name, rows.metric))
    reading, _ = _took(lambda: _looked_at(own))
    with tempfile.TemporaryDirectory(prefix="bidr-rates-") as folder:
        sampling, _ = _took(lambda: sample_input(WorkFolder(Path(folder), resumable=False), own, len(own), []))
    return {"reading": reading / len(own), "sampling": sampling / len(own)}


def _clustering(own: VectorInput) -> dict[str, float]:
    begun = clusters.start_round(0, own[:LISTS])
    comparing, near = _took(lambda: [of[:, None] for of in clusters.assign_clusters(own, begun.centroids)])
    add, blocks = partial(add_rows, begun.sums[None], begun.sizes[None]), [block for _, block in own.iter_blocks()]
    summing, _ = _took(lambda: list(map(add, blocks, near)))
    return {"comparing": comparing / len(own) / len(begun.centroids), "summing": summing / len(own)}


def _arranging(own: VectorInput) -> dict[str, float]:
    """With small clusters and with large ones: what dividing them takes each time, and a document besides."""
    small, large = (_arranged(own, size) for size in (SMALL, LARGE))
    found = {}
    for way, (once, again, part) in enumerate((("grouping", "halving", arrange.GROUP), ("blocking", "parting", BLOCK))):
        few, many = halvings(SMALL, part), halvings(LARGE, part)
        found[again] = max(0.0, (large[way] - small[way]) / (many - few))
        found[once] = max(0.0, small[way] - few * found[again])
    return found


def _arranged(own: VectorInput, size: int) -> list[float]:
    offsets, order = np.arange(0, len(own), size), np.arange(len(own))
    grouped = clusters.Clusters(own[: len(offsets) - 1], offsets, order)
    near, _ = _took(lambda: list(arrange.order_for_graph(own, grouped)))
    blocked, _ = _took(lambda: list(arrange.order_in_blocks(own, offsets, order, BLOCK)))
    return [near / int(offsets[-1]), blocked / int(offsets[-1])]


def _averaging(own: VectorInput) -> dict[str, float]:
    coder = coding.BlockCentroidQuantizer(own.array.shape[1])
    fitting, _ = _took(partial(coder.fit, own[:TRAINING_BLOCKS]))
    averaging, _ = _took(
        lambda: [coder.encode(coding.compute_block_centroids(block)) for _, block in own.iter_blocks()]
    )
    return {"words_of_means": fitting, "averaging": averaging / len(own)}


def _linking(ready: _Ready, number: int) -> dict[str, float]:
    codebooks, first = ready.codebooks, number * RANGES * linking.ROWS_PER_RANGE // arrange.GROUP
    choosing = linking.choose_links(codebooks, ready.placed, NEAR, first)
    next(choosing)  # which has made the means of all pieces
    chosen, _ = _took(lambda: [next(choosing) for _ in range(RANGES)])
    packing, _ = _took(lambda: list(linking.pack_links(ready.noted)))
    means = np.random.default_rng(0).standard_normal((PIECES, codebooks.dim), dtype=np.float32)
    looks = [np.arange(at, at + linking.ROWS_PER_RANGE // arrange.PIECE) for at in range(RANGES)]
    pieces, _ = _took(lambda: [linking.select_pieces(means, mine, PIECES // 8) for mine in looks])
    return {
        "linking": chosen / (RANGES * linking.ROWS_PER_RANGE),
        "packing": packing / PACKED,
        "piecing": pieces / (RANGES * PIECES),
    }


def _writing(asked: Asked, ready: _Ready, source: VectorSource) -> dict[str, float]:
    """What a small index takes; clusters of it are few, and their time is not looked at."""
    how = {"stored": asked.stored, "dims": asked.stored_dims, "unit": True, "engine": "scan"}
    names = _names(asked, DOCUMENTS)
    postings = measure_lexical_size(each.text for each in names.get("documents", ())[:SPLIT]).postings
    with tempfile.TemporaryDirectory(prefix="bidr-rates-") as folder, record_steps() as spent:
        build_index(folder, codebooks=ready.codebooks, codes=ready.codes, vectors=source, **how, **names)  # type: ignore[arg-type]
    steps = {"ordering": "order", "placing": "codes", "writing": "vectors", "naming": "names", "splitting": "words"}
    rates = {rate: spent.get(step, StepTime()).cpu / DOCUMENTS for rate, step in steps.items()}
    return rates | {"splitting": rates["splitting"] / max(1.0, postings)}


def _names(asked: Asked, count: int) -> dict[str, Any]:
    """Ids or documents, of the sizes that are asked for."""
    documents = made_documents(count, round(asked.text_bytes or 0), max(1, round(asked.id_bytes or 12)))
    if asked.text_bytes is not None:
        return {"documents": documents, "lexical": "prepend" if asked.lexical else None}
    return {} if asked.id_bytes is None else {"ids": [document.id for document in documents]}


def _finding(path: Path, dim: int) -> float:
    """What a stretch of a mapped file takes that is looked at first, beyond its rows."""
    width = BROUGHT // 4
    np.zeros((STRETCHES, width), dtype=np.float32).tofile(path)
    mapped, spent = np.memmap(path, np.float32, "r", shape=(STRETCHES, width)), 0.0

    def looked() -> None:
        np.array(mapped[:, :dim])  # not held: new memory for the next would count too

    for turn in range(8):
        first = _took(looked)[0] + _took(partial(advise_dontneed, mapped))[0]
        looked()
        again, _ = _took(looked)
        advise_dontneed(mapped)
        spent += first - again if turn else 0.0
    return max(0.0, spent) / (7 * STRETCHES)


def _took(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.process_time()
    made = work()
    return time.process_time() - started, made


if __name__ == "__main__":
    asked_for = Asked(*json.loads(sys.argv[1]))
    print(json.dumps({bits: list(rates) for bits, rates in measure_here(asked_for).items()}))
