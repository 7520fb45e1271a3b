"""What is looked up once for a stage and kept: codes of the corpus, candidates by the codes, nearest documents."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.data.positives import remove_positives
from bidr.models.corpus_encoding import discard_encoded, encode_corpus, encode_rows
from bidr.models.encoder import Encoder
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.exact_search import search_codes, search_vectors
from bidr.training.losses.teacher import PairTeacher, Teacher, VectorTeacher, score_teacher_pool
from bidr.training.negatives.false_negatives import drop_false_negatives, score_by_vectors
from bidr.training.negatives.proximity_graph import ProximityGraph, build_graph
from bidr.training.negatives.samplers import (
    EpochPlan,
    LocalitySampler,
    RandomSampler,
    RefreshedSampler,
    Sampler,
    measure_locality,
)
from bidr.training.run import Observe, TrainingRun
from bidr.utils.array_types import Rows
from bidr.utils.progress import say

DOCUMENTS_PER_HOP, LEAST_HOPS = 2_000, 10
TEACHER = "teacher.npy"


class CodedEncoder(NamedTuple):
    """The side that stays in RAM: an encoder, and what its vectors are coded with. `name`: the stage that made it."""

    encoder: Encoder
    codebooks: Codebooks
    name: str = "sparse"


def encode_corpus_codes(run: TrainingRun, side: CodedEncoder) -> npt.NDArray[Any]:
    """The codes of the whole corpus."""
    path = run.folder / side.name / "codes.npy"
    return np.asarray(run.encode_corpus(side.encoder, path, "encode into codes", side.codebooks))


def mine_train_candidates(run: TrainingRun, side: CodedEncoder) -> Rows:
    """What the codes bring up for every train query, its positives (and what may be unlabelled ones) left out."""
    codes = encode_corpus_codes(run, side)

    def make() -> npt.NDArray[Any]:
        say("candidates of the train queries by the codes")
        queries = encode_rows(side.encoder, run.data.train.tokens)
        depth = run.config.dense.depth
        found = search_codes(queries, side.codebooks, codes, depth, device=run.device).rows
        kept = remove_positives(found, run.data.train.pairs)
        if run.config.negatives.margin is not None:
            path = run.folder / "mined" / "judge.npy"
            vectors = encode_corpus(side.encoder, run.data.documents, path, label="encode to judge candidates")
            kept = _filtered(run, kept, queries, vectors, name)
            discard_encoded(path)
        return kept.astype(np.int32)

    filtered = run.config.negatives
    judged = "" if filtered.margin is None else f"+margin={filtered.margin}+{filtered.judge}"
    name = _beside("candidates", side) + judged
    return run.cache_array(name, make)


def search_dev_candidates(run: TrainingRun, side: CodedEncoder) -> Rows:
    """What the codes bring up for every dev query, as places in the probe's part of the corpus."""
    codes, queries = encode_corpus_codes(run, side)[run.validator.rows], run.validator.encode_queries(side.encoder)
    return search_codes(queries, side.codebooks, codes, run.config.candidates, device=run.device).rows


def mine_nearest_documents(run: TrainingRun, encoder: Encoder, name: str) -> Rows:
    """The nearest documents of every train query by an encoder's own vectors, kept under a name."""

    def make() -> npt.NDArray[Any]:
        say("nearest documents of the train queries, for mined negatives")
        path = run.folder / "mined" / "vectors.npy"
        vectors = encode_corpus(encoder, run.data.documents, path, label="encode for mining")
        queries = encode_rows(encoder, run.data.train.tokens)
        found = search_vectors(queries, vectors, run.config.dense.depth, device=run.device).rows
        kept = _filtered(run, remove_positives(found, run.data.train.pairs), queries, vectors, name)
        discard_encoded(path)
        return kept.astype(np.int32)

    return run.cache_array(name, make)


