"""The stages: warm-up, sparse, dense, unification, and the conventional way to compare with."""

from collections.abc import Callable
from typing import Any, Literal

from bidr.models.corpus_encoding import discard
from bidr.models.encoder import Encoder
from bidr.models.trainable_quantizer import Quantizer, SummedQuantizer
from bidr.quantization import Codebooks, usage
from bidr.quantization.additive_quantizer import summed
from bidr.quantization.exact_search import top_k_codes
from bidr.training.additive_stage import leader_of, learn_summed
from bidr.training.ivf import first_lists, measure_lists
from bidr.training.losses.cropped_queries import crops_of
from bidr.training.losses.distillation import Following
from bidr.training.losses.jpq import LiveCodes
from bidr.training.losses.objectives import CODEBOOKS, Matching, Quantized
from bidr.training.losses.query_unification import FixedDocuments, Unified
from bidr.training.mining import (
    TEACHER,
    Sparse,
    conventional_batches,
    corpus_codes,
    dense_batches,
    dev_candidates,
    neighbours,
    sparse_batches,
    train_candidates,
)
from bidr.training.run import Workshop, given
from bidr.training.validator import ANSWERS_MEASURE, candidates_measure, recall
from bidr.utils.files import write_json
from bidr.utils.progress import say


def warmup(shop: Workshop) -> Encoder:
    """One encoder for queries and documents, told apart from in-batch and lexical negatives."""
    stage = shop.name("warmup")
    if not shop.finished(stage):
        encoder, config = shop.backbone(), shop.config.warmup
        objective = Matching(encoder, shop.material.documents, shop.material.train, shop.scale)
        shop.run(
            stage,
            objective,
            shop.random_batches(config.negatives),
            config.epochs,
            lambda: shop.probe.exact(encoder),
            rate=1.0,
        )
    return shop.encoder(stage)


def sparse(shop: Workshop) -> Sparse:
    """Codes and their encoder, learned with the quantizer in the loop: from the warm-up on, or from the conventional
    way's encoder where that is the method."""
    config, stage = shop.config.sparse, shop.name("sparse")
    if not shop.finished(stage):
        first = conventional if shop.config.method == "conventional" else warmup
        encoder = first(shop)
        quantizer = Quantizer(shop.fit_codebooks(encoder), config.temperature, config.assignment).to(shop.device)
        batches, teacher = sparse_batches(shop, encoder)
        objective = Quantized(
            encoder,
            quantizer,
            shop.material.documents,
            shop.material.train,
            shop.scale,
            kind=config.loss,
            codebook_rate=codebook_rate(shop),
            reconstruction=given(config.reconstruction, 1.0 if config.loss == "dpq" else 0.0),
            live_margin=shop.config.negatives.live_margin,
            teacher=teacher,
            taught_weight=shop.config.distil.weight,
            crops=crops_of(encoder, config.crops, shop.material.train.tokens.get_lengths()),
        )
        shop.run(
            stage,
            objective,
            batches,
            config.epochs,
            lambda: shop.probe.both(encoder, quantizer.codebooks(), shop.config.candidates),
            candidates_measure(shop.config.candidates),
            rate=config.rate,
        )
        shop.group.once(lambda: discard(shop.folder / stage / TEACHER))
        shop.group.once(lambda: _say_usage(shop, stage, encoder, quantizer.codebooks()))
    return Sparse(shop.encoder(stage), Codebooks.load(shop.folder / stage / CODEBOOKS), stage)


def codebook_rate(shop: Workshop) -> float:
    """The codewords' learning rate as a multiple of the encoder's."""
    return given(shop.config.sparse.codebook_rate, 1.0 if shop.config.built_in else 20.0)


