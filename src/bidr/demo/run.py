"""`bidr demo`: a search engine for the documentation of the installed Python packages."""

import json
import shutil
from pathlib import Path

from bidr.data.dataset import load
from bidr.demo.python_docs import write_corpus
from bidr.errors import ConfigError
from bidr.experiments.compare import ComparisonRow, compare
from bidr.training.config import TrainConfig
from bidr.utils.files import write_json
from bidr.utils.progress import say

DOCUMENTS = 30_000
CONFIG = TrainConfig(bytes_per_doc=8)
EXAMPLE = "merge two sorted arrays"


def run_demo(out: Path, *, documents: int = DOCUMENTS, config: TrainConfig = CONFIG) -> list[ComparisonRow]:
    """Collect the documentation, train, build and measure; resumes an interrupted call in the same folder."""
    if documents < config.codewords:
        raise ConfigError(f"documents: given {documents}, expected {config.codewords} or more: as many as codewords")
    data, record = out / "data", out / "data.json"
    if record.exists() and json.loads(record.read_text())["documents"] != documents:
        raise ConfigError(f"{out} holds a demo of another number of documents than {documents}; choose another --out")
    say(f"collect, train, build and measure five ways: about four minutes on two cores, all of it kept in {out}")
    if not record.exists():
        say("read the sources of the installed Python packages: summaries are questions, the rest is the answer")
        shutil.rmtree(data, ignore_errors=True)
        write_corpus(data, documents)
        write_json(record, {"documents": documents})
    return compare(load(data), out / "comparison", config)


def get_index_folder(out: Path) -> Path:
    """Return the folder of the demo's index."""
    return out / "comparison" / "bidr-unified" / "index"