def _filtered(run: TrainingRun, found: Rows, queries: npt.NDArray[Any], vectors: npt.NDArray[Any], name: str) -> Rows:
    """Mined documents without those that may be unlabelled answers, where that is asked for."""
    config, pairs = run.config.negatives, run.data.train.pairs
    if config.margin is None:
        return found
    if config.judge == "teacher":
        found, judged = score_teacher_pool(run, found, name)
    else:
        judged = score_by_vectors(found, pairs, queries, vectors)
    kept = drop_false_negatives(found, judged, pairs, config.margin)
    before, after = int((found >= 0).sum()), int((kept >= 0).sum())
    say(f"{1 - after / max(before, 1):.1%} of the mined negatives left out: too near to the positives")
    return kept


def make_conventional_sampler(run: TrainingRun, encoder: Encoder, first: Encoder) -> Sampler:
    """Batches of the conventional way: its negatives come from words, from the encoder it began with (`first`), or
    from the encoder as it learns."""
    config = run.config.conventional
    if config.negatives in ("in-batch", "bm25"):
        return run.make_random_sampler("bm25" if config.negatives == "bm25" else "in-batch")
    if config.negatives.startswith("mined"):
        return run.make_pool_sampler(mine_nearest_documents(run, first, run.get_stage_name("neighbours")))
    stage = run.get_stage_name("conventional")
    return RefreshedSampler(
        run.make_pool_sampler,
        lambda number: mine_nearest_documents(run, encoder, f"{stage}-{number}"),
        every=config.refresh,
    )


def make_sparse_sampler(run: TrainingRun, first: Encoder) -> tuple[RandomSampler, Teacher | None]:
    """Batches of the sparse stage, which begins with the encoder `first`, and who teaches it."""
    config = run.config
    pool: Rows | None = None
    name = run.get_stage_name("nearest" if config.method == "conventional" else "neighbours")
    if config.sparse.negatives == "mined" or config.distil.source == "teacher":
        pool = mine_nearest_documents(run, first, name)
    if config.distil.source == "teacher":
        pool, judged = score_teacher_pool(run, np.asarray(pool), name)
        return run.make_pool_sampler(pool), PairTeacher(pool, judged, run.data.train.pairs, config.distil.scale)
    batches = run.make_random_sampler(config.sparse.negatives) if pool is None else run.make_pool_sampler(pool)
    if config.distil.source == "none":
        return batches, None
    path = run.folder / run.get_stage_name("sparse") / TEACHER
    vectors = run.encode_corpus(first, path, "encode for the teacher")
    queries = encode_rows(first, run.data.train.tokens)
    return batches, VectorTeacher(queries, vectors, config.distil.scale * run.scale)


def make_dense_sampler(run: TrainingRun, side: CodedEncoder, sampler: str) -> tuple[Sampler, Observe]:
    """How the dense stage's batches are collected, and what to log of them."""
    config, size = run.config.dense, run.config.dense.batch_size or run.config.batch_size
    if sampler == "in-batch":
        return run.make_random_sampler("in-batch", size), lambda epoch, plan: {}
    found, pairs = mine_train_candidates(run, side), run.data.train.pairs
    if sampler.startswith("mined"):
        return run.make_pool_sampler(found, size), lambda epoch, plan: {}
    documents = len(run.data.documents)
    hops = config.hops or min(config.depth, max(LEAST_HOPS, documents // DOCUMENTS_PER_HOP))
    graph = build_graph(found, pairs, documents, backward=(0, hops))
    batches = LocalitySampler(graph, pairs, size, run.config.seed, sampler, hops)
    return batches, lambda epoch, plan: describe_locality(plan, graph)


def describe_locality(plan: EpochPlan, graph: ProximityGraph) -> dict[str, float]:
    """Locality falls towards an epoch's end, when what is unvisited lies scattered: say how far."""
    shares = measure_locality(plan, graph)
    quarter = max(1, len(shares) // 4)
    return {
        "locality_first_quarter": float(shares[:quarter].mean()),
        "locality_last_quarter": float(shares[-quarter:].mean()),
        "restarts": float(plan.restarts),
    }


def _beside(name: str, side: CodedEncoder) -> str:
    """An array's name among those of other sides' codes."""
    return name + side.name.removeprefix("sparse")
