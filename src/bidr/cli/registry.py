"""The verbs of the command line, and the page that lists them."""

from bidr.cli.add import Add
from bidr.cli.base import Command
from bidr.cli.bench import Bench
from bidr.cli.build import Build
from bidr.cli.compact import Compact
from bidr.cli.compare import Compare
from bidr.cli.create import Create
from bidr.cli.delete import Delete
from bidr.cli.demo import Demo
from bidr.cli.evaluate import Evaluate
from bidr.cli.export import Export
from bidr.cli.inspect import Inspect
from bidr.cli.list_documents import Count, Get, List
from bidr.cli.plan import Plan
from bidr.cli.repair import Repair
from bidr.cli.reproduce import Reproduce
from bidr.cli.search import Search
from bidr.cli.serve import Serve
from bidr.cli.snapshot import Snapshot
from bidr.cli.train import Recipes, Train
from bidr.cli.update import Update
from bidr.cli.verify import Verify

VERBS: dict[str, type[Command]] = {
    "demo": Demo,
    "train": Train,
    "plan": Plan,
    "build": Build,
    "create": Create,
    "search": Search,
    "serve": Serve,
    "evaluate": Evaluate,
    "add": Add,
    "update": Update,
    "delete": Delete,
    "list": List,
    "count": Count,
    "get": Get,
    "compact": Compact,
    "snapshot": Snapshot,
    "inspect": Inspect,
    "verify": Verify,
    "repair": Repair,
    "compare": Compare,
    "reproduce": Reproduce,
    "bench": Bench,
    "export": Export,
    "recipes": Recipes,
}

EXAMPLES = """\
  bidr demo
  bidr train --data FOLDER --out runs/a --bytes-per-doc 16
  bidr search --index runs/a/index who painted the night watch"""


def format_overview() -> str:
    """Format the page of `bidr --help`."""
    width = max(map(len, VERBS))
    lines = [f"  {name:<{width}}  {(verb.__doc__ or '').splitlines()[0]}" for name, verb in VERBS.items()]
    return "\n".join(
        [
            "usage: bidr VERB [FLAGS]",
            "",
            "Vector search: compressed codes in RAM select candidates, full vectors on disk rank them.",
            "",
            "verbs:",
            *lines,
            "",
            "examples:",
            EXAMPLES,
            "",
            "bidr VERB --help shows the flags of a verb. With --debug (or BIDR_DEBUG=1) an error shows its traceback.",
        ]
    )
