"""bidr train: learn both representations."""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Literal, Self

import tyro

from bidr.cli.options import file_named, from_toml
from bidr.cli.shown import Data, Folder, OptionalFile, Shown, Verb
from bidr.training.config import TrainConfig

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
        path = file_named(flags, "--config")
        if path is None:
            return None
        required = {
            one.name: tyro.MISSING for one in fields(cls) if one.default is MISSING and one.default_factory is MISSING
        }
        return cls(config=path, settings=from_toml(TrainConfig, path), **required)


@dataclass(frozen=True, kw_only=True)
class Train(WithSettings):
    """Train a model on the judged questions of a data set.

    Stopped with Ctrl-C, or cut off, the same command goes on where it was. On several GPUs:
    torchrun --nproc-per-node 8 -m bidr train --data FOLDER --out FOLDER ...
    """

    data: Data
    """Folder in BEIR, MS MARCO or parquet layout, or 'irds:' and an id of ir_datasets."""
    out: Folder
    """Folder for the model: new, empty, or one of a run to go on with."""
    resume: Literal["auto", "never", "must"] = "auto"
    """'auto': go on with the run in the folder if there is one; 'never': refuse to; 'must': refuse to begin one."""

    def run(self) -> Shown:
        from bidr.api import load, train
        from bidr.cli.about import describe_model

        shown = describe_model(train(load(self.data), self.out, self.settings, resume=self.resume))
        then = f"next: bidr build --data {self.data} --model {self.out} --out {self.out / 'index'}"
        return Shown(f"{shown.text}\n{then}", shown.value)
