"""Types of search requests and results."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

from bidr.data.types import Document
from bidr.utils.array_types import Floats, Rows
from bidr.utils.deprecation import DeprecatedAlias
from bidr.utils.notebook import format_attributes, render_table, truncate_text
from bidr.utils.read_stats import ReadStats

if TYPE_CHECKING:
    from bidr.index.live.view import LiveView
    from bidr.index.reader import IndexReader

Texts = list[str] | tuple[str, ...]
SHOWN_HITS = 20
STEPS = ("encode", "candidates", "reads", "ranking")


class QueryVectors(NamedTuple):
    """Query vectors for the codes and for the full vectors; the same array twice if one encoder serves both."""

    codes: Floats
    vectors: Floats


class SearchOptions(TypedDict, total=False):
    """Options of a search, in a process or over HTTP.

    filter:         condition on attributes, such as {"lang": "en", "year": {"gte": 2020}}.
    codes_only:     rank by codes alone, without reading vectors and without BM25.
    lexical:        number of BM25 candidates to add to those of the codes; 0: none, None: as set in the searcher.
    lexical_weight: weight of the BM25 score that is added to the vector score; None: as set in the searcher.
    offset:         number of best documents to skip.
    min_score:      documents with a lower score are left out.
    group_by:       attribute of which the documents with one value are a group; at most `group_size` of each group.
    group_size:     see `group_by`.
    mmr:            maximal marginal relevance of the candidates: 1 is relevance alone, 0 diversity alone.
    fusion:         of vectors and BM25: "sum" adds the weighted scores, "rrf" reciprocal ranks.
    combine:        all queries of the call are one: a document has the "max" or the "mean" of their scores.
    """

    filter: Any
    codes_only: bool
    lexical: int | None
    lexical_weight: float | None
    offset: int
    min_score: float | None
    group_by: str | None
    group_size: int
    mmr: float | None
    fusion: Literal["sum", "rrf"]
    combine: Literal["max", "mean"] | None


class Timings(NamedTuple):
    """Milliseconds of each step of a search."""

    encode: float = 0.0
    candidates: float = 0.0
    reads: float = 0.0
    ranking: float = 0.0

    @property
    def total(self) -> float:
        return sum(self)


class SearchHit(NamedTuple):
    """One document of a result, with its rank among the candidates. Ranks start at 1.

    candidate_rank: rank by codes; 0: found by BM25 alone, with the lowest score of the codes as candidate_score.
    word_rank:      rank by BM25; 0: not among its candidates.
    rerank_score:   score of the cross-encoder, which orders the hits; None: it gave none.
    """

    rank: int
    id: str
    score: float
    candidate_rank: int
    candidate_score: float
    document: Document | None
    word_rank: int = 0
    rerank_score: float | None = None


class SearchResult(list[SearchHit]):
    """The hits of one query, best first. `timings`: of a batch, the share of one query."""

    def __init__(self, hits: Sequence[SearchHit], timings: Timings) -> None:
        super().__init__(hits)
        self.timings = timings

    def __repr__(self) -> str:
        lines = [f"{len(self):,} {'hit' if len(self) == 1 else 'hits'} in {self.timings.total:.1f} ms"]
        lines += [
            f"{hit.rank:>4}  {hit.score:9.4f}  {truncate_text(hit.id, 40)}{_format_text(hit.document)}"
            for hit in self[:SHOWN_HITS]
        ]
        lines += [f"  and {len(self) - SHOWN_HITS:,} more"] if len(self) > SHOWN_HITS else []
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the hits as a table, for notebooks."""
        rows = []
        for hit in self[:SHOWN_HITS]:
            document = hit.document or Document(hit.id, "", "")
            attributes = format_attributes(document.attributes)
            rows.append((hit.rank, f"{hit.score:.4f}", hit.id, document.title, document.text, attributes))
        more = f", the first {SHOWN_HITS}" if len(self) > SHOWN_HITS else ""
        caption = f"{len(self):,} {'hit' if len(self) == 1 else 'hits'} in {self.timings.total:.1f} ms{more}"
        return render_table(caption, ("rank", "score", "id", "title", "text", "attributes"), rows)


def _format_text(document: Document | None) -> str:
    text = "" if document is None else ": ".join(part for part in (document.title, document.text) if part)
    return f"  {truncate_text(text, 80)}" if text else ""


class RankedBatch(NamedTuple):
    """Results of many queries as arrays (queries, k); `candidate_positions`: (queries, candidates)."""

    rows: Rows
    scores: Floats
    candidate_ranks: Rows
    candidate_scores: Floats
    candidate_positions: Rows
    timings: Timings
    view: "IndexReader | LiveView | None" = None
    """The state of the index that the rows refer to; after changes to a live index they may refer to others."""
    word_ranks: Rows | None = None
    positions: Rows | None = None
    """Positions of the documents."""
    read_stats: ReadStats = ReadStats()
    """Vectors that were read for all queries together."""

    @property
    def candidate_rows(self) -> Rows:
        """The rows of the candidates."""
        return self.candidate_positions if self.view is None else self.view.rows_of(self.candidate_positions)


RankedBatch.candidate_places = DeprecatedAlias("Ranking.candidate_places", "candidate_positions")  # type: ignore[attr-defined]