def dense(shop: Workshop, sampler: str) -> Encoder:
    """Vectors that tell a query's answer from the candidates that the codes bring up."""
    stage, config = shop.name(f"dense-{sampler}"), shop.config.dense
    if not shop.finished(stage):
        side = sparse(shop)
        starts: dict[str, Callable[[], Encoder]] = {
            "backbone": shop.backbone,
            "warmup": lambda: warmup(shop),
            "sparse": lambda: side.encoder,
        }
        candidates = dev_candidates(shop, side)
        batches, observe = dense_batches(shop, side, sampler)
        encoder = starts[config.start]()
        objective = Matching(
            encoder,
            shop.material.documents,
            shop.material.train,
            shop.scale,
            alone=sampler == "mined-alone",
            live_margin=shop.config.negatives.live_margin,
            # A recipe's may be as long as the vectors or longer: nothing to cut off there.
            prefixes=[dim for dim in config.prefixes if dim < encoder.dim],
        )
        shop.run(
            stage,
            objective,
            batches,
            config.epochs,
            lambda: shop.probe.ranked(encoder, candidates),
            observe=observe,
            rate=config.rate,
        )
    return shop.encoder(stage)


def unify(shop: Workshop, sampler: str) -> Sparse:
    """One query encoder for the codes and for the vectors of `dense`; the documents stay as they are."""
    stage, codewords = shop.name(f"unify-{sampler}"), shop.config.unify.codewords
    return _fit_queries(shop, stage, lambda: sparse(shop), lambda: dense(shop, sampler), codewords)


def jpq(shop: Workshop) -> Sparse:
    """Codewords and a query encoder for OPQ codes of the conventional way's vectors; the documents stay as they are."""
    return _fit_queries(shop, shop.name("jpq"), lambda: fitted(shop), lambda: conventional(shop), "learned")


def tuned(shop: Workshop) -> Sparse:
    """The codes of `distilled`, then as `jpq`: codewords and a query encoder learn, the documents stay as they are."""
    return _fit_queries(shop, shop.name("tuned"), lambda: distilled(shop), lambda: conventional(shop), "learned")


def _fit_queries(
    shop: Workshop,
    stage: str,
    coded: Callable[[], Sparse],
    vectors_by: Callable[[], Encoder],
    codewords: Literal["fixed", "learned"],
) -> Sparse:
    """Learn a query encoder, from the vectors' own on, for given codes and given vectors of the documents; the codes'
    words too, where they are not fixed."""
    config, probe, learned = shop.config.unify, shop.probe, shop.folder / stage / CODEBOOKS
    side, learns = coded(), codewords == "learned"
    if not shop.finished(stage):
        encoder, path = vectors_by(), shop.folder / stage / "vectors.npy"
        vectors = shop.encode_corpus(encoder, path, "encode for unification")
        codes = corpus_codes(shop, side)
        fixed = FixedDocuments(side.codebooks, codes, vectors, train_candidates(shop, side))
        compared: Any = {name: getattr(config, name) for name in ("pool", "own", "others", "dense_weight")}
        compared |= {"lists": first_lists(shop, side, codes), "codebook_rate": codebook_rate(shop)}
        if learns:
            compared["top"] = config.top if config.negatives == "top" else None
        kind = LiveCodes if learns else Unified
        objective = kind(encoder, fixed, shop.material.train, shop.scale, **compared)

        def validate() -> dict[str, float]:
            queries = probe.queries(encoder)
            candidates, codebooks = shop.config.candidates, objective.codebooks() or side.codebooks
            found = top_k_codes(queries, codebooks, codes[probe.rows], candidates, device=shop.device).rows
            return {
                ANSWERS_MEASURE: probe.rank_vectors(queries, vectors, probe.rows[found], found),
                candidates_measure(candidates): recall(found, probe.pairs),
            }

        shop.run(stage, objective, shop.random_batches("in-batch"), config.epochs, validate, rate=config.rate)
        shop.group.once(lambda: discard(path))
    found = Sparse(shop.encoder(stage), Codebooks.load(learned) if learned.exists() else side.codebooks, stage)
    if config.lists:
        shop.group.once(lambda: measure_lists(shop, found, vectors_by()))
    return found


