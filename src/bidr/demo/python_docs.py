"""Demo dataset: the documentation of the installed Python packages.

A query is the first sentence of a docstring; the relevant document is the function, method or class, without that
sentence.
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
_MAX_ANSWERS = 3
_MAX_TEST, _MAX_DEV = 2_000, 1_000
_SKIPPED_FOLDERS = {"tests", "test", "testdata", "idle_test", "site-packages", "dist-packages", "__pycache__"}

_Module = tuple[int, str, Path]


class PythonDocs(NamedTuple):
    """Documents, queries, and relevance judgments by split."""

    documents: list[Document]
    queries: list[Query]
    qrels_by_split: dict[str, Qrels]


def collect(limit: int = LIMIT, roots: Iterable[Path] | None = None) -> PythonDocs:
    """Collect at most `limit` documents from folders (None: those of the running interpreter), deterministically.

    Above `limit`, every package contributes about the same number, from modules chosen by a hash of their names.
    """
    if limit < 1:
        raise ConfigError(f"limit={limit} leaves no documents; expected 1 or more")
    roots = list_default_roots() if roots is None else list(roots)
    gathered = _gather(roots, limit)
    objects = list(gathered.by_text.values())
    if not objects:
        raise DataError(f"no documented Python code in {', '.join(map(str, roots))}; name folders that hold some")
    documents = sorted(Document(item.id, item.title, item.text) for item in objects)
    queries = _make_queries(objects, gathered.summaries)
    return PythonDocs(documents, [query for query, _ in queries], _split_queries(queries))


def write_corpus(folder: str | Path, limit: int = LIMIT) -> Path:
    """Write the dataset as a BEIR folder and return the folder."""
    folder = Path(folder)
    write_beir(folder, *collect(limit))
    return folder


def list_default_roots() -> list[Path]:
    """List the folders of the standard library and of installed packages."""
    paths = sysconfig.get_paths()
    return [Path(path) for path in dict.fromkeys(paths[name] for name in ("stdlib", "purelib", "platlib"))]


def normalize_text(text: str) -> str:
    """Reduce a text to lower-case letters and digits, with single spaces between words."""
    return " ".join(re.findall(r"[^\W_]+", text.lower()))


def _hash(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode())


def _find_modules(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield name and file of each module below a folder, except tests."""
    for folder, below, names in os.walk(root):
        below[:] = sorted(name for name in below if name.isidentifier() and name not in _SKIPPED_FOLDERS)
        parts = Path(folder).relative_to(root).parts
        for name in sorted(names):
            stem = name.removesuffix(".py")
            if stem == name or not stem.isidentifier() or stem == "conftest":
                continue
            if not stem.startswith("test_") and not stem.endswith("_test"):
                yield ".".join(parts if stem == "__init__" and parts else (*parts, stem)), Path(folder) / name


class _Collection:
    """Objects with distinct texts, and the object ids of each normalized summary."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.by_text: dict[str, PythonObject] = {}
        self.summaries: dict[str, set[str]] = {}
        self._ids: set[str] = set()

    def __len__(self) -> int:
        return len(self.by_text)

    def add(self, objects: Iterable[PythonObject]) -> int:
        """Add new objects up to the limit and return their number; a duplicate text only adds its summary."""
        old_count = len(self)
        for item in objects:
            text = normalize_text(item.text)
            if text not in self.by_text and (item.id in self._ids or len(self) == self.limit):
                continue
            same = self.by_text.setdefault(text, item)
            self._ids.add(same.id)
            self.summaries.setdefault(normalize_text(item.summary), set()).add(same.id)
        return len(self) - old_count


def _gather(roots: list[Path], limit: int) -> _Collection:
    """Read files with much documentation first; the others only if those do not suffice."""
    packages: dict[str, list[_Module]] = {}
    for module, path in (entry for root in roots for entry in _find_modules(root)):
        packages.setdefault(module.partition(".")[0], []).append((_hash(module), module, path))
    gathered = _Collection(limit)
    with show_progress("read installed packages", limit, "documents") as advance, _pause_gc():
        poor = _take_turns(packages, gathered, advance, rich=True)
        _take_turns(poor, gathered, advance, rich=False)
    return gathered


@contextmanager
def _pause_gc() -> Iterator[None]:
    """Disable garbage collection: syntax trees have no cycles, and searching them takes a sixth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _take_turns(
    packages: dict[str, list[_Module]], gathered: _Collection, advance: ProgressCallback, *, rich: bool
) -> dict[str, list[_Module]]:
    """Read files of the package with the fewest objects until the limit; return the unread files."""
    files_by_package = {name: sorted(files, reverse=True) for name, files in packages.items()}
    queue = [(0, name) for name in sorted(files_by_package)]
    unread: dict[str, list[_Module]] = {}
    while queue and len(gathered) < gathered.limit:
        count, package = heapq.heappop(queue)
        entry = files_by_package[package].pop()
        source = read_source(entry[2])
        if rich and not is_rich(source):
            unread.setdefault(package, []).append(entry)
        else:
            new = gathered.add(parse_objects(source, entry[1]))
            count += new
            advance(new, package)
        if files_by_package[package]:
            heapq.heappush(queue, (count, package))
    return unread


def _make_queries(objects: list[PythonObject], summaries: dict[str, set[str]]) -> list[tuple[Query, list[str]]]:
    """Make queries with their answers, in hash order, so that any slice is a random sample.

    Summaries of many objects are ambiguous, and those that an answer repeats are too easy: both are skipped.
    """
    spoken = {normalize_text(item.summary): item.summary for item in sorted(objects, reverse=True)}
    texts = {item.id: normalize_text(f"{item.title} {item.text}") for item in objects}
    questions = []
    for summary in sorted(summaries, key=_hash):
        answers = sorted(summaries[summary])
        is_repeated = any(summary in texts[answer] for answer in answers)
        if summary in spoken and len(answers) <= _MAX_ANSWERS and not is_repeated:
            questions.append((Query(f"q{_hash(summary):016x}", spoken[summary]), answers))
    return questions


def _split_queries(questions: list[tuple[Query, list[str]]]) -> dict[str, Qrels]:
    test = min(_MAX_TEST, len(questions) // 10)
    dev = min(_MAX_DEV, len(questions) // 10)
    parts = {"train": questions[test + dev :], "dev": questions[test : test + dev], "test": questions[:test]}
    return {
        name: {query.id: dict.fromkeys(answers, 1) for query, answers in part} for name, part in parts.items() if part
    }
