"""The training stages.

Each stage calls the stages it needs and returns the saved result if it has already run, so a recipe only asks for its
last stages. In order, with their folder names:

    warmup        one encoder, in-batch and lexical negatives
    sparse        codes and their encoder, quantizer in the loop (from `warmup`; from `conventional` for that method)
    dense         vectors that separate the positive from the candidates of the codes (from `warmup` on, by default)
    unify         one query encoder for the codes of `sparse` and the vectors of `dense`

    conventional  one encoder, trained for as many steps as the stages above (from `warmup` on)
    fitted        PQ or OPQ codes of the vectors of `conventional`
    jpq           codewords and query encoder learned for the codes of `fitted`
    distilled     additive codes that learn to rank as the vectors of `conventional` do
    tuned         codewords and query encoder learned for the codes of `distilled`
    taught        an encoder that learns to rank, by its codes, as `conventional` does (from `distilled` on)
    taught-codes  additive codes of the vectors of `taught`
"""

from collections.abc import Callable
from typing import Any, Literal

from bidr.models.corpus_encoding import discard_encoded
from bidr.models.trainable_encoder import Encoder
from bidr.models.trainable_quantizer import TrainableAdditiveQuantizer, TrainableQuantizer
from bidr.quantization.additive_quantizer import to_additive
from bidr.quantization.code_quality import measure_usage
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.exact_search import search_codes
from bidr.training.additive_stage import learn_additive_codes, make_teacher_vectors
from bidr.training.cropped_queries import make_crop_sampler
from bidr.training.ivf_lists import fit_initial_lists, measure_lists
from bidr.training.losses.distillation import DistillationObjective
from bidr.training.losses.jpq import JpqObjective
from bidr.training.losses.objectives import CODEBOOKS, DenseObjective, QuantizedObjective
from bidr.training.losses.shared_query_encoder import FixedDocuments, UnifyObjective
from bidr.training.mining import (
    TEACHER_FILE,
    CodedEncoder,
    encode_corpus_codes,
    make_conventional_sampler,
    make_dense_sampler,
    make_sparse_sampler,
    mine_nearest_documents,
    mine_train_candidates,
    search_dev_candidates,
)
from bidr.training.run_context import TrainingRun, get_or_default
from bidr.training.validator import ANSWERS_METRIC, compute_recall, format_candidates_metric
from bidr.utils.files import write_json
from bidr.utils.progress import say


