"""bidr train: learn both representations."""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Literal, Self

import tyro

from bidr.cli.options import file_named, from_toml
from bidr.cli.shown import Data, Folder, OptionalFile, Shown, Verb
from bidr.training.config import TrainConfig
from bidr.training.recipes import RECIPES, listing, with_recipe

Settings = Annotated[TrainConfig, tyro.conf.arg(name="")]


@dataclass(frozen=True, kw_only=True)
class WithSettings(Verb):
    """A verb that trains: what can be set for a run are flags, and keys of a TOML file."""

    config: OptionalFile = None
    """TOML file with settings: its keys are the flags below, its tables their prefixes ([dense] sampler = "mined").
    A flag overrides a key."""
    settings: Settings = field(default_factory=TrainConfig)

    @classmethod
    def defaults(cls, flags: Sequence[str]) -> Self | None:
        path, name = file_named(flags, "--config"), file_named(flags, "--recipe")
        if path is None and name is None:
            return None
        settings = with_recipe(TrainConfig(), str(name)) if name else TrainConfig()
        required = {
            one.name: tyro.MISSING for one in fields(cls) if one.default is MISSING and one.default_factory is MISSING
        }
        return cls(config=path, settings=from_toml(settings, path) if path else settings, **required)


@dataclass(frozen=True, kw_only=True)
class Train(WithSettings):
    """Train a model on the judged questions of a data set.

    Stopped with Ctrl-C, or cut off, the same command goes on where it was.
    """

    data: Data
    """Folder in BEIR, MS MARCO or parquet layout, or 'irds:' and an id of ir_datasets."""
    out: Folder
    """Folder for the model: new, empty, or one of a run to go on with."""
    recipe: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="(optional)")] = None
    """Settings by name, over which a key of the TOML file or a flag has its way; `bidr recipes` lists them."""
    resume: Literal["auto", "never", "must"] = "auto"
    """'auto': go on with the run in the folder if there is one; 'never': refuse to; 'must': refuse to begin one."""

    def run(self) -> Shown:
        from bidr.api import load, train
        from bidr.cli.about import describe_model

        shown = describe_model(train(load(self.data), self.out, self.settings, resume=self.resume))
        then = f"next: bidr build --data {self.data} --model {self.out} --out {self.out / 'index'}"
        return Shown(f"{shown.text}\n{then}", shown.value)


@dataclass(frozen=True, kw_only=True)
class Recipes(Verb):
    """List the recipes that train and compare know."""

    def run(self) -> Shown:
        value = {name: {"about": one.about, "settings": one.settings} for name, one in RECIPES.items()}
        return Shown(listing(), value)
