"""Context of a training run: config, data, device, work folder and how a stage is run."""

import copy
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer

from bidr.data.dataset import Dataset, compose_text
from bidr.data.positives import remove_positives
from bidr.errors import ConfigError
from bidr.models.auto import load_encoder
from bidr.models.bag_of_tokens import BagOfTokensEncoder
from bidr.models.corpus_encoding import encode_rows
from bidr.models.static_embeddings import load_static_embeddings
from bidr.models.trainable_encoder import Encoder
from bidr.quantization.codebooks import Codebooks, check_shape
from bidr.quantization.pq_training import FIT_ROWS, ITERATIONS, fit_pq
from bidr.tokenization.wordpieces import train_wordpieces
from bidr.training.config import BUILT_IN, Negatives, TrainConfig
from bidr.training.config_validation import check_dims
from bidr.training.data import prepare_training_data, read_splits
from bidr.training.engine.distributed import ProcessGroup
from bidr.training.engine.loop import CHECKPOINT, DevMetrics, LoopSettings, StageTrainer, train_stage
from bidr.training.engine.sharded_encoding import encode_corpus_sharded
from bidr.training.losses.objectives import Objective
from bidr.training.negatives.bm25_search import Bm25
from bidr.training.negatives.samplers import EpochPlan, RandomSampler, Sampler
from bidr.training.stage_cache import name_stage
from bidr.training.validator import make_validator
from bidr.utils.array_types import Rows
from bidr.utils.device import pick_device
from bidr.utils.files import storage_errors, write_json
from bidr.utils.progress import say, show_progress

BM25_DEPTH = 20
DONE = "done.json"
PRETRAINED_DEFAULTS = (1e-2, 0.1, 0.0)  # between .005 and .02 dev differs little

Observe = Callable[[int, EpochPlan], dict[str, float]]


