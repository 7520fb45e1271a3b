"""The stages: warm-up, sparse, dense, unification, and the conventional way to compare with."""

from collections.abc import Callable
from typing import Any, Literal

from bidr.models.corpus_encoding import discard_encoded
from bidr.models.encoder import Encoder
from bidr.models.trainable_quantizer import TrainableAdditiveQuantizer, TrainableQuantizer
from bidr.quantization.additive_quantizer import to_additive
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.exact_search import search_codes
from bidr.quantization.metrics import measure_usage
from bidr.training.additive_stage import learn_additive_codes, make_teacher_vectors
from bidr.training.ivf import fit_initial_lists, measure_lists
from bidr.training.losses.cropped_queries import crops_of
from bidr.training.losses.distillation import DistillationObjective
from bidr.training.losses.jpq import JpqObjective
from bidr.training.losses.objectives import CODEBOOKS, DenseObjective, QuantizedObjective
from bidr.training.losses.query_unification import FixedDocuments, UnifyObjective
from bidr.training.mining import (
    TEACHER,
    CodedEncoder,
    encode_corpus_codes,
    make_conventional_sampler,
    make_dense_sampler,
    make_sparse_sampler,
    mine_nearest_documents,
    mine_train_candidates,
    search_dev_candidates,
)
from bidr.training.run import TrainingRun, get_or_default
from bidr.training.validator import ANSWERS_METRIC, compute_recall, format_candidates_metric
from bidr.utils.files import write_json
from bidr.utils.progress import say


def train_warmup(run: TrainingRun) -> Encoder:
    """One encoder for queries and documents, told apart from in-batch and lexical negatives."""
    stage = run.get_stage_name("warmup")
    if not run.is_finished(stage):
        encoder, config = run.load_backbone(), run.config.warmup
        objective = DenseObjective(encoder, run.data.documents, run.data.train, run.scale)
        run.run_stage(
            stage,
            objective,
            run.make_random_sampler(config.negatives),
            config.epochs,
            lambda: run.validator.measure_exact(encoder),
            rate=1.0,
        )
    return run.load_stage_encoder(stage)


def train_sparse(run: TrainingRun) -> CodedEncoder:
    """Codes and their encoder, learned with the quantizer in the loop: from the warm-up on, or from the conventional
    way's encoder where that is the method."""
    config, stage = run.config.sparse, run.get_stage_name("sparse")
    if not run.is_finished(stage):
        first = train_conventional if run.config.method == "conventional" else train_warmup
        encoder = first(run)
        quantizer = TrainableQuantizer(run.fit_codebooks(encoder), config.temperature, config.assignment).to(run.device)
        batches, teacher = make_sparse_sampler(run, encoder)
        objective = QuantizedObjective(
            encoder,
            quantizer,
            run.data.documents,
            run.data.train,
            run.scale,
            kind=config.loss,
            codebook_rate=get_codebook_rate(run),
            reconstruction=get_or_default(config.reconstruction, 1.0 if config.loss == "dpq" else 0.0),
            live_margin=run.config.negatives.live_margin,
            teacher=teacher,
            taught_weight=run.config.distil.weight,
            crops=crops_of(encoder, config.crops, run.data.train.tokens.get_lengths()),
        )
        run.run_stage(
            stage,
            objective,
            batches,
            config.epochs,
            lambda: run.validator.measure_all(encoder, quantizer.to_codebooks(), run.config.candidates),
            format_candidates_metric(run.config.candidates),
            rate=config.rate,
        )
        run.group.run_on_rank_zero(lambda: discard_encoded(run.folder / stage / TEACHER))
        run.group.run_on_rank_zero(lambda: _report_usage(run, stage, encoder, quantizer.to_codebooks()))
    return CodedEncoder(run.load_stage_encoder(stage), Codebooks.load(run.folder / stage / CODEBOOKS), stage)


def get_codebook_rate(run: TrainingRun) -> float:
    """The codewords' learning rate as a multiple of the encoder's."""
    return get_or_default(run.config.sparse.codebook_rate, 1.0 if run.config.built_in else 20.0)


