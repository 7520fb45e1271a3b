"""`bidr search`: search by text or by vectors."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import tyro

from bidr.cli.base import (
    CommandResult,
    OptionalFile,
    OptionalFilter,
    OptionalFolder,
    OptionalNumber,
    OptionalWeight,
    SearchCommand,
    format_count,
)
from bidr.cli.filter_flag import parse_filter_flag
from bidr.cli.last_index import load_last_index
from bidr.errors import ConfigError

if TYPE_CHECKING:
    from bidr.search.searcher import Searcher
    from bidr.search.types import SearchHit, SearchResult

NARROWEST = 40
HEAD = "rank   score  candidate  document"
OptionalName = Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="(optional)")]
OptionalCombination = Annotated[Literal["max", "mean"] | None, tyro.conf.arg(help_behavior_hint="(optional)")]
INDENT = " " * HEAD.index("document")


@dataclass(frozen=True, kw_only=True)
class Search(SearchCommand):
    """Search an index."""

    help_groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "query": ("words", "query-vectors", "like", "filter"),
        "index": ("index", "model", "encoder"),
        "hits": ("k", "candidates", "ef", "fuse", "offset", "min-score", "group-by", "mmr", "reranker"),
        "BM25 beside the codes": ("lexical", "lexical-weight", "fusion"),
        "output": ("json",),
    }

    words: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="WORDS ...")] = ()
    """The query text, quoted or not."""
    query_vectors: OptionalFile = None
    """Query vectors (.npy, one per row) instead of a text; with --lexical, the one vector of that text."""
    like: OptionalName = None
    """Search for documents like the one with this id, instead of a text."""
    k: int = 10
    """Number of hits."""
    ef: OptionalNumber = None
    """Search width of the engine: lists to visit (nprobe), or efSearch of the graph."""
    filter: OptionalFilter = None
    """Filter on attributes, as JSON: '{"lang": "en", "year": {"gte": 2020}}'."""
    reranker: OptionalFolder = None
    """Folder of a cross-encoder (ONNX), which orders the best hits of a text query."""
    rerank: int = 50
    """Hits that the cross-encoder reads."""
    offset: int = 0
    """Number of best documents to skip."""
    min_score: OptionalWeight = None
    """Leave out documents with a lower score."""
    group_by: OptionalName = None
    """Attribute: of the documents with one value only the best are hits (--group-size)."""
    group_size: int = 1
    """Hits for each value of --group-by."""
    mmr: OptionalWeight = None
    """Maximal marginal relevance of the candidates: 1 is relevance alone, 0 diversity alone."""
    fusion: Literal["sum", "rrf"] = "sum"
    """Of vectors and BM25: weighted sum of the scores, or sum of reciprocal ranks."""
    combine: OptionalCombination = None
    """All --query-vectors are one query: a document has the max or the mean of their scores."""

    def run(self) -> CommandResult:
        query = " ".join(self.words).strip()
        if self.like is not None:
            return self._search_like(self.like)
        if self.query_vectors is not None:
            return self._search_vectors(self.query_vectors)
        if not query:
            raise ConfigError('no query given; put it after the flags, such as: bidr search "parse a date"')
        index = self.index or load_last_index()
        from bidr.pipeline.open import open_index
        from bidr.utils.jit import call_on_compilation

        words: dict[str, Any] = {"lexical": self.lexical, "lexical_weight": self.lexical_weight}
        opening: dict[str, Any] = {"encoder": self.encoder, "reranker": self.reranker, "cache": self.cache, **words}
        with open_index(index, self.model, ef=self.ef, fuse=self.fuse, **opening) as searcher:
            self._check(searcher)
            with call_on_compilation(announce_compilation):
                searcher.search(query, 1, 1, filter=self._filter())
            options = {"filter": self._filter(), **self._get_shaping()}
            if self.reranker is not None:
                result = searcher.search_reranked(query, self.k, self.candidates, rerank=self.rerank, **options)
            else:
                result = searcher.search(query, self.k, self.candidates, **options)
            scope = self._describe_scope(searcher, searcher.lexical)
        return CommandResult(
            _format_result(result, scope), {"query": query, "index": str(index), **_convert_result(result)}
        )

    def _get_shaping(self) -> Any:
        """Return the options that act on ranked candidates, as far as they are given."""
        from bidr.search.hit_selection import NO_SHAPING

        options = {name: getattr(self, name) for name in NO_SHAPING._fields}
        return {name: value for name, value in options.items() if value != getattr(NO_SHAPING, name)}

    def _search_like(self, doc_id: str) -> CommandResult:
        if self.words or self.query_vectors is not None:
            raise ConfigError("--like given with a text or --query-vectors, expected one of them")
        index = self.index or load_last_index()
        from bidr.pipeline.open import open_index
        from bidr.utils.jit import call_on_compilation

        with open_index(index, self.model, ef=self.ef, fuse=self.fuse) as searcher:
            self._check(searcher)
            with call_on_compilation(announce_compilation):
                searcher.more_like(doc_id, 1, 1)
            result = searcher.more_like(doc_id, self.k, self.candidates, filter=self._filter(), **self._get_shaping())
            scope = self._describe_scope(searcher, 0)
        value = {"like": doc_id, "index": str(index), **_convert_result(result)}
        return CommandResult(_format_result(result, scope), value)

    def _filter(self) -> Any:
        from bidr.index.filters.filter_expression import parse_filter_json

        return None if self.filter is None else parse_filter_json(self.filter)

    def _describe_scope(self, searcher: "Searcher", lexical: int) -> str:
        view = searcher.reader.latest()
        count = view.count if self.filter is None else view.select(self._filter()).count
        depth = min(max(self.candidates or searcher.candidates, self.k), count)
        passed = "" if self.filter is None else f"{count:,} that match the filter, of "
        words = f" and {lexical:,} by words" if lexical else ""
        return f"{format_count(depth, 'candidate')}{words} out of {passed}{format_count(view.count, 'document')}"

    def _check(self, searcher: "Searcher") -> None:
        """Refuse invalid numbers and unknown attributes before the first search, which may compile for a while."""
        from bidr.search.searcher import check_integer

        check_integer("k", self.k)
        if self.candidates is not None:
            check_integer("candidates", self.candidates)
        if self.filter is None:
            return
        view: Any = searcher.reader.latest()
        parse_filter_flag(self.filter, view.attributes())

    def _search_vectors(self, path: Path) -> CommandResult:
        from bidr.pipeline.open import open_index
        from bidr.utils.jit import call_on_compilation

        words = " ".join(self.words).strip()
        if words and not self.lexical:
            raise ConfigError(
                "text and --query-vectors given, expected one of them, or both with --lexical N (number of BM25 "
                "candidates)"
            )
        if self.lexical and not words:
            raise ConfigError(
                "--lexical and --query-vectors given without a text, expected the text of the query too; put it after "
                "the flags"
            )
        index = self.index or load_last_index()
        weighed: dict[str, Any] = {"lexical": self.lexical, "lexical_weight": self.lexical_weight}
        weighed |= {"encoder": self.encoder, "ef": self.ef, "fuse": self.fuse, "cache": self.cache}
        with open_index(index, self.model, **weighed) as searcher:
            queries = searcher.query_vectors(path)
            if words and len(queries.vectors) != 1:
                raise ConfigError(
                    f"{path}: {len(queries.vectors):,} vectors for one query text, expected one row; search one at "
                    "a time"
                )
            options = {"filter": self._filter(), "words": [words] if words else None}
            self._check(searcher)
            with call_on_compilation(announce_compilation):
                searcher.search_vectors(queries, 1, 1, **options)
            options |= self._get_shaping()
            result = searcher.load_results(searcher.search_vectors(queries, self.k, self.candidates, **options))
            scope = self._describe_scope(searcher, self.lexical or 0)
        heads = [f"query {row}:\n" if len(result) > 1 else "" for row in range(len(result))]
        text = "\n".join(head + _format_result(result, scope) for head, result in zip(heads, result, strict=True))
        return CommandResult(
            text, {"queries": str(path), "index": str(index), "results": [_convert_result(result) for result in result]}
        )


def announce_compilation() -> None:
    """Say that the first search compiles; its time is not counted."""
    from bidr.utils.progress import say

    say("compiling search kernels, cached for later searches: up to 20 seconds ...")


def _format_result(result: "SearchResult", scope: str) -> str:
    width = max(NARROWEST, shutil.get_terminal_size((100, 24)).columns)
    return "\n".join(
        [HEAD, *(line for answer in result for line in _format_hit(answer, width)), _format_timings(result, scope)]
    )


def _format_hit(answer: "SearchHit", width: int) -> list[str]:
    """Format a hit in two lines: rank, scores and title, then the beginning of the text."""
    document, room = answer.document, width - len(INDENT)
    start = f"{answer.rank:>4}  {answer.score:6.3f}  {answer.candidate_rank or 'words':>9}  "
    name = clean(document.title, room) if document else ""
    first = start + (name or clean(answer.id, room))
    text = clean(document.text, room) if document else ""
    return [first, INDENT + text] if text else [first]


def clean(text: str, width: int) -> str:
    """Return the beginning of a text on one line, without control characters."""
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
