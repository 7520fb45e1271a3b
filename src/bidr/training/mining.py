"""What is looked up once for a stage and kept: codes of the corpus, candidates by the codes, nearest documents."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.data.positives import remove_positives
from bidr.models.corpus_encoding import discard, encode_corpus, encode_rows
from bidr.models.encoder import Encoder
from bidr.quantization import Codebooks
from bidr.quantization.exact_search import top_k, top_k_codes
from bidr.training.losses.teacher import PairTeacher, Teacher, VectorTeacher, teacher_pool
from bidr.training.negatives.false_negatives import judged_by_vectors, without_doubtful
from bidr.training.negatives.proximity_graph import ProximityGraph, build_graph
from bidr.training.negatives.samplers import LocalBatches, Plan, RandomBatches, Refreshed, Sampler, locality
from bidr.training.run import Observe, Workshop
from bidr.utils.array_types import Rows
from bidr.utils.progress import say

DOCUMENTS_PER_HOP, LEAST_HOPS = 2_000, 10
TEACHER = "teacher.npy"


class Sparse(NamedTuple):
    """The side that stays in RAM: an encoder, and what its vectors are coded with. `name`: the stage that made it."""

    encoder: Encoder
    codebooks: Codebooks
    name: str = "sparse"


def corpus_codes(shop: Workshop, side: Sparse) -> npt.NDArray[Any]:
    """The codes of the whole corpus."""
    path = shop.folder / side.name / "codes.npy"
    return np.asarray(shop.encode_corpus(side.encoder, path, "encode into codes", side.codebooks))


def train_candidates(shop: Workshop, side: Sparse) -> Rows:
    """What the codes bring up for every train query, its positives (and what may be unlabelled ones) left out."""
    codes = corpus_codes(shop, side)

    def make() -> npt.NDArray[Any]:
        say("candidates of the train queries by the codes")
        queries = encode_rows(side.encoder, shop.material.train.tokens)
        depth = shop.config.dense.depth
        found = top_k_codes(queries, side.codebooks, codes, depth, device=shop.device).rows
        kept = remove_positives(found, shop.material.train.pairs)
        if shop.config.negatives.margin is not None:
            path = shop.folder / "mined" / "judge.npy"
            vectors = encode_corpus(side.encoder, shop.material.documents, path, label="encode to judge candidates")
            kept = _filtered(shop, kept, queries, vectors, name)
            discard(path)
        return kept.astype(np.int32)

    filtered = shop.config.negatives
    judged = "" if filtered.margin is None else f"+margin={filtered.margin}+{filtered.judge}"
    name = _beside("candidates", side) + judged
    return shop.kept(name, make)


def dev_candidates(shop: Workshop, side: Sparse) -> Rows:
    """What the codes bring up for every dev query, as places in the probe's part of the corpus."""
    codes, queries = corpus_codes(shop, side)[shop.probe.rows], shop.probe.queries(side.encoder)
    return top_k_codes(queries, side.codebooks, codes, shop.config.candidates, device=shop.device).rows


def neighbours(shop: Workshop, encoder: Encoder, name: str) -> Rows:
    """The nearest documents of every train query by an encoder's own vectors, kept under a name."""

    def make() -> npt.NDArray[Any]:
        say("nearest documents of the train queries, for mined negatives")
        path = shop.folder / "mined" / "vectors.npy"
        vectors = encode_corpus(encoder, shop.material.documents, path, label="encode for mining")
        queries = encode_rows(encoder, shop.material.train.tokens)
        found = top_k(queries, vectors, shop.config.dense.depth, device=shop.device).rows
        kept = _filtered(shop, remove_positives(found, shop.material.train.pairs), queries, vectors, name)
        discard(path)
        return kept.astype(np.int32)

    return shop.kept(name, make)


