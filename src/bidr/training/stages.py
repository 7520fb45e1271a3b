"""The stages: warm-up, sparse, dense, unification, and the conventional way to compare with."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.codes import Codebooks, usage
from bidr.codes.exact import top_k, top_k_codes
from bidr.files import write_json
from bidr.model.encode import discard, encode_corpus, encode_rows
from bidr.model.encoder import Encoder
from bidr.model.quantizer import Quantizer
from bidr.negatives.graph import ProximityGraph, build_graph
from bidr.negatives.pairs import Rows, without_positives
from bidr.negatives.samplers import LocalBatches, Plan, Sampler, locality
from bidr.progress import say
from bidr.training.objectives import FixedDocuments, Matching, Quantized, Unified
from bidr.training.probe import ANSWERS_MEASURE, candidates_measure, recall
from bidr.training.workshop import CODEBOOKS, Observe, Workshop

DOCUMENTS_PER_HOP, LEAST_HOPS = 2_000, 10


class Sparse(NamedTuple):
    """The side that stays in RAM: an encoder, and what its vectors are coded with."""

    encoder: Encoder
    codebooks: Codebooks


def warmup(shop: Workshop) -> Encoder:
    """One encoder for queries and documents, told apart from in-batch and lexical negatives."""
    if not shop.finished("warmup"):
        encoder, config = shop.backbone(), shop.config.warmup
        objective = Matching(encoder, shop.material.documents, shop.material.train, shop.scale)
        shop.run(
            "warmup",
            objective,
            shop.random_batches(config.negatives),
            config.epochs,
            lambda: shop.probe.exact(encoder),
            rate=1.0,
        )
    return shop.encoder("warmup")


def sparse(shop: Workshop) -> Sparse:
    """Codes and their encoder, learned with the quantizer in the loop."""
    config = shop.config.sparse
    if not shop.finished("sparse"):
        encoder = warmup(shop)
        quantizer = Quantizer(shop.fit_codebooks(encoder), config.temperature).to(shop.device)
        usual = 1.0 if shop.config.built_in else 20.0
        objective = Quantized(
            encoder,
            quantizer,
            shop.material.documents,
            shop.material.train,
            shop.scale,
            kind=config.loss,
            codebook_rate=usual if config.codebook_rate is None else config.codebook_rate,
        )
        shop.run(
            "sparse",
            objective,
            shop.random_batches(config.negatives),
            config.epochs,
            lambda: shop.probe.both(encoder, quantizer.codebooks(), shop.config.candidates),
            candidates_measure(shop.config.candidates),
            rate=config.rate,
        )
        shop.group.once(lambda: _say_usage(shop, encoder, quantizer.codebooks()))
    return Sparse(shop.encoder("sparse"), Codebooks.load(shop.folder / "sparse" / CODEBOOKS))


def dense(shop: Workshop, sampler: str) -> Encoder:
    """Vectors that tell a query's answer from the candidates that the codes bring up."""
    stage = f"dense-{sampler}"
    if not shop.finished(stage):
        side = sparse(shop)
        starts: dict[str, Callable[[], Encoder]] = {
            "backbone": shop.backbone,
            "warmup": lambda: warmup(shop),
            "sparse": lambda: side.encoder,
        }
        candidates = dev_candidates(shop, side)
        batches, observe = dense_batches(shop, side, sampler)
        encoder = starts[shop.config.dense.start]()
        objective = Matching(encoder, shop.material.documents, shop.material.train, shop.scale)
        shop.run(
            stage,
            objective,
            batches,
            shop.config.dense.epochs,
            lambda: shop.probe.ranked(encoder, candidates),
            observe=observe,
            rate=shop.config.dense.rate,
        )
    return shop.encoder(stage)


def unify(shop: Workshop, sampler: str) -> Encoder:
    """One query encoder for the codes and for the vectors of `dense`; the documents stay as they are."""
    stage, config = f"unify-{sampler}", shop.config.unify
    if not shop.finished(stage):
        side, encoder = sparse(shop), dense(shop, sampler)
        path = shop.folder / stage / "vectors.npy"
        vectors = shop.encode_corpus(encoder, path, "encode for unification")
        codes = corpus_codes(shop, side)
        fixed = FixedDocuments(side.codebooks, codes, vectors, train_candidates(shop, side))
        objective = Unified(
            encoder,
            fixed,
            shop.material.train,
            shop.scale,
            pool=config.pool,
            own=config.own,
            others=config.others,
            dense_weight=config.dense_weight,
        )
        probe = shop.probe

        def validate() -> dict[str, float]:
            queries = probe.queries(encoder)
            candidates = shop.config.candidates
            found = top_k_codes(queries, side.codebooks, codes[probe.rows], candidates, device=shop.device).rows
            return {
                ANSWERS_MEASURE: probe.rank_vectors(queries, vectors, probe.rows[found], found),
                candidates_measure(candidates): recall(found, probe.pairs),
            }

        shop.run(stage, objective, shop.random_batches("in-batch"), config.epochs, validate, rate=config.rate)
        discard(path)
    return shop.encoder(stage)


