"""bidr search: answers to a question, in words or as a vector."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import tyro

from bidr.cli.base import Command, CommandResult, OptionalFile, OptionalFilter, OptionalFolder, OptionalNumber
from bidr.cli.last_index import load_last_index
from bidr.errors import ConfigError

if TYPE_CHECKING:
    from bidr.search.searcher import Searcher
    from bidr.search.types import SearchHit, SearchResult

NARROWEST = 40
SOON = 1.0
HEAD = "rank   score  candidate  document"
INDENT = " " * HEAD.index("document")


@dataclass(frozen=True, kw_only=True)
class Search(Command):
    """Answer a question from an index."""

    help_groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "the question": ("words", "query-vectors", "filter"),
        "the index": ("index", "model"),
        "the answers": ("k", "candidates", "ef", "fuse"),
        "BM25 beside the codes": ("lexical", "lexical-weight"),
        "output": ("json",),
    }

    words: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="WORDS ...")] = ()
    """The question, with or without quotes."""
    query_vectors: OptionalFile = None
    """Instead of words: the question's vector, or those of many (.npy, one a row); with --lexical beside the words: the
    one vector of the question."""
    index: OptionalFolder = None
    """Folder of the index; by default the one made last."""
    model: OptionalFolder = None
    """Folder of its model, if that is no longer where it was when the index was built."""
    k: int = 10
    """How many answers to show."""
    candidates: OptionalNumber = None
    """How many documents the codes bring up to be ranked; by default as the model was trained."""
    ef: OptionalNumber = None
    """How widely candidates are looked for: lists that are visited, or documents that a graph keeps in view."""
    fuse: float = 0.0
    """How much of the codes' score is added to the vectors'; 0: the vectors decide. Codes that learned from labels can
    rank better than the vectors do (1 is a good weight then)."""
    lexical: int = 0
    """How many documents that words find (BM25) are ranked too; the index must be built with --lexical."""
    lexical_weight: float = 0.0
    """How much BM25's score, as a share of the question's best, adds to a document's; 0: the vectors decide."""
    filter: OptionalFilter = None
    """What attributes the answers must have, as JSON: '{"lang": "en", "year": {"gte": 2020}}'."""

    def run(self) -> CommandResult:
        query = " ".join(self.words).strip()
        if self.query_vectors is not None:
            return self._search_vectors(self.query_vectors)
        if not query:
            raise ConfigError('no question given; put it after the flags, such as: bidr search "parse a date"')
        index = self.index or load_last_index()
        from bidr.pipeline.open import open_index

        words: dict[str, Any] = {"lexical": self.lexical, "lexical_weight": self.lexical_weight}
        with open_index(index, self.model, ef=self.ef, fuse=self.fuse, **words) as searcher:
            with announce_compilation():
                searcher.search(query, 1, 1, filter=self._filter())
            result = searcher.search(query, self.k, self.candidates, filter=self._filter())
            scope = self._describe_scope(searcher)
        return CommandResult(
            _format_result(result, scope), {"query": query, "index": str(index), **_convert_result(result)}
        )

    def _filter(self) -> Any:
        from bidr.index.filters.filter_expression import parse_filter_json

        return None if self.filter is None else parse_filter_json(self.filter)

    def _describe_scope(self, searcher: "Searcher") -> str:
        view = searcher.reader.latest()
        self._warn_unknown_attributes(view)
        count = view.count if self.filter is None else view.filtered(self._filter()).count
        depth = min(max(self.candidates or searcher.candidates, self.k), count)
        passed = "" if self.filter is None else f"{count:,} that pass the filter, of "
        words = f" and {self.lexical:,} by words" if self.lexical else ""
        return f"{depth:,} candidates{words} out of {passed}{view.count:,} documents"

    def _warn_unknown_attributes(self, view: Any) -> None:
        """Say which attributes of the filter no document has: an answer of nothing would not."""
        from bidr.index.filters.filter_expression import list_attribute_names, parse_filter
        from bidr.utils.progress import say

        unknown = (
            set() if self.filter is None else list_attribute_names(parse_filter(self._filter())) - view.attributes()
        )
        if unknown:
            attributes = ", ".join(sorted(view.attributes())) or "none"
            say(
                f"--filter: no document has the attribute {', '.join(map(repr, sorted(unknown)))}; "
                f"there are: {attributes}"
            )

    def _search_vectors(self, path: Path) -> CommandResult:
        from bidr.pipeline.open import open_index

        words = " ".join(self.words).strip()
        if words and not self.lexical:
            raise ConfigError(
                "words and --query-vectors given, expected one of them: ask by words or by vectors; or by both, with "
                "--lexical N, so many of what words find"
            )
        if self.lexical and not words:
            raise ConfigError(
                "--lexical and --query-vectors given without words, expected the question in words too; put it after "
                "the flags"
            )
        index = self.index or load_last_index()
        weighed: dict[str, Any] = {"lexical": self.lexical, "lexical_weight": self.lexical_weight}
        with open_index(index, self.model, ef=self.ef, fuse=self.fuse, **weighed) as searcher:
            queries = searcher.query_vectors(path)
            if words and len(queries.vectors) != 1:
                raise ConfigError(
                    f"{path}: {len(queries.vectors):,} vectors for one question in words, expected one row; ask one at "
                    "a time"
                )
            options = {"filter": self._filter(), "words": [words] if words else None}
            with announce_compilation():
                searcher.search_vectors(queries, 1, 1, **options)
            result = searcher.load_results(searcher.search_vectors(queries, self.k, self.candidates, **options))
            scope = self._describe_scope(searcher)
        heads = [f"question {row}:\n" if len(result) > 1 else "" for row in range(len(result))]
        text = "\n".join(head + _format_result(result, scope) for head, result in zip(heads, result, strict=True))
        return CommandResult(
            text, {"queries": str(path), "index": str(index), "results": [_convert_result(result) for result in result]}
        )


