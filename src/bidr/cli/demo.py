"""`bidr demo` and `bidr compare`: train and compare recipes on local documentation or on a dataset."""

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
    """Try bidr in minutes: search this machine's Python documentation.

    Reads the documentation of the installed packages, trains a model, builds an index for `bidr search`, and compares
    it with the conventional method. Downloads nothing.
    """

    out: Folder = Path("runs/demo")
    """Folder for the corpus, the models and the index."""
    documents: int = 30_000
    """Maximum number of documents."""

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
    """Train and measure several recipes on a dataset, at the same bytes per document."""

    help_groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "data": ("data", "split"),
        "output": ("out", "json"),
        "recipes": ("recipes", "shrink", "engine"),
        "training, the same for all recipes": (
            "bytes-per-doc",
            "encoder.backbone",
            "candidates",
            "seed",
            "config",
            "device",
        ),
    }

    data: Data
    """Dataset: a folder in BEIR, MS MARCO, TREC or parquet layout, or 'irds:' and an ir_datasets id."""
    out: Folder
    """Folder for the models and indexes."""
    split: str = "test"
    """Split to measure on. 'dev' without such a split: the queries that training held out."""
    engine: Engine = "auto"
    """Candidate search; 'auto' chooses by the number of documents."""
    recipes: tuple[str, ...] = DEFAULT
    """Recipes to compare (`bidr recipes` lists them). The flags below apply to all of them."""
    shrink: tuple[int, ...] = ()
    """Also measure each recipe with int8 vectors and with vectors cut to so many dimensions."""

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
