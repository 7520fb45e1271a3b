"""A corpus that every machine has: the documentation of its own Python packages.

A question is the first sentence of a docstring; the answer is the function, method or class it was written for, shown
without that sentence.
"""

import gc
import heapq
import os
import re
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import xxhash

from bidr.data.readers.beir import write_beir
from bidr.data.readers.trec import Qrels
from bidr.data.types import Document, Query
from bidr.demo.python_source import PythonObject, is_rich, parse_objects, read_source
from bidr.errors import ConfigError, DataError
from bidr.utils.progress import ProgressCallback, show_progress

LIMIT = 40_000
_MOST_SHARED = 3
_MOST_TEST, _MOST_DEV = 2_000, 1_000
_LEFT_OUT = {"tests", "test", "testdata", "idle_test", "site-packages", "dist-packages", "__pycache__"}

_Module = tuple[int, str, Path]


class PythonDocs(NamedTuple):
    """Documents, questions, and by split which documents answer which question."""

    documents: list[Document]
    queries: list[Query]
    qrels_by_split: dict[str, Qrels]


def collect(limit: int = LIMIT, roots: Iterable[Path] | None = None) -> PythonDocs:
    """Gather at most `limit` documents from the folders given (those of the running interpreter when None).

    The same for the same files. When there are more than `limit`, every package gives about the same number, from
    modules chosen by a hash of their names.
    """
    if limit < 1:
        raise ConfigError(f"limit={limit} leaves no documents; expected 1 or more")
    roots = list_default_roots() if roots is None else list(roots)
    gathered = _gather(roots, limit)
    objects = list(gathered.by_text.values())
    if not objects:
        raise DataError(f"no documented Python code in {', '.join(map(str, roots))}; name folders that hold some")
    documents = sorted(Document(found.id, found.title, found.text) for found in objects)
    questions = _questions(objects, gathered.summaries)
    return PythonDocs(documents, [query for query, _ in questions], _split(questions))


def write_corpus(folder: str | Path, limit: int = LIMIT) -> Path:
    """Write the corpus of this machine as a BEIR folder and return the folder, for `load`."""
    folder = Path(folder)
    write_beir(folder, *collect(limit))
    return folder


def list_default_roots() -> list[Path]:
    """The standard library and the installed packages of the running interpreter."""
    paths = sysconfig.get_paths()
    return [Path(path) for path in dict.fromkeys(paths[name] for name in ("stdlib", "purelib", "platlib"))]


def normalize_text(text: str) -> str:
    """Lower-case letters and digits, a space between words: equal for texts that differ in nothing that matters."""
    return " ".join(re.findall(r"[^\W_]+", text.lower()))


def _hash(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode())


def _modules(root: Path) -> Iterator[tuple[str, Path]]:
    """Name and file of each module below a folder, those of tests left out."""
    for folder, below, names in os.walk(root):
        below[:] = sorted(name for name in below if name.isidentifier() and name not in _LEFT_OUT)
        parts = Path(folder).relative_to(root).parts
        for name in sorted(names):
            stem = name.removesuffix(".py")
            if stem == name or not stem.isidentifier() or stem == "conftest":
                continue
            if not stem.startswith("test_") and not stem.endswith("_test"):
                yield ".".join(parts if stem == "__init__" and parts else (*parts, stem)), Path(folder) / name


class _Gathered:
    """Objects whose texts differ, and for each normalised summary the ids of the objects it stands for."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.by_text: dict[str, PythonObject] = {}
        self.summaries: dict[str, set[str]] = {}
        self._ids: set[str] = set()

    def __len__(self) -> int:
        return len(self.by_text)

    def add(self, objects: Iterable[PythonObject]) -> int:
        """Take what is new, up to the limit; a text seen before (a vendored copy) only adds its summary."""
        before = len(self)
        for found in objects:
            text = normalize_text(found.text)
            if text not in self.by_text and (found.id in self._ids or len(self) == self.limit):
                continue
            same = self.by_text.setdefault(text, found)
            self._ids.add(same.id)
            self.summaries.setdefault(normalize_text(found.summary), set()).add(same.id)
        return len(self) - before


def _gather(roots: list[Path], limit: int) -> _Gathered:
    """Files with much documentation come first, for speed; the others only when those do not suffice."""
    packages: dict[str, list[_Module]] = {}
    for module, path in (found for root in roots for found in _modules(root)):
        packages.setdefault(module.partition(".")[0], []).append((_hash(module), module, path))
    gathered = _Gathered(limit)
    with show_progress("read installed packages", limit, "documents") as advance, _no_collection():
        poor = _take_turns(packages, gathered, advance, rich=True)
        _take_turns(poor, gathered, advance, rich=False)
    return gathered


@contextmanager
def _no_collection() -> Iterator[None]:
    """Syntax trees hold no cycles, and looking for some in them takes a sixth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _take_turns(
    packages: dict[str, list[_Module]], gathered: _Gathered, advance: ProgressCallback, *, rich: bool
) -> dict[str, list[_Module]]:
    """Read a file of the package that has given least so far, until there are enough; return what was left unread."""
    waiting = {name: sorted(files, reverse=True) for name, files in packages.items()}
    queue = [(0, name) for name in sorted(waiting)]
    unread: dict[str, list[_Module]] = {}
    while queue and len(gathered) < gathered.limit:
        given, package = heapq.heappop(queue)
        entry = waiting[package].pop()
        source = read_source(entry[2])
        if rich and not is_rich(source):
            unread.setdefault(package, []).append(entry)
        else:
            new = gathered.add(parse_objects(source, entry[1]))
            given += new
            advance(new, package)
        if waiting[package]:
            heapq.heappush(queue, (given, package))
    return unread


def _questions(objects: list[PythonObject], summaries: dict[str, set[str]]) -> list[tuple[Query, list[str]]]:
    """Each question with its answers, in the order of a hash, which makes any part of the list a fair sample.

    A question that stands for many objects is no question, and one whose answer repeats it is too easy.
    """
    spoken = {normalize_text(found.summary): found.summary for found in sorted(objects, reverse=True)}
    texts = {found.id: normalize_text(f"{found.title} {found.text}") for found in objects}
    questions = []
    for summary in sorted(summaries, key=_hash):
        answers = sorted(summaries[summary])
        told = any(summary in texts[answer] for answer in answers)
        if summary in spoken and len(answers) <= _MOST_SHARED and not told:
            questions.append((Query(f"q{_hash(summary):016x}", spoken[summary]), answers))
    return questions


def _split(questions: list[tuple[Query, list[str]]]) -> dict[str, Qrels]:
    test = min(_MOST_TEST, len(questions) // 10)
    dev = min(_MOST_DEV, len(questions) // 10)
    parts = {"train": questions[test + dev :], "dev": questions[test : test + dev], "test": questions[:test]}
    return {
        name: {query.id: dict.fromkeys(answers, 1) for query, answers in part} for name, part in parts.items() if part
    }