@contextmanager
def announce_compilation() -> Iterator[None]:
    """Run a first search within, which compiles kernels where no cache has them; say so if that takes a while.

    Its time is not that of the search which follows.
    """
    from bidr.utils.progress import say

    timer = Timer(SOON, say, ["compiling the search kernels, once per installation: about 20 seconds ..."])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _format_result(result: "SearchResult", scope: str) -> str:
    width = max(NARROWEST, shutil.get_terminal_size((100, 24)).columns)
    return "\n".join(
        [HEAD, *(line for answer in result for line in _format_hit(answer, width)), _format_timings(result, scope)]
    )


def _format_hit(answer: "SearchHit", width: int) -> list[str]:
    """Two lines an answer: its place and title, and how its text begins."""
    document, room = answer.document, width - len(INDENT)
    start = f"{answer.rank:>4}  {answer.score:6.3f}  {answer.candidate_rank or 'words':>9}  "
    name = clean(document.title, room) if document else ""
    first = start + (name or clean(answer.id, room))
    text = clean(document.text, room) if document else ""
    return [first, INDENT + text] if text else [first]


def clean(text: str, width: int) -> str:
    """The beginning of a text on one line, without characters that would move a terminal's cursor."""
    words = " ".join("".join(letter if letter.isprintable() else " " for letter in text[: 4 * width]).split())
    return words if len(words) <= width else words[: width - 1].rstrip() + "…"


def _format_timings(result: "SearchResult", scope: str) -> str:
    steps = ", ".join(f"{name} {value:.1f}" for name, value in result.timings._asdict().items())
    return f"{result.timings.total:.1f} ms: {steps}; {scope}"


def _convert_result(result: "SearchResult") -> dict[str, Any]:
    answers = [
        {
            **{name: value for name, value in answer._asdict().items() if name != "document"},
            "title": answer.document.title if answer.document else None,
            "text": answer.document.text if answer.document else None,
            "attributes": answer.document.attributes if answer.document else None,
        }
        for answer in result
    ]
    return {"answers": answers, "milliseconds": {**result.timings._asdict(), "total": result.timings.total}}
