"""What a search is asked and answers, as it passes between packages."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from bidr.data.types import Document
from bidr.utils.array_types import Floats, Rows

if TYPE_CHECKING:
    from bidr.index.live.view import LiveView
    from bidr.index.reader import IndexReader

Texts = list[str] | tuple[str, ...]
STEPS = ("encode", "candidates", "reads", "ranking")


class QueryVectors(NamedTuple):
    """Queries as each side sees them; the same array twice where one encoder serves both."""

    codes: Floats
    vectors: Floats


class SearchOptions(TypedDict, total=False):
    """What else a search may say, of an open index and of a served one.

    filter:         what attributes the answers must have, such as {"lang": "en", "year": {"gte": 2020}}.
    codes_only:     answer as the codes alone rank: nothing is read from disk, and words are not asked.
    lexical:        how many documents the words find (BM25) join the codes' candidates; 0: none, None: as the searcher.
    lexical_weight: how much of BM25's score is added to the vectors' score; None: as the searcher.
    """

    filter: Any
    codes_only: bool
    lexical: int | None
    lexical_weight: float | None


class Timings(NamedTuple):
    """Milliseconds of each step."""

    encode: float = 0.0
    candidates: float = 0.0
    reads: float = 0.0
    ranking: float = 0.0

    @property
    def total(self) -> float:
        return sum(self)


class SearchHit(NamedTuple):
    """One document that was found, and where the codes alone had put it (ranks start at 1).

    candidate_rank: 0 where the words alone found it; its candidate_score is then the least of the codes' candidates.
    word_rank:      where the words had it; 0: not asked for, or not among those that were.
    """

    rank: int
    id: str
    score: float
    candidate_rank: int
    candidate_score: float
    document: Document | None
    word_rank: int = 0


class SearchResult(list[SearchHit]):
    """The answers to one query, best first. `timings` are milliseconds, for one query out of a batch its share."""

    def __init__(self, answers: Sequence[SearchHit], timings: Timings) -> None:
        super().__init__(answers)
        self.timings = timings


class RankedBatch(NamedTuple):
    """Answers to many queries as arrays: (queries, k) each, and (queries, candidates) for what the codes found.

    Places are where documents stand in the index; `IndexReader.rows` says which rows these are.
    """

    rows: Rows
    scores: Floats
    candidate_ranks: Rows
    candidate_scores: Floats
    candidate_positions: Rows
    timings: Timings
    view: "IndexReader | LiveView | None" = None
    """The state of the index that the rows belong to: of a live index the numbers may mean others later."""
    word_ranks: Rows | None = None

    @property
    def candidate_rows(self) -> Rows:
        """The candidates by row, as answers have them."""
        return self.candidate_positions if self.view is None else self.view.rows_of(self.candidate_positions)
