"""`bidr demo`: a search engine for the documentation of the installed Python packages."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bidr.data.dataset import load
from bidr.demo.python_docs import write_corpus
from bidr.errors import ConfigError
from bidr.experiments.compare import ComparisonRow, compare
from bidr.experiments.reproduce.reproduction import cap_candidates, reproduce
from bidr.experiments.reproduce.results_report import Report, write_report
from bidr.models.static_embeddings import WORDLLAMA, has_wordllama
from bidr.training.config import BUILT_IN, EncoderConfig, TrainConfig
from bidr.training.presets import DEFAULT
from bidr.utils.files import write_json
from bidr.utils.progress import say

DOCUMENTS = 30_000
CONFIG = TrainConfig(bytes_per_doc=8)
ROWS = tuple(name for name in DEFAULT if name != "auto")
PAPER_ROWS = ("warmup-opq", "star-opq", "bm25", "bidr-random-walk")
EXAMPLE = "merge two sorted arrays"


class DemoResult(NamedTuple):
    """Rows of the comparison, and the report on the paper's claims."""

    rows: list[ComparisonRow]
    report: Report


def run_demo(out: Path, *, documents: int = DOCUMENTS, config: TrainConfig = CONFIG) -> DemoResult:
    """Collect the documentation, train, build and measure; resumes an interrupted call in the same folder.

    A part of the paper's tables is reproduced with the stages that the comparison trained.

    The built-in encoder starts from the embeddings of the package wordllama if it is installed.
    """
    if documents < config.codewords:
        raise ConfigError(f"documents: given {documents}, expected {config.codewords} or more: as many as codewords")
    data, record = out / "data", out / "data.json"
    earlier = json.loads(record.read_text()) if record.exists() else None
    if earlier and earlier["documents"] != documents:
        raise ConfigError(f"{out} holds a demo of another number of documents than {documents}; choose another --out")
    say(f"collect, train, build and measure six ways: about four minutes on two cores, all of it kept in {out}")
    backbone = earlier.get("backbone", BUILT_IN) if earlier else choose_backbone()
    say(f"encoder: {backbone}" + ("" if backbone == BUILT_IN else ", the built-in one started from its embeddings"))
    if earlier is None:
        say("read the sources of the installed Python packages: summaries are questions, the rest is the answer")
        shutil.rmtree(data, ignore_errors=True)
        write_corpus(data, documents)
        write_json(record, {"documents": documents, "backbone": backbone})
    if backbone != BUILT_IN:
        config = replace(config, encoder=replace(config.encoder, backbone=backbone, dim=EncoderConfig.dim))
    dataset, comparison = load(data), out / "comparison"
    config = cap_candidates(config, dataset.corpus.count())
    rows = compare(dataset, comparison, config, recipes=ROWS)
    say("the paper's claims, on the same models")
    reproduce(dataset, config, out / "paper", seeds=1, only=PAPER_ROWS, work=comparison)
    return DemoResult(rows, write_report(out / "paper"))


def choose_backbone() -> str:
    """Return 'wordllama' if its wheel is installed, else 'built-in'."""
    return WORDLLAMA if has_wordllama() else BUILT_IN


def get_index_folder(out: Path) -> Path:
    """Return the folder of the demo's index."""
    return out / "comparison" / "bidr-unified" / "index"
