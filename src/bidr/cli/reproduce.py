"""bidr reproduce: the tables and figures of the paper, on your data."""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal, Self

import tyro

from bidr.cli.base import CommandResult, Folder, OptionalData
from bidr.cli.config_parsing import find_file_flag, load_toml, suggest_name
from bidr.cli.train import Settings, WithSettings
from bidr.errors import ConfigError
from bidr.experiments.reproduce.paper_settings import PRESETS, make_default_settings, make_settings

OptionalName = Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="(optional)")]
PresetName = Literal["msmarco-passage", "msmarco-document", "ads"]


@dataclass(frozen=True, kw_only=True)
class Reproduce(WithSettings):
    """Reproduce the tables and figures of the paper on a dataset, and write a report.

    Each row (dataset, encoder, seed, name) is a small file in DIR/rows, written when it is complete; the same command
    goes on where it was stopped. Rows of several datasets, seeds and machines make one report.
    """

    help_groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "data": ("data", "split"),
        "output": ("out", "report", "json"),
        "rows": ("only", "seeds"),
        "settings of the paper": ("preset", "plan"),
        "training, the same for all rows": (
            "encoder",
            "bytes-per-doc",
            "candidates",
            "seed",
            "config",
            "device",
        ),
    }

    out: Folder
    """Folder for rows, report, and work (models, stages and indexes, which may be deleted)."""
    data: OptionalData = None
    """Dataset: a folder in BEIR, MS MARCO, TREC or parquet layout, or 'irds:' and an ir_datasets id."""
    encoder: OptionalName = None
    """Encoder: 'built-in', or the folder or id of a transformer (as --encoder.backbone)."""
    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ()
    """Tables (table1, table2, table3, ablation, figure4, figure4-bits, sizes, extras) or rows, separated by commas or
    spaces. By default all but figure4-bits, which trains codes of five sizes."""
    seeds: int = 3
    """Number of seeds, from --seed on."""
    split: OptionalName = None
    """Split to report on; by default test, dev.small or dev, the first that there is."""
    preset: Annotated[PresetName | None, tyro.conf.arg(help_behavior_hint="(optional)")] = None
    """The paper's settings for one of its datasets; flags and --config override them."""
    report: bool = False
    """Only write the report of the rows in DIR/rows."""
    plan: bool = False
    """Only estimate GPU hours, disk and RAM of the rows, for --data or the dataset of --preset."""
    settings: Settings = field(default_factory=make_default_settings)

    @classmethod
    def make_defaults(cls, flags: Sequence[str]) -> Self | None:
        path = find_file_flag(flags, "--config")
        preset, encoder = find_file_flag(flags, "--preset"), find_file_flag(flags, "--encoder")
        if path is None and preset is None and encoder is None:
            return None
        if preset is not None and str(preset) not in PRESETS:
            meant = suggest_name(str(preset), PRESETS)
            raise ConfigError(f"--preset: given {str(preset)!r}{meant or ';'} known are {', '.join(PRESETS)}")
        settings = make_settings(str(preset) if preset else None, str(encoder) if encoder else None)
        required: dict[str, Any] = {
            flag.name: tyro.MISSING
            for flag in fields(cls)
            if flag.default is MISSING and flag.default_factory is MISSING
        }
        return cls(config=path, settings=load_toml(settings, path) if path else settings, **required)

    def run(self) -> CommandResult:
        from bidr.data.dataset import load
        from bidr.experiments.reproduce.reproduction import reproduce
        from bidr.experiments.reproduce.results_report import write_report

        if self.report and self.plan:
            raise ConfigError("--report and --plan given, expected one of them")
        if self.plan:
            return self._estimate()
        if not self.report:
            if self.data is None:
                raise ConfigError("--data: not given, expected a dataset; with --report alone none is needed")
            data = load(self.data)
            reproduce(
                data,
                self.settings,
                self.out,
                seeds=self.seeds,
                only=self.only,
                split=self.split,
                preset=self.preset,
            )
        report = write_report(self.out)
        return CommandResult(report.text, report.value)

    def _estimate(self) -> CommandResult:
        from bidr.data.dataset import load
        from bidr.experiments.reproduce.cost_estimate import estimate_costs, format_costs

        if self.data is None and self.preset is None:
            raise ConfigError("--plan: give --data or --preset, whose size is estimated")
        costs = estimate_costs(
            self.settings, load(self.data) if self.data else None, self.preset, seeds=self.seeds, only=self.only
        )
        return CommandResult(format_costs(costs), costs)