class TrainingRun:
    """Config, data and work folder of a run. Finished stages are not trained again."""

    def __init__(self, dataset: Dataset, config: TrainConfig, folder: Path, group: ProcessGroup | None = None) -> None:
        self.dataset, self.folder, self.group = dataset, folder, group or ProcessGroup()
        self.config = self.base = config
        self.device = self.group.get_device(pick_device(config.device))
        check_teacher(config)
        check_prefixes(config, config.dim)
        with self.group.rank_zero_first():
            splits = read_splits(dataset, config.dev_queries, config.seed, config.min_dev_queries)
            self.dev_split = splits.dev
            with storage_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
            self._initial_encoder = initial = self._open_initial_encoder()
            check_shape(initial.dim, config.books, config.codewords)
            check_prefixes(config, initial.dim)
            text = config.text
            self.data = prepare_training_data(
                dataset,
                splits,
                initial,
                folder / "tokens",
                titles=text.titles,
                query_length=text.query_length,
                document_length=text.document_length,
            )
        self.scale = get_or_default(config.encoder.scale, 20.0 if initial.normalized else 1.0)
        self.validator = make_validator(self.data, config.dev_documents, config.seed, self.device)

    def with_config(self, config: TrainConfig) -> Self:
        """Copy this run with another config; stages that it does not affect are shared."""
        check_shape(self._initial_encoder.dim, config.books, config.codewords)
        check_teacher(config)
        run = copy.copy(self)
        run.config = config
        return run

    @property
    def dim(self) -> int:
        """Dimensions of the encoders."""
        return self._initial_encoder.dim

    @property
    def is_bag_of_tokens(self) -> bool:
        """Whether the encoder is the built-in one, from random or pretrained embeddings."""
        return isinstance(self._initial_encoder, BagOfTokensEncoder)

    def get_stage_name(self, stage: str) -> str:
        """Return the folder name of a stage under this config."""
        return name_stage(stage, self.config, self.base)

    def load_backbone(self) -> Encoder:
        """Load the untrained encoder; create it on the first call."""
        folder = self.folder / "backbone"
        with self.group.rank_zero_first():
            if not folder.exists():
                encoder = self._initial_encoder
                if isinstance(encoder, BagOfTokensEncoder):
                    encoder = self._create_bag_of_tokens(encoder.tokenizer)
                save_encoder_atomically(encoder, folder)
        return self.open_encoder(folder)

    def _create_bag_of_tokens(self, tokenizer: Tokenizer) -> BagOfTokensEncoder:
        config, documents, seed = self.config.encoder, self.data.documents, self.config.seed
        if config.backbone == BUILT_IN:
            return BagOfTokensEncoder.create(tokenizer, documents, config.dim, seed)
        return BagOfTokensEncoder.create_pretrained(tokenizer, documents, load_static_embeddings(config.backbone), seed)

    def open_encoder(self, folder: Path) -> Encoder:
        return load_encoder(folder).to(self.device)

    def load_stage_encoder(self, stage: str) -> Encoder:
        """Load the encoder of a finished stage."""
        return self.open_encoder(self.folder / stage / "encoder")

    def is_finished(self, stage: str) -> bool:
        return (self.folder / stage / DONE).exists()

    def read_history(self, stage: str) -> list[dict[str, float]]:
        """Read the metrics of each epoch of a finished stage."""
        history: list[dict[str, float]] = json.loads((self.folder / stage / DONE).read_text())["history"]
        return history

    def read_codeword_usage(self) -> dict[str, float] | None:
        """Read the codeword usage of the sparse stage, or None if it did not run."""
        path = self.folder / self.get_stage_name("sparse") / "usage.json"
        codeword_usage: dict[str, float] | None = json.loads(path.read_text()) if path.exists() else None
        return codeword_usage

    def run_stage(
        self,
        stage: str,
        objective: Objective,
        sampler: Sampler,
        epochs: int,
        validate: Callable[[], DevMetrics],
        measure: str = "R@10",
        observe: Observe = lambda epoch, plan: {},
        rate: float | None = None,
    ) -> None:
        """Train a stage, resuming from its checkpoint, and save its result.

        Args:
            rate: Learning rate as a multiple of the warm-up's; None: the default for this kind of encoder.
        """
        config, folder = self.config, self.folder / stage
        default_rate, default_multiple, default_decay = self._get_optimizer_defaults()
        folder.mkdir(parents=True, exist_ok=True)
        settings = LoopSettings(
            epochs=epochs,
            rate=get_or_default(rate, default_multiple) * get_or_default(config.learning_rate, default_rate),
            decay=get_or_default(config.weight_decay, default_decay),
            warmup_share=config.warmup_share,
            clip=config.clip,
            seed=config.seed,
            checkpoint_seconds=60 * config.checkpoint_minutes,
            tokens_at_once=config.tokens_at_once,
        )
        objective.encoder.expect_steps(epochs * -(-len(self.data.train.pairs) // config.batch_size))
        trainer = StageTrainer(stage, objective, settings, measure, self.group)
        train_stage(trainer, sampler, validate, folder, observe, config.logs)
        self.group.run_on_rank_zero(lambda: save_stage(trainer, folder))

    def _get_optimizer_defaults(self) -> tuple[float, float, float]:
        """Return the warm-up's learning rate, the later stages' multiple of it, and the weight decay."""
        if not self.is_bag_of_tokens:
            return 5e-5, 1.0, 0.01
        return (2e-2, 0.1, 0.0) if self.config.encoder.backbone == BUILT_IN else PRETRAINED_DEFAULTS

    def make_random_sampler(self, negatives: Negatives | None, size: int | None = None) -> RandomSampler:
        """Make a random sampler; "bm25" adds one lexically similar negative per query."""
        negatives = negatives or ("in-batch" if self.is_bag_of_tokens else "bm25")
        return self.make_pool_sampler(self.cache_array("bm25", self._mine_bm25) if negatives == "bm25" else None, size)

    def make_pool_sampler(self, pool: Rows | None, size: int | None = None) -> RandomSampler:
        """Make a random sampler that draws negatives from a pool; size: default batch_size."""
        pairs, config = self.data.train.pairs, self.config
        documents, per_query = len(self.data.documents), config.negatives.each
        return RandomSampler(pairs, documents, size or config.batch_size, config.seed, pool, per_query)

    def fit_codebooks(self, encoder: Encoder, *, rotate: bool = True) -> Codebooks:
        """Fit OPQ (PQ without rotation) codebooks to at most FIT_ROWS document vectors."""
        config, kind = self.config, "OPQ" if rotate else "PQ"

        def make() -> Codebooks:
            rows = np.random.default_rng(config.seed).permutation(len(self.data.documents))[:FIT_ROWS]
            vectors = encode_rows(encoder, self.data.documents, np.sort(rows))
            say(f"fit {config.books} codebooks of {config.codewords} codewords to {len(rows):,} vectors ({kind})")
            with show_progress(f"fit {kind}", ITERATIONS * (2 if rotate else 1), "iterations") as advance:
                return fit_pq(vectors, config.books, config.codewords, rotate=rotate, seed=config.seed, advance=advance)

        return self.group.run_on_rank_zero(make)

    def encode_corpus(
        self, encoder: Encoder, path: Path, label: str, codebooks: Codebooks | None = None
    ) -> npt.NDArray[Any]:
        """Encode the corpus into a file of vectors, or of codes if codebooks are passed."""
        return encode_corpus_sharded(self.group, encoder, self.data.documents, path, codebooks=codebooks, label=label)

    def cache_array(self, name: str, make: Callable[[], npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Load an array of the run's folder; compute and save it on the first call."""
        path = self.folder / "mined" / f"{name}.npy"
        with self.group.rank_zero_first():
            if not path.exists():
                values = make()
                with storage_errors(path):
                    path.parent.mkdir(exist_ok=True)
                    temporary = path.with_name(f".{name}.new.npy")
                    np.save(temporary, values)
                    os.replace(temporary, path)
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r")
        return array

    def _mine_bm25(self) -> npt.NDArray[Any]:
        say("BM25 index for lexical negatives")
        texts = (compose_text(document, self.config.text.titles) for document in self.dataset.corpus)
        rows = Bm25(texts).search(self.data.train.texts, BM25_DEPTH).rows
        return remove_positives(rows, self.data.train.pairs).astype(np.int32)

    def _open_initial_encoder(self) -> Encoder:
        """Open the backbone; of the built-in one only the tokenizer, since its weights need the tokens."""
        if (self.folder / "backbone").exists():
            return load_encoder(self.folder / "backbone")
        config = self.config.encoder
        if self.config.encoder_kind != "transformer":
            static = None if config.backbone == BUILT_IN else load_static_embeddings(config.backbone)
            if static and config.tokenizer == "pretrained":
                tokenizer = static.tokenizer
            else:
                say("learn word pieces from the corpus")
                tokenizer = train_wordpieces(self.dataset.corpus.iter_texts(self.config.text.titles), config.vocabulary)
            return BagOfTokensEncoder(tokenizer, torch.zeros(1, static.table.shape[1] if static else config.dim))
        from bidr.models.huggingface_encoder import TransformerEncoder

        return TransformerEncoder.open(
            config.backbone,
            pooling=config.pooling,
            projection=config.projection,
            normalise=config.normalise,
            dropout=config.dropout,
            query_prompt=config.query_prompt,
            document_prompt=config.document_prompt,
            seed=self.config.seed,
        )


def save_stage(trainer: StageTrainer, folder: Path) -> None:
    """Save a stage's result, mark it as finished and delete its checkpoint."""
    objective = trainer.objective
    objective.save_extras(folder)
    save_encoder_atomically(objective.encoder, folder / "encoder")
    result = {"stage": trainer.name, "best": trainer.best, "best_epoch": trainer.best_epoch}
    write_json(folder / DONE, {**result, "history": trainer.history})
    (folder / CHECKPOINT).unlink(missing_ok=True)


def save_encoder_atomically(encoder: Encoder, folder: Path) -> None:
    """Write an encoder's folder atomically: to a temporary name, then rename."""
    temporary = folder.with_name(f".{folder.name}.new")
    with storage_errors(folder):
        shutil.rmtree(temporary, ignore_errors=True)
        encoder.save(temporary)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)


def check_teacher(config: TrainConfig) -> None:
    if config.needs_teacher and not config.distil.teacher:
        raise ConfigError("distil.teacher: not given, expected a cross-encoder's folder or a file of its scores")


def check_prefixes(config: TrainConfig, dim: int | None) -> None:
    """Check dense.prefixes against the vectors' dimensions; None: not known yet."""
    some = f"{max(1, (dim or 0) // 4)} {max(1, (dim or 0) // 2)}"
    check_dims("dense.prefixes", config.dense.prefixes, dim, f"set --dense.prefixes {some}, say")


def get_or_default(value: float | None, default: float) -> float:
    return default if value is None else value
