"""`bidr train` and `bidr recipes`: train a model on texts, or codes for existing vectors."""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, ClassVar, Literal, Self

import tyro

from bidr.cli.base import Command, CommandResult, Folder, OptionalData, OptionalFile, OptionalSource
from bidr.cli.config_parsing import find_file_flag, load_toml
from bidr.errors import ConfigError
from bidr.training.config import TrainConfig
from bidr.training.presets import RECIPES, format_recipes, with_default_recipe, with_recipe

Settings = Annotated[TrainConfig, tyro.conf.arg(name="")]


@dataclass(frozen=True, kw_only=True)
class WithSettings(Command):
    """Base of verbs whose training settings are flags and TOML keys."""

    config: OptionalFile = None
    """TOML file with settings: its keys are the flags below, its tables their prefixes ([dense] sampler = "mined").
    A flag overrides a key."""
    settings: Settings = field(default_factory=TrainConfig)

    @classmethod
    def make_defaults(cls, flags: Sequence[str]) -> Self | None:
        path, name = find_file_flag(flags, "--config"), find_file_flag(flags, "--recipe")
        if path is None and name is None:
            return None
        settings = with_recipe(TrainConfig(), str(name)) if name else TrainConfig()
        required = {
            field.name: tyro.MISSING
            for field in fields(cls)
            if field.default is MISSING and field.default_factory is MISSING
        }
        return cls(config=path, settings=load_toml(settings, path) if path else settings, **required)


@dataclass(frozen=True, kw_only=True)
class Train(WithSettings):
    """Train a model on the judged queries of a dataset, or codes for existing vectors.

    An interrupted run continues when the command is repeated. On several GPUs:
    torchrun --nproc-per-node 8 -m bidr train --data FOLDER --out FOLDER ...
    """

    help_groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "data": ("data", "vectors", "query-vectors", "qrels"),
        "output": ("out", "resume"),
        "model": ("recipe", "bytes-per-doc", "encoder.backbone", "encoder.dim", "candidates", "seed"),
        "settings": ("config", "device", "batch-size"),
    }

    out: Folder
    """Folder for the model: new, empty, or of an interrupted run."""
    resume: Literal["auto", "never", "must"] = "auto"
    """'auto': continue the run in the folder, if there is one; 'never': fail if there is one; 'must': fail if there
    is none."""
    recipe: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="(optional)")] = None
    """Named preset of settings, which TOML keys and flags override; `bidr recipes` lists them. By default 'auto',
    unless a method is set."""
    data: OptionalData = None
    """Dataset: a folder in BEIR, MS MARCO, TREC or parquet layout, or 'irds:' and an ir_datasets id."""
    vectors: OptionalSource = None
    """Document vectors of any model (.npy, a folder of them, or a table with a column of vectors) instead of --data.
    The vectors stay unchanged; codes and a query adapter are trained for them."""
    query_vectors: OptionalFile = None
    """Train query vectors of the same model, not those to measure on. Without them documents serve as queries."""
    metric: Literal["cosine", "ip"] = "cosine"
    """Similarity: cosine or inner product."""
    qrels: OptionalFile = None
    """Relevance judgments, if there are any: query id, document id, score."""
    ids: OptionalFile = None
    """Document ids for --qrels: one per line, or .npy; by default row numbers."""
    query_ids: OptionalFile = None
    """Query ids for --qrels, in the same form."""

    def run(self) -> CommandResult:
        from bidr.cli.format_description import describe_model
        from bidr.data.dataset import load
        from bidr.training.train import train

        if (self.data is None) == (self.vectors is None):
            raise ConfigError("give either --data (texts to learn from) or --vectors (vectors that stay as they are)")
        if self.vectors is not None:
            return self._train_codes(self.vectors)
        vector_flags = [
            name for name in ("query_vectors", "qrels", "ids", "query_ids") if getattr(self, name) is not None
        ]
        vector_flags += ["metric"] if self.metric != "cosine" else []
        if vector_flags:
            raise ConfigError(f"--{vector_flags[0].replace('_', '-')} goes with --vectors; a dataset has its own")
        assert self.data is not None
        settings, recipe = with_default_recipe(self.settings, self.recipe)
        description = describe_model(train(load(self.data), settings, self.out, self.resume, recipe))
        then = f"next: bidr build --data {self.data} --model {self.out} --out {self.out / 'index'}"
        return CommandResult(f"{description.text}\n{then}", description.value)

    def _train_codes(self, vectors: str) -> CommandResult:
        from bidr.cli.format_description import describe_frozen
        from bidr.pipeline.train import train_vectors

        if self.recipe is not None:
            raise ConfigError("--recipe goes with --data: given vectors have a way of their own (frozen.*)")
        model = train_vectors(
            vectors,
            self.query_vectors,
            self.out,
            self.settings,
            metric=self.metric,
            qrels=self.qrels,
            ids=self.ids,
            query_ids=self.query_ids,
            resume=self.resume,
        )
        description = describe_frozen(model)
        then = f"next: bidr build --vectors {vectors} --model {self.out} --out {self.out / 'index'}"
        return CommandResult(f"{description.text}\n{then}", description.value)


@dataclass(frozen=True, kw_only=True)
class Recipes(Command):
    """List the recipes of `bidr train` and `bidr compare`."""

    def run(self) -> CommandResult:
        value = {name: {"about": field.description, "settings": field.settings} for name, field in RECIPES.items()}
        return CommandResult(format_recipes(), value)