def train_warmup(run: TrainingRun) -> Encoder:
    """Train one encoder for queries and documents on in-batch and lexical negatives."""
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
    """Train codes and their encoder, from the warm-up (or the conventional encoder, if that is the method) on."""
    config, train, stage = run.config.sparse, run.data.train, run.get_stage_name("sparse")
    if not run.is_finished(stage):
        first = train_conventional if run.config.method == "conventional" else train_warmup
        encoder = first(run)
        quantizer = TrainableQuantizer(run.fit_codebooks(encoder), config.temperature, config.assignment).to(run.device)
        batches, teacher = make_sparse_sampler(run, encoder)
        objective = QuantizedObjective(
            encoder,
            quantizer,
            run.data.documents,
            train,
            run.scale,
            kind=config.loss,
            codebook_rate=get_codebook_rate(run),
            reconstruction=get_or_default(config.reconstruction, 1.0 if config.loss == "dpq" else 0.0),
            live_margin=run.config.negatives.live_margin,
            teacher=teacher,
            taught_weight=run.config.distil.weight,
            crops=make_crop_sampler(encoder, config.crops, train.tokens.get_lengths()) if config.crops else None,
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
        run.group.run_on_rank_zero(lambda: discard_encoded(run.folder / stage / TEACHER_FILE))
        run.group.run_on_rank_zero(lambda: _report_usage(run, stage, encoder, quantizer.to_codebooks()))
    return CodedEncoder(run.load_stage_encoder(stage), Codebooks.load(run.folder / stage / CODEBOOKS), stage)


def get_codebook_rate(run: TrainingRun) -> float:
    """Return the codewords' learning rate as a multiple of the encoder's."""
    return get_or_default(run.config.sparse.codebook_rate, 1.0 if run.is_bag_of_tokens else 20.0)


def train_dense(run: TrainingRun, sampler: str) -> Encoder:
    """Train vectors that separate the positive from the candidates of the codes."""
    stage, config = run.get_stage_name(f"dense-{sampler}"), run.config.dense
    if not run.is_finished(stage):
        coded = train_sparse(run)
        starts: dict[str, Callable[[], Encoder]] = {
            "backbone": run.load_backbone,
            "warmup": lambda: train_warmup(run),
            "sparse": lambda: coded.encoder,
            "conventional": lambda: train_conventional(run),
        }
        candidates = search_dev_candidates(run, coded)
        batches, observe = make_dense_sampler(run, coded, sampler)
        encoder = starts[config.start]()
        objective = DenseObjective(
            encoder,
            run.data.documents,
            run.data.train,
            run.scale,
            hard_negatives_only=sampler == "mined-alone",
            live_margin=run.config.negatives.live_margin,
            # A recipe's prefix may be as long as the vectors or longer: nothing to truncate.
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
    """Train one query encoder for the codes and the vectors of `dense`; documents are fixed."""
    stage, codewords = run.get_stage_name(f"unify-{sampler}"), run.config.unify.codewords
    return _fit_queries(run, stage, lambda: train_sparse(run), lambda: train_dense(run, sampler), codewords)


def train_jpq(run: TrainingRun) -> CodedEncoder:
    """Train codewords and query encoder for OPQ codes of the conventional vectors (JPQ)."""
    return _fit_queries(
        run, run.get_stage_name("jpq"), lambda: fit_codes(run), lambda: train_conventional(run), "learned"
    )


def train_tuned(run: TrainingRun) -> CodedEncoder:
    """Train codewords and query encoder for the codes of `distilled`, as in JPQ."""
    return _fit_queries(
        run, run.get_stage_name("tuned"), lambda: distill_codes(run), lambda: train_conventional(run), "learned"
    )


def _fit_queries(
    run: TrainingRun,
    stage: str,
    load_codes: Callable[[], CodedEncoder],
    load_encoder: Callable[[], Encoder],
    codewords: Literal["fixed", "learned"],
) -> CodedEncoder:
    """Train a query encoder for fixed codes and vectors of the documents, and codewords unless they are fixed.

    Args:
        load_codes: Runs or loads the stage that made the codes.
        load_encoder: Loads the encoder of the vectors, which the query encoder starts from.
    """
    config, validator, codebooks_path = run.config.unify, run.validator, run.folder / stage / CODEBOOKS
    coded, learns = load_codes(), codewords == "learned"
    if not run.is_finished(stage):
        encoder, path = load_encoder(), run.folder / stage / "vectors.npy"
        vectors = run.encode_corpus(encoder, path, "encode for unification")
        codes = encode_corpus_codes(run, coded)
        fixed = FixedDocuments(coded.codebooks, codes, vectors, mine_train_candidates(run, coded))
        options: Any = {name: getattr(config, name) for name in ("pool", "own", "others", "dense_weight")}
        options |= {"lists": fit_initial_lists(run, coded, codes), "codebook_rate": get_codebook_rate(run)}
        if learns:
            options["top"] = config.top if config.negatives == "top" else None
        kind = JpqObjective if learns else UnifyObjective
        objective = kind(encoder, fixed, run.data.train, run.scale, **options)

        def validate() -> dict[str, float]:
            queries = validator.encode_queries(encoder)
            candidates, codebooks = run.config.candidates, objective.get_codebooks() or coded.codebooks
            rows = search_codes(queries, codebooks, codes[validator.rows], candidates, device=run.device).rows
            return {
                ANSWERS_METRIC: validator.measure_ranking(queries, vectors, validator.rows[rows], rows),
                format_candidates_metric(candidates): compute_recall(rows, validator.pairs),
            }

        run.run_stage(stage, objective, run.make_random_sampler("in-batch"), config.epochs, validate, rate=config.rate)
        run.group.run_on_rank_zero(lambda: discard_encoded(path))
    result = CodedEncoder(
        run.load_stage_encoder(stage),
        Codebooks.load(codebooks_path) if codebooks_path.exists() else coded.codebooks,
        stage,
    )
    if config.lists:
        run.group.run_on_rank_zero(lambda: measure_lists(run, result, load_encoder()))
    return result


def train_conventional(run: TrainingRun) -> Encoder:
    """Train the conventional encoder from the warm-up on, for as many steps as the method's stages, less those of
    its codes, unless `conventional.epochs` is set. With 0 epochs it is the warm-up's, to the last bit."""
    stage, config = get_conventional_stage(run), run.config
    if stage == run.get_stage_name("warmup"):
        return train_warmup(run)
    if not run.is_finished(stage):
        encoder = train_warmup(run)
        batches = make_conventional_sampler(run, encoder, train_warmup(run))
        objective = DenseObjective(
            encoder,
            run.data.documents,
            run.data.train,
            run.scale,
            hard_negatives_only=config.conventional.negatives.endswith("-alone"),
            live_margin=config.negatives.live_margin,
        )
        epochs = count_conventional_epochs(run)
        run.run_stage(
            stage, objective, batches, epochs, lambda: run.validator.measure_exact(encoder), rate=config.dense.rate
        )
    return run.load_stage_encoder(stage)


def fit_codes(run: TrainingRun) -> CodedEncoder:
    """Fit PQ or OPQ codes to the conventional vectors."""
    return fit_codes_of(run, train_conventional(run), run.get_stage_name("fitted"))


def fit_codes_of(run: TrainingRun, encoder: Encoder, stage: str) -> CodedEncoder:
    """Fit PQ or OPQ codes to the vectors of an encoder, or load those of a finished stage."""
    path = run.folder / stage / CODEBOOKS
    with run.group.rank_zero_first():
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            run.fit_codebooks(encoder, rotate=run.config.conventional.codes != "pq").save(path)
    return CodedEncoder(encoder, Codebooks.load(path), stage)


def distill_codes(run: TrainingRun) -> CodedEncoder:
    """Distill additive codes from the ranking by the conventional vectors."""
    stage, encoder = run.get_stage_name("distilled"), train_conventional(run)
    return CodedEncoder(encoder, learn_additive_codes(run, encoder, stage), stage)


def learn_taught_codes(run: TrainingRun) -> CodedEncoder:
    """Learn additive codes of an encoder that was trained to rank as the conventional one does."""
    encoder, stage = train_taught_encoder(run), run.get_stage_name("taught-codes")
    return CodedEncoder(encoder, learn_additive_codes(run, encoder, stage, teacher=train_conventional(run)), stage)


def train_taught_encoder(run: TrainingRun) -> Encoder:
    """Train the conventional encoder on, with coded documents, to keep its ranking by vectors."""
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
            lambda: run.validator.measure_all(encoder, objective.get_codebooks(), run.config.candidates),
            format_candidates_metric(run.config.candidates),
            rate=config.rate,
        )
        run.group.run_on_rank_zero(lambda: discard_encoded(run.folder / stage / TEACHER_FILE))
    return run.load_stage_encoder(stage)


def get_conventional_stage(run: TrainingRun) -> str:
    """Return the folder name of the stage that the conventional encoder comes from."""
    return run.get_stage_name("conventional" if count_conventional_epochs(run) else "warmup")


def count_conventional_epochs(run: TrainingRun) -> int:
    """Count the epochs that give a recipe as many steps as the method has in all its stages, unless they are set."""
    config, codes = run.config, run.config.conventional.codes
    if config.conventional.epochs is not None:
        return config.conventional.epochs
    return (
        count_dense_epochs(run)
        + (0 if codes in ("learned", "taught") else config.sparse.epochs)
        + (0 if codes in ("jpq", "tuned") else config.unify.epochs)
    )


def count_dense_epochs(run: TrainingRun) -> int:
    """Convert the dense stage's steps to epochs of the other stages' batch size."""
    config, size, queries = run.config, run.config.batch_size, len(run.data.train.pairs)
    steps = config.dense.epochs * -(-queries // (config.dense.batch_size or size))
    return round(steps / -(-queries // size))


def _report_usage(run: TrainingRun, stage: str, encoder: Encoder, codebooks: Codebooks) -> None:
    """Write and print codeword usage: unused codewords waste bytes."""
    codeword_usage = measure_usage(run.validator.encode_codes(encoder, codebooks), codebooks.words)
    write_json(run.folder / stage / "usage.json", codeword_usage._asdict())
    entropy, worst = codeword_usage.entropy_bits, codeword_usage.least_entropy_bits
    say(
        f"sparse: {codeword_usage.used:.1%} of the codewords used, entropy {entropy:.2f} of {codebooks.bits} "
        f"bits, {worst:.2f} in the worst book"
    )
