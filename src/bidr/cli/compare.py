"""`bidr compare`: train and measure several recipes on a dataset."""

from dataclasses import dataclass
from typing import ClassVar

from bidr.cli.base import CommandResult, Data, Engine, Folder
from bidr.cli.train import WithSettings
from bidr.training.presets import DEFAULT


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
