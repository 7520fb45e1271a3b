"""The embedded default: a search engine for the documentation of the Python packages installed on this machine."""

from pathlib import Path

from bidr.compare import Row, compare
from bidr.progress import say
from bidr.text import load
from bidr.text.python_docs import write
from bidr.training.config import TrainConfig

DOCUMENTS = 30_000
CONFIG = TrainConfig(bytes_per_doc=8)
EXAMPLE = "merge two sorted arrays"


def demo(out: Path, *, documents: int = DOCUMENTS, config: TrainConfig = CONFIG) -> list[Row]:
    """Collect the documentation, train every stage, build, measure, and leave an index to search.

    A call that was cut off is continued in the same folder.
    """
    say("collect, train five ways, build and measure: about four minutes on two cores, all of it kept in " + str(out))
    data = out / "data"
    if not data.exists():
        say("read the sources of the installed Python packages: summaries are questions, the rest is the answer")
        write(data, documents)
    return compare(load(data), out / "comparison", config)


def searchable(out: Path) -> Path:
    """The index that a finished demo leaves for searching."""
    return out / "comparison" / "bidr-unified" / "index"
