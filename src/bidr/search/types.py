"""Types of search requests and results."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from bidr.data.types import Document
from bidr.utils.array_types import Floats, Rows
from bidr.utils.deprecation import DeprecatedAlias
from bidr.utils.read_stats import ReadStats

if TYPE_CHECKING:
    from bidr.index.live.view import LiveView
    from bidr.index.reader import IndexReader

Texts = list[str] | tuple[str, ...]
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
    """

    filter: Any
    codes_only: bool
    lexical: int | None
    lexical_weight: float | None


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
    """

    rank: int
    id: str
    score: float
    candidate_rank: int
    candidate_score: float
    document: Document | None
    word_rank: int = 0


class SearchResult(list[SearchHit]):
    """The hits of one query, best first. `timings`: of a batch, the share of one query."""

    def __init__(self, hits: Sequence[SearchHit], timings: Timings) -> None:
        super().__init__(hits)
        self.timings = timings


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
    read_stats: ReadStats = ReadStats()
    """Vectors that were read for all queries together."""

    @property
    def candidate_rows(self) -> Rows:
        """The rows of the candidates."""
        return self.candidate_positions if self.view is None else self.view.rows_of(self.candidate_positions)


RankedBatch.candidate_places = DeprecatedAlias("Ranking.candidate_places", "candidate_positions")  # type: ignore[attr-defined]
