"""Hard-negative mining and samplers of the stages, with cached arrays."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.data.positives import remove_positives
from bidr.models.corpus_encoding import discard_encoded, encode_corpus, encode_rows
from bidr.models.trainable_encoder import Encoder
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
from bidr.training.run_context import Observe, TrainingRun
from bidr.utils.array_types import Rows
from bidr.utils.progress import say

DOCUMENTS_PER_HOP, MIN_HOPS = 2_000, 10
TEACHER_FILE = "teacher.npy"


class CodedEncoder(NamedTuple):
    """An encoder and the codebooks of its vectors; `name`: the stage that made it."""

    encoder: Encoder
    codebooks: Codebooks
    name: str = "sparse"


def encode_corpus_codes(run: TrainingRun, coded: CodedEncoder) -> npt.NDArray[Any]:
    """Encode the corpus into codes."""
    path = run.folder / coded.name / "codes.npy"
    return np.asarray(run.encode_corpus(coded.encoder, path, "encode into codes", coded.codebooks))


def mine_train_candidates(run: TrainingRun, coded: CodedEncoder) -> Rows:
    """Mine each train query's candidates by the codes, without (possible) positives."""
    codes = encode_corpus_codes(run, coded)

    def make() -> npt.NDArray[Any]:
        say("candidates of the train queries by the codes")
        queries = encode_rows(coded.encoder, run.data.train.tokens)
        depth = run.config.dense.depth
        rows = search_codes(queries, coded.codebooks, codes, depth, device=run.device).rows
        negatives = remove_positives(rows, run.data.train.pairs)
        if run.config.negatives.margin is not None:
            path = run.folder / "mined" / "judge.npy"
            vectors = encode_corpus(coded.encoder, run.data.documents, path, label="encode to judge candidates")
            negatives = _apply_margin(run, negatives, queries, vectors, name)
            discard_encoded(path)
        return negatives.astype(np.int32)

    config = run.config.negatives
    suffix = "" if config.margin is None else f"+margin={config.margin}+{config.judge}"
    name = _name_array("candidates", coded) + suffix
    return run.cache_array(name, make)


def search_dev_candidates(run: TrainingRun, coded: CodedEncoder) -> Rows:
    """Search each dev query's candidates by the codes, as positions in the validator's rows."""
    codes, queries = encode_corpus_codes(run, coded)[run.validator.rows], run.validator.encode_queries(coded.encoder)
    return search_codes(queries, coded.codebooks, codes, run.config.candidates, device=run.device).rows


def mine_nearest_documents(run: TrainingRun, encoder: Encoder, name: str) -> Rows:
    """Mine each train query's nearest documents by an encoder's vectors; cached by name."""

    def make() -> npt.NDArray[Any]:
        say("nearest documents of the train queries, for mined negatives")
        path = run.folder / "mined" / "vectors.npy"
        vectors = encode_corpus(encoder, run.data.documents, path, label="encode for mining")
        queries = encode_rows(encoder, run.data.train.tokens)
        rows = search_vectors(queries, vectors, run.config.dense.depth, device=run.device).rows
        negatives = _apply_margin(run, remove_positives(rows, run.data.train.pairs), queries, vectors, name)
        discard_encoded(path)
        return negatives.astype(np.int32)

    return run.cache_array(name, make)


def _apply_margin(
    run: TrainingRun, mined: Rows, queries: npt.NDArray[Any], vectors: npt.NDArray[Any], name: str
) -> Rows:
    """Drop mined documents that may be unlabeled positives, if a margin is set."""
    config, pairs = run.config.negatives, run.data.train.pairs
    if config.margin is None:
        return mined
    if config.judge == "teacher":
        mined, scores = score_teacher_pool(run, mined, name)
    else:
        scores = score_by_vectors(mined, pairs, queries, vectors)
    negatives = drop_false_negatives(mined, scores, pairs, config.margin)
    mined_count, kept_count = int((mined >= 0).sum()), int((negatives >= 0).sum())
    say(f"{1 - kept_count / max(mined_count, 1):.1%} of the mined negatives dropped: too close to a positive")
    return negatives


def make_conventional_sampler(run: TrainingRun, encoder: Encoder, first: Encoder) -> Sampler:
    """Make the conventional stage's sampler: in-batch, BM25, mined once (by `first`) or refreshed negatives."""
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
    """Make the sparse stage's sampler and teacher; `first`: the stage's initial encoder."""
    config = run.config
    pool: Rows | None = None
    name = run.get_stage_name("nearest" if config.method == "conventional" else "neighbours")
    if config.sparse.negatives == "mined" or config.distil.source == "teacher":
        pool = mine_nearest_documents(run, first, name)
    if config.distil.source == "teacher":
        pool, scores = score_teacher_pool(run, np.asarray(pool), name)
        return run.make_pool_sampler(pool), PairTeacher(pool, scores, run.data.train.pairs, config.distil.scale)
    batches = run.make_random_sampler(config.sparse.negatives) if pool is None else run.make_pool_sampler(pool)
    if config.distil.source == "none":
        return batches, None
    path = run.folder / run.get_stage_name("sparse") / TEACHER_FILE
    vectors = run.encode_corpus(first, path, "encode for the teacher")
    queries = encode_rows(first, run.data.train.tokens)
    return batches, VectorTeacher(queries, vectors, config.distil.scale * run.scale)


def make_dense_sampler(run: TrainingRun, coded: CodedEncoder, sampler: str) -> tuple[Sampler, Observe]:
    """Make the dense stage's sampler and the observer of its epoch plans."""
    config, size = run.config.dense, run.config.dense.batch_size or run.config.batch_size
    if sampler == "in-batch":
        return run.make_random_sampler("in-batch", size), lambda epoch, plan: {}
    candidates, pairs = mine_train_candidates(run, coded), run.data.train.pairs
    if sampler.startswith("mined"):
        return run.make_pool_sampler(candidates, size), lambda epoch, plan: {}
    documents = len(run.data.documents)
    is_paper_walk = config.walk == "paper"
    limited_hops = config.hops or min(config.depth, max(MIN_HOPS, documents // DOCUMENTS_PER_HOP))
    hops = config.depth if is_paper_walk else limited_hops
    graph = build_graph(candidates, pairs, documents, forward=(0, config.depth), backward=(0, hops))
    batches = LocalitySampler(graph, pairs, size, run.config.seed, sampler, hops, is_paper_walk=is_paper_walk)
    return batches, lambda epoch, plan: describe_locality(plan, graph)


def describe_locality(plan: EpochPlan, graph: ProximityGraph) -> dict[str, float]:
    """Summarize locality, which falls towards an epoch's end as unvisited queries lie scattered."""
    shares = measure_locality(plan, graph)
    quarter = max(1, len(shares) // 4)
    return {
        "locality_first_quarter": float(shares[:quarter].mean()),
        "locality_last_quarter": float(shares[-quarter:].mean()),
        "restarts": float(plan.restarts),
    }


def _name_array(name: str, coded: CodedEncoder) -> str:
    """Name a cached array after the stage whose codes it comes from."""
    return name + coded.name.removeprefix("sparse")
