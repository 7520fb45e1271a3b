"""`bidr inspect`: show what an index or a model holds."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from bidr.cli.base import (
    Command,
    CommandResult,
    format_columns,
)
from bidr.errors import ConfigError
from bidr.utils.files import read_json


@dataclass(frozen=True, kw_only=True)
class Inspect(Command):
    """Describe an index (RAM, disk, model) or a model (training)."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """Index folder or model folder."""

    def run(self) -> CommandResult:
        from bidr.cli.format_description import describe_frozen, describe_index, describe_model

        if (self.folder / "CURRENT").exists():
            from bidr.index.live.live_reader import LiveIndex

            with LiveIndex.open(self.folder) as reader:
                return describe_index(reader.describe())
        if (self.folder / "model.json").exists():
            from bidr.models.codes_only_model import CodesOnlyModel, open_model

            model = open_model(self.folder)
            return describe_frozen(model) if isinstance(model, CodesOnlyModel) else describe_model(model)
        if (self.folder / "work" / "run.json").exists():
            return describe_unfinished(self.folder)
        raise ConfigError(
            f"{self.folder} is neither an index (no file CURRENT) nor a model (no file model.json); "
            "give the folder that `bidr build` or `bidr train` wrote"
        )


def describe_unfinished(folder: Path) -> CommandResult:
    """Describe an unfinished run: its finished stages."""
    run: dict[str, Any] = read_json(folder / "work" / "run.json", "restore it, or delete the folder and train again")
    finished = sorted(path.parent.name for path in (folder / "work").glob("*/done.json"))
    going = sorted(path.parent.name for path in (folder / "work").glob("**/checkpoint.pt"))
    data = run.get("data", "vectors")
    value = {"folder": str(folder), "data": data, "finished": finished, "begun": going, "config": run["config"]}
    rows = [
        ("training run", f"{folder}, not finished: run the same `bidr train` again to go on"),
        ("data", str(data)),
        ("stages finished", ", ".join(finished) or "none"),
        ("stages begun", ", ".join(going) or "none"),
    ]
    return CommandResult(format_columns(rows), value)