def train_dense(run: TrainingRun, sampler: str) -> Encoder:
    """Vectors that tell a query's answer from the candidates that the codes bring up."""
    stage, config = run.get_stage_name(f"dense-{sampler}"), run.config.dense
    if not run.is_finished(stage):
        side = train_sparse(run)
        starts: dict[str, Callable[[], Encoder]] = {
            "backbone": run.load_backbone,
            "warmup": lambda: train_warmup(run),
            "sparse": lambda: side.encoder,
        }
        candidates = search_dev_candidates(run, side)
        batches, observe = make_dense_sampler(run, side, sampler)
        encoder = starts[config.start]()
        objective = DenseObjective(
            encoder,
            run.data.documents,
            run.data.train,
            run.scale,
            alone=sampler == "mined-alone",
            live_margin=run.config.negatives.live_margin,
            # A recipe's may be as long as the vectors or longer: nothing to cut off there.
            prefixes=[dim for dim in config.prefixes if dim < encoder.dim],
        )
        run.run_stage(
            stage,
            objective,
            batches,
            config.epochs,
            lambda: run.validator.measure_reranking(encoder, candidates),
            observe=observe,
            rate=config.rate,
        )
    return run.load_stage_encoder(stage)


def unify(run: TrainingRun, sampler: str) -> CodedEncoder:
    """One query encoder for the codes and for the vectors of `dense`; the documents stay as they are."""
    stage, codewords = run.get_stage_name(f"unify-{sampler}"), run.config.unify.codewords
    return _fit_queries(run, stage, lambda: train_sparse(run), lambda: train_dense(run, sampler), codewords)


def train_jpq(run: TrainingRun) -> CodedEncoder:
    """Codewords and a query encoder for OPQ codes of the conventional way's vectors; the documents stay as they are."""
    return _fit_queries(
        run, run.get_stage_name("jpq"), lambda: fit_codes(run), lambda: train_conventional(run), "learned"
    )


def train_tuned(run: TrainingRun) -> CodedEncoder:
    """The codes of `distilled`, then as `jpq`: codewords and a query encoder learn, the documents stay as they are."""
    return _fit_queries(
        run, run.get_stage_name("tuned"), lambda: distill_codes(run), lambda: train_conventional(run), "learned"
    )


def _fit_queries(
    run: TrainingRun,
    stage: str,
    coded: Callable[[], CodedEncoder],
    vectors_by: Callable[[], Encoder],
    codewords: Literal["fixed", "learned"],
) -> CodedEncoder:
    """Learn a query encoder, from the vectors' own on, for given codes and given vectors of the documents; the codes'
    words too, where they are not fixed."""
    config, probe, learned = run.config.unify, run.validator, run.folder / stage / CODEBOOKS
    side, learns = coded(), codewords == "learned"
    if not run.is_finished(stage):
        encoder, path = vectors_by(), run.folder / stage / "vectors.npy"
        vectors = run.encode_corpus(encoder, path, "encode for unification")
        codes = encode_corpus_codes(run, side)
        fixed = FixedDocuments(side.codebooks, codes, vectors, mine_train_candidates(run, side))
        compared: Any = {name: getattr(config, name) for name in ("pool", "own", "others", "dense_weight")}
        compared |= {"lists": fit_initial_lists(run, side, codes), "codebook_rate": get_codebook_rate(run)}
        if learns:
            compared["top"] = config.top if config.negatives == "top" else None
        kind = JpqObjective if learns else UnifyObjective
        objective = kind(encoder, fixed, run.data.train, run.scale, **compared)

        def validate() -> dict[str, float]:
            queries = probe.encode_queries(encoder)
            candidates, codebooks = run.config.candidates, objective.codebooks() or side.codebooks
            found = search_codes(queries, codebooks, codes[probe.rows], candidates, device=run.device).rows
            return {
                ANSWERS_METRIC: probe.measure_ranking(queries, vectors, probe.rows[found], found),
                format_candidates_metric(candidates): compute_recall(found, probe.pairs),
            }

        run.run_stage(stage, objective, run.make_random_sampler("in-batch"), config.epochs, validate, rate=config.rate)
        run.group.run_on_rank_zero(lambda: discard_encoded(path))
    found = CodedEncoder(
        run.load_stage_encoder(stage), Codebooks.load(learned) if learned.exists() else side.codebooks, stage
    )
    if config.lists:
        run.group.run_on_rank_zero(lambda: measure_lists(run, found, vectors_by()))
    return found