def conventional(shop: Workshop) -> Sparse:
    """The conventional way: the warm-up's encoder trained on with mined negatives for as many steps as all of the
    method's stages together, then OPQ codes of its vectors."""
    stage, config = "conventional", shop.config
    if not shop.finished(stage):
        encoder = warmup(shop)
        pool = shop.kept("warmup-neighbours", lambda: _mine(shop, encoder))
        objective = Matching(encoder, shop.material.documents, shop.material.train, shop.scale)
        epochs = config.sparse.epochs + config.unify.epochs + dense_epochs(shop)
        batches = shop.pool_batches(pool)
        shop.run(stage, objective, batches, epochs, lambda: shop.probe.exact(encoder), rate=config.dense.rate)
    encoder, path = shop.encoder(stage), shop.folder / stage / CODEBOOKS
    with shop.group.turn():
        if not path.exists():
            shop.fit_codebooks(encoder).save(path)
    return Sparse(encoder, Codebooks.load(path))


def dense_epochs(shop: Workshop) -> int:
    """The dense stage's steps as epochs of batches as large as the other stages'."""
    config, size, queries = shop.config, shop.config.batch_size, len(shop.material.train.pairs)
    steps = config.dense.epochs * -(-queries // (config.dense.batch_size or size))
    return round(steps / -(-queries // size))


def corpus_codes(shop: Workshop, side: Sparse) -> npt.NDArray[Any]:
    """The codes of the whole corpus."""
    path = shop.folder / "sparse" / "codes.npy"
    return np.asarray(shop.encode_corpus(side.encoder, path, "encode into codes", side.codebooks))


def train_candidates(shop: Workshop, side: Sparse) -> Rows:
    """What the codes bring up for every train query, its positives left out."""
    codes = corpus_codes(shop, side)

    def make() -> npt.NDArray[Any]:
        say("candidates of the train queries by the codes")
        queries = encode_rows(side.encoder, shop.material.train.tokens)
        depth = shop.config.dense.depth
        found = top_k_codes(queries, side.codebooks, codes, depth, device=shop.device).rows
        return without_positives(found, shop.material.train.pairs).astype(np.int32)

    return shop.kept("candidates", make)


def dev_candidates(shop: Workshop, side: Sparse) -> Rows:
    """What the codes bring up for every dev query, as places in the probe's part of the corpus."""
    codes, queries = corpus_codes(shop, side)[shop.probe.rows], shop.probe.queries(side.encoder)
    return top_k_codes(queries, side.codebooks, codes, shop.config.candidates, device=shop.device).rows


def dense_batches(shop: Workshop, side: Sparse, sampler: str) -> tuple[Sampler, Observe]:
    """How the dense stage's batches are collected, and what to log of them."""
    if sampler == "in-batch":
        return shop.random_batches("in-batch"), lambda epoch, plan: {}
    found, pairs = train_candidates(shop, side), shop.material.train.pairs
    if sampler == "mined":
        return shop.pool_batches(found), lambda epoch, plan: {}
    config, size = shop.config.dense, shop.config.dense.batch_size or shop.config.batch_size
    documents = len(shop.material.documents)
    hops = config.hops or min(config.depth, max(LEAST_HOPS, documents // DOCUMENTS_PER_HOP))
    graph = build_graph(found, pairs, documents, backward=(0, hops))
    batches = LocalBatches(graph, pairs, size, shop.config.seed, sampler, hops)
    return batches, lambda epoch, plan: _locality(plan, graph)


def _say_usage(shop: Workshop, encoder: Encoder, codebooks: Codebooks) -> None:
    """Codewords that lie idle are bytes that say nothing: a run should show how many do."""
    found = usage(shop.probe.codes(encoder, codebooks), codebooks.words)
    write_json(shop.folder / "sparse" / "usage.json", found._asdict())
    say(
        f"sparse: {found.used:.1%} of the codewords used, entropy {found.entropy_bits:.2f} of {codebooks.bits} bits, "
        f"{found.least_entropy_bits:.2f} in the worst book"
    )


def _locality(plan: Plan, graph: ProximityGraph) -> dict[str, float]:
    """Locality falls towards an epoch's end, when what is unvisited lies scattered: say how far."""
    shares = locality(plan, graph)
    quarter = max(1, len(shares) // 4)
    return {
        "locality_first_quarter": float(shares[:quarter].mean()),
        "locality_last_quarter": float(shares[-quarter:].mean()),
        "restarts": float(plan.restarts),
    }


def _mine(shop: Workshop, encoder: Encoder) -> npt.NDArray[Any]:
    """The nearest documents of every train query by the encoder's own vectors, its positives left out."""
    say("nearest documents of the train queries, for mined negatives")
    path = shop.folder / "mined" / "vectors.npy"
    vectors = encode_corpus(encoder, shop.material.documents, path, label="encode for mining")
    queries = encode_rows(encoder, shop.material.train.tokens)
    found = top_k(queries, vectors, shop.config.dense.depth, device=shop.device).rows
    discard(path)
    return without_positives(found, shop.material.train.pairs).astype(np.int32)