def _filtered(shop: Workshop, found: Rows, queries: npt.NDArray[Any], vectors: npt.NDArray[Any], name: str) -> Rows:
    """Mined documents without those that may be unlabelled answers, where that is asked for."""
    config, pairs = shop.config.negatives, shop.material.train.pairs
    if config.margin is None:
        return found
    if config.judge == "teacher":
        found, judged = teacher_pool(shop, found, name)
    else:
        judged = judged_by_vectors(found, pairs, queries, vectors)
    kept = without_doubtful(found, judged, pairs, config.margin)
    before, after = int((found >= 0).sum()), int((kept >= 0).sum())
    say(f"{1 - after / max(before, 1):.1%} of the mined negatives left out: too near to the positives")
    return kept


def conventional_batches(shop: Workshop, encoder: Encoder, first: Encoder) -> Sampler:
    """Batches of the conventional way: its negatives come from words, from the encoder it began with (`first`), or
    from the encoder as it learns."""
    config = shop.config.conventional
    if config.negatives in ("in-batch", "bm25"):
        return shop.random_batches("bm25" if config.negatives == "bm25" else "in-batch")
    if config.negatives.startswith("mined"):
        return shop.pool_batches(neighbours(shop, first, shop.name("neighbours")))
    stage = shop.name("conventional")
    return Refreshed(
        shop.pool_batches, lambda number: neighbours(shop, encoder, f"{stage}-{number}"), every=config.refresh
    )


def sparse_batches(shop: Workshop, first: Encoder) -> tuple[RandomBatches, Teacher | None]:
    """Batches of the sparse stage, which begins with the encoder `first`, and who teaches it."""
    config = shop.config
    pool: Rows | None = None
    name = shop.name("nearest" if config.method == "conventional" else "neighbours")
    if config.sparse.negatives == "mined" or config.distil.source == "teacher":
        pool = neighbours(shop, first, name)
    if config.distil.source == "teacher":
        pool, judged = teacher_pool(shop, np.asarray(pool), name)
        return shop.pool_batches(pool), PairTeacher(pool, judged, shop.material.train.pairs, config.distil.scale)
    batches = shop.random_batches(config.sparse.negatives) if pool is None else shop.pool_batches(pool)
    if config.distil.source == "none":
        return batches, None
    path = shop.folder / shop.name("sparse") / TEACHER
    vectors = shop.encode_corpus(first, path, "encode for the teacher")
    queries = encode_rows(first, shop.material.train.tokens)
    return batches, VectorTeacher(queries, vectors, config.distil.scale * shop.scale)


def dense_batches(shop: Workshop, side: Sparse, sampler: str) -> tuple[Sampler, Observe]:
    """How the dense stage's batches are collected, and what to log of them."""
    config, size = shop.config.dense, shop.config.dense.batch_size or shop.config.batch_size
    if sampler == "in-batch":
        return shop.random_batches("in-batch", size), lambda epoch, plan: {}
    found, pairs = train_candidates(shop, side), shop.material.train.pairs
    if sampler.startswith("mined"):
        return shop.pool_batches(found, size), lambda epoch, plan: {}
    documents = len(shop.material.documents)
    hops = config.hops or min(config.depth, max(LEAST_HOPS, documents // DOCUMENTS_PER_HOP))
    graph = build_graph(found, pairs, documents, backward=(0, hops))
    batches = LocalBatches(graph, pairs, size, shop.config.seed, sampler, hops)
    return batches, lambda epoch, plan: locality_of(plan, graph)


def locality_of(plan: Plan, graph: ProximityGraph) -> dict[str, float]:
    """Locality falls towards an epoch's end, when what is unvisited lies scattered: say how far."""
    shares = locality(plan, graph)
    quarter = max(1, len(shares) // 4)
    return {
        "locality_first_quarter": float(shares[:quarter].mean()),
        "locality_last_quarter": float(shares[-quarter:].mean()),
        "restarts": float(plan.restarts),
    }


def _beside(name: str, side: Sparse) -> str:
    """An array's name among those of other sides' codes."""
    return name + side.name.removeprefix("sparse")