def train_conventional(run: TrainingRun) -> Encoder:
    """The conventional way's one encoder: the warm-up's trained on for as many steps as the method's stages, less
    those that its codes take."""
    stage, config = run.get_stage_name("conventional"), run.config
    if not run.is_finished(stage):
        encoder = train_warmup(run)
        batches = make_conventional_sampler(run, encoder, train_warmup(run))
        objective = DenseObjective(
            encoder,
            run.data.documents,
            run.data.train,
            run.scale,
            alone=config.conventional.negatives.endswith("-alone"),
            live_margin=config.negatives.live_margin,
        )
        epochs = count_conventional_epochs(run)
        run.run_stage(
            stage, objective, batches, epochs, lambda: run.validator.measure_exact(encoder), rate=config.dense.rate
        )
    return run.load_stage_encoder(stage)


def fit_codes(run: TrainingRun) -> CodedEncoder:
    """PQ or OPQ codes of the conventional way's vectors."""
    stage, encoder = run.get_stage_name("fitted"), train_conventional(run)
    path = run.folder / stage / CODEBOOKS
    with run.group.rank_zero_first():
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            run.fit_codebooks(encoder, rotate=run.config.conventional.codes != "pq").save(path)
    return CodedEncoder(encoder, Codebooks.load(path), stage)


def distill_codes(run: TrainingRun) -> CodedEncoder:
    """Codes of the conventional way's vectors that are sums, and learn to rank as the vectors do."""
    stage, encoder = run.get_stage_name("distilled"), train_conventional(run)
    return CodedEncoder(encoder, learn_additive_codes(run, encoder, stage), stage)


def learn_taught_codes(run: TrainingRun) -> CodedEncoder:
    """Codes that are sums, of an encoder of their own that has learned to rank as the conventional way's does."""
    encoder, stage = train_taught_encoder(run), run.get_stage_name("taught-codes")
    return CodedEncoder(encoder, learn_additive_codes(run, encoder, stage, leader=train_conventional(run)), stage)


def train_taught_encoder(run: TrainingRun) -> Encoder:
    """The conventional way's encoder, trained on with its documents coded, for the ranking it had without."""
    config, stage = run.config.sparse, run.get_stage_name("taught")
    if not run.is_finished(stage):
        encoder = train_conventional(run)
        quantizer = TrainableAdditiveQuantizer(to_additive(distill_codes(run).codebooks)).to(run.device)
        objective = DistillationObjective(
            encoder,
            quantizer,
            run.data.documents,
            run.data.train,
            make_teacher_vectors(run, encoder),
            get_codebook_rate(run),
        )
        run.run_stage(
            stage,
            objective,
            run.make_pool_sampler(mine_nearest_documents(run, encoder, run.get_stage_name("nearest"))),
            config.epochs,
            lambda: run.validator.measure_all(encoder, objective.codebooks(), run.config.candidates),
            format_candidates_metric(run.config.candidates),
            rate=config.rate,
        )
        run.group.run_on_rank_zero(lambda: discard_encoded(run.folder / stage / TEACHER))
    return run.load_stage_encoder(stage)


def count_conventional_epochs(run: TrainingRun) -> int:
    """Epochs that leave a recipe as many steps as the method has in all its stages."""
    config, codes = run.config, run.config.conventional.codes
    return (
        count_dense_epochs(run)
        + (0 if codes in ("learned", "taught") else config.sparse.epochs)
        + (0 if codes in ("jpq", "tuned") else config.unify.epochs)
    )


def count_dense_epochs(run: TrainingRun) -> int:
    """The dense stage's steps as epochs of batches as large as the other stages'."""
    config, size, queries = run.config, run.config.batch_size, len(run.data.train.pairs)
    steps = config.dense.epochs * -(-queries // (config.dense.batch_size or size))
    return round(steps / -(-queries // size))


def _report_usage(run: TrainingRun, stage: str, encoder: Encoder, codebooks: Codebooks) -> None:
    """Codewords that lie idle are bytes that say nothing: a run should show how many do."""
    found = measure_usage(run.validator.encode_codes(encoder, codebooks), codebooks.words)
    write_json(run.folder / stage / "usage.json", found._asdict())
    say(
        f"sparse: {found.used:.1%} of the codewords used, entropy {found.entropy_bits:.2f} of {codebooks.bits} "
        f"bits, {found.least_entropy_bits:.2f} in the worst book"
    )
