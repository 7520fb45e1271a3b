"""bidr demo and bidr compare: the method beside the conventional ones, on your machine or your data."""

import sys
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import ClassVar

from bidr.cli.base import Command, CommandResult, Data, Engine, Folder
from bidr.cli.last_index import save_last_index
from bidr.cli.train import WithSettings
from bidr.errors import ConfigError
from bidr.training.presets import DEFAULT


@dataclass(frozen=True, kw_only=True)
class Demo(Command):
    """See it work in minutes: search this machine's Python documentation.

    Reads the documentation of the installed packages, trains, builds an index that `bidr search` then uses, and
    measures it beside the conventional way. Downloads nothing.
    """

    out: Folder = Path("runs/demo")
    """Folder for the corpus, the models and the index."""
    documents: int = 30_000
    """Most documents to take."""

    def run(self) -> CommandResult:
        from bidr.demo.run import CONFIG, EXAMPLE, get_index_folder, run_demo
        from bidr.experiments.compare import format_table, report

        if self.documents < 1:
            raise ConfigError(f"documents: given {self.documents}, expected 1 or more")
        rows = run_demo(self.out, documents=self.documents, config=CONFIG)
        save_last_index(get_index_folder(self.out))
        command = "bidr" if which("bidr") else sys.argv[0]
        page = f"or open http://127.0.0.1:8000 after: {command} serve {get_index_folder(self.out)}"
        return CommandResult(f"{format_table(rows)}\nnext: {command} search {EXAMPLE}\n{page}", report(rows))


@dataclass(frozen=True, kw_only=True)
class Compare(WithSettings):
    """Compare the method with the conventional ones on a data set, at the same bytes in RAM."""

    help_groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "data": ("data", "split"),
        "results": ("out", "json"),
        "what to compare": ("recipes", "shrink", "engine"),
        "training, the same for all": ("bytes-per-doc", "encoder.backbone", "candidates", "seed", "config", "device"),
    }

    data: Data
    """Folder in BEIR, MS MARCO or parquet layout, or 'irds:' and an id of ir_datasets."""
    out: Folder
    """Folder for the models and indexes."""
    split: str = "test"
    """Judged questions to measure on; 'dev' where there is no such split: those that training sets aside."""
    engine: Engine = "auto"
    """How candidates are found among the codes; 'auto': by the number of documents."""
    recipes: tuple[str, ...] = DEFAULT
    """Which ways to compare, by name; `bidr recipes` lists them. The flags below say what they have in common."""
    shrink: tuple[int, ...] = ()
    """Measure every one also with its vectors as int8 and cut off after so many dimensions."""

    def run(self) -> CommandResult:
        from bidr.data.dataset import load
        from bidr.experiments.compare import compare, format_table, report

        rows = compare(
            load(self.data),
            self.out,
            self.settings,
            engine=self.engine,
            split=self.split,
            recipes=self.recipes,
            shrink=self.shrink,
        )
        return CommandResult(format_table(rows), report(rows))