def conventional(shop: Workshop) -> Encoder:
    """The conventional way's one encoder: the warm-up's trained on for as many steps as the method's stages, less
    those that its codes take."""
    stage, config = shop.name("conventional"), shop.config
    if not shop.finished(stage):
        encoder = warmup(shop)
        batches = conventional_batches(shop, encoder, warmup(shop))
        objective = Matching(
            encoder,
            shop.material.documents,
            shop.material.train,
            shop.scale,
            alone=config.conventional.negatives.endswith("-alone"),
            live_margin=config.negatives.live_margin,
        )
        epochs = conventional_epochs(shop)
        shop.run(stage, objective, batches, epochs, lambda: shop.probe.exact(encoder), rate=config.dense.rate)
    return shop.encoder(stage)


def fitted(shop: Workshop) -> Sparse:
    """PQ or OPQ codes of the conventional way's vectors."""
    stage, encoder = shop.name("fitted"), conventional(shop)
    path = shop.folder / stage / CODEBOOKS
    with shop.group.turn():
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            shop.fit_codebooks(encoder, rotate=shop.config.conventional.codes != "pq").save(path)
    return Sparse(encoder, Codebooks.load(path), stage)


def distilled(shop: Workshop) -> Sparse:
    """Codes of the conventional way's vectors that are sums, and learn to rank as the vectors do."""
    stage, encoder = shop.name("distilled"), conventional(shop)
    return Sparse(encoder, learn_summed(shop, encoder, stage), stage)


def taught(shop: Workshop) -> Sparse:
    """Codes that are sums, of an encoder of their own that has learned to rank as the conventional way's does."""
    encoder, stage = follow(shop), shop.name("taught-codes")
    return Sparse(encoder, learn_summed(shop, encoder, stage, leader=conventional(shop)), stage)


def follow(shop: Workshop) -> Encoder:
    """The conventional way's encoder, trained on with its documents coded, for the ranking it had without."""
    config, stage = shop.config.sparse, shop.name("taught")
    if not shop.finished(stage):
        encoder = conventional(shop)
        quantizer = SummedQuantizer(summed(distilled(shop).codebooks)).to(shop.device)
        objective = Following(
            encoder,
            quantizer,
            shop.material.documents,
            shop.material.train,
            leader_of(shop, encoder),
            codebook_rate(shop),
        )
        shop.run(
            stage,
            objective,
            shop.pool_batches(neighbours(shop, encoder, shop.name("nearest"))),
            config.epochs,
            lambda: shop.probe.both(encoder, objective.codebooks(), shop.config.candidates),
            candidates_measure(shop.config.candidates),
            rate=config.rate,
        )
        shop.group.once(lambda: discard(shop.folder / stage / TEACHER))
    return shop.encoder(stage)


def conventional_epochs(shop: Workshop) -> int:
    """Epochs that leave a recipe as many steps as the method has in all its stages."""
    config, codes = shop.config, shop.config.conventional.codes
    return (
        dense_epochs(shop)
        + (0 if codes in ("learned", "taught") else config.sparse.epochs)
        + (0 if codes in ("jpq", "tuned") else config.unify.epochs)
    )


def dense_epochs(shop: Workshop) -> int:
    """The dense stage's steps as epochs of batches as large as the other stages'."""
    config, size, queries = shop.config, shop.config.batch_size, len(shop.material.train.pairs)
    steps = config.dense.epochs * -(-queries // (config.dense.batch_size or size))
    return round(steps / -(-queries // size))


def _say_usage(shop: Workshop, stage: str, encoder: Encoder, codebooks: Codebooks) -> None:
    """Codewords that lie idle are bytes that say nothing: a run should show how many do."""
    found = usage(shop.probe.codes(encoder, codebooks), codebooks.words)
    write_json(shop.folder / stage / "usage.json", found._asdict())
    say(
        f"sparse: {found.used:.1%} of the codewords used, entropy {found.entropy_bits:.2f} of {codebooks.bits} bits, "
        f"{found.least_entropy_bits:.2f} in the worst book"
    )
