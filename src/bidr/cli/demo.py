"""`bidr demo`: train and compare on the documentation of the installed Python packages."""

import sys
from dataclasses import dataclass
from pathlib import Path
from shutil import which

from bidr.cli.base import Command, CommandResult, Folder
from bidr.cli.last_index import save_last_index
from bidr.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Demo(Command):
    """Try bidr in minutes: search this machine's Python documentation.

    Reads the documentation of the installed packages, trains a model, builds an index for `bidr search`, and compares
    it with the conventional method. A part of the paper's tables is reproduced, as `bidr reproduce` does. Downloads
    nothing.
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
        rows, paper = run_demo(self.out, documents=self.documents, config=CONFIG)
        save_last_index(get_index_folder(self.out))
        command = "bidr" if which("bidr") else sys.argv[0]
        page = f"or open http://127.0.0.1:8000 after: {command} serve {get_index_folder(self.out)}"
        lines = [format_table(rows), paper.text, f"next: {command} search {EXAMPLE}", page]
        return CommandResult("\n".join(lines), report(rows))
