"""Contenders of the choice on dev: what each is, how it did, and the rule that chooses."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bidr.models.model_card import CHOICE_NAMES
from bidr.training.config import CodesName, VectorsName
from bidr.training.fusion import Fusion


class Contender(NamedTuple):
    """Ranking vectors, codes and fusion, with their measures on dev.

    criterion: mean of R@10 and R@100 of each dev query.
    bytes_per_doc: RAM per document of codes and postings.
    """

    vectors: VectorsName
    codes: CodesName
    fusion: Fusion
    two_query_encoders: bool
    r10: float
    r100: float
    candidate_recall: float
    bytes_per_doc: float
    criterion: tuple[float, ...]

    @property
    def score(self) -> float:
        """The criterion: mean of R@10 and R@100."""
        return float(np.mean(self.criterion))

    @property
    def complexity(self) -> tuple[int, int, int]:
        """What it takes to serve and to train, for comparison: smaller is simpler."""
        parts = int(self.two_query_encoders) + bool(self.fusion.lexical)
        return parts, VECTORS_BY_COST.index(self.vectors), CODES_BY_COST.index(self.codes)

    @property
    def precedence(self) -> tuple[bool, int, int]:
        """What to expect of its parts before any dev query, from other datasets: larger is better."""
        return (
            bool(self.fusion.lexical),
            CODES_BY_COST.index(self.codes),
            VECTORS_BY_PRECEDENCE.index(self.vectors),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the values of the table."""
        return {
            "vectors": self.vectors,
            "codes": self.codes,
            "lexical": self.fusion.lexical,
            "lexical_weight": self.fusion.weight,
            "query_encoders": 1 + self.two_query_encoders,
            "R@10": self.r10,
            "R@100": self.r100,
            "criterion": self.score,
            "candidate_recall": self.candidate_recall,
            "bytes_per_doc": self.bytes_per_doc,
        }


VECTORS_BY_COST: tuple[VectorsName, ...] = (
    "warmup",
    "conventional",
    "random-walk",
    "snowball",
    "averaged",
    "unified",
)
CODES_BY_COST: tuple[CodesName, ...] = ("opq", "contrastive", "distilled")
# A mean of encoders is the safest of the vectors where few queries tell them apart.
VECTORS_BY_PRECEDENCE: tuple[VectorsName, ...] = (
    "warmup",
    "conventional",
    "random-walk",
    "snowball",
    "unified",
    "averaged",
)


class Choice(NamedTuple):
    """The chosen contender, all contenders in the order of measurement, and the reason in a sentence."""

    contender: Contender
    contenders: list[Contender]
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return the content of choice.json."""
        rows = [row.to_json() | {"chosen": row is self.contender} for row in self.contenders]
        queries = len(self.contender.criterion)
        return {"criterion": "mean of R@10 and R@100 on dev", "dev_queries": queries, "why": self.reason, "rows": rows}


def choose_contender(contenders: Sequence[Contender], small_dev: int) -> Choice:
    """Choose the best contender by the criterion, the simplest of equal ones.

    With fewer than `small_dev` queries: of those within one standard error of the difference to the best, the one whose
    parts lead on other datasets. On 20 to 100 of medquad's dev queries this loses a quarter to two fifths of what the
    best does (bench/choice_rule.py).
    """
    best = min(contenders, key=lambda row: (-round(row.score, 9), row.complexity))
    queries = len(best.criterion)
    reason = f"the best on {queries:,} dev queries by the mean of R@10 and R@100"
    if queries >= small_dev:
        return Choice(best, list(contenders), reason)
    close = [row for row in contenders if is_within_standard_error(row, best)]
    preferred = max(close, key=lambda row: (row.precedence, row.score))
    if preferred is best:
        return Choice(best, list(contenders), f"{reason}, and what leads on other datasets")
    deficit = f"{best.score - preferred.score:.4f} behind the best ({format_contender(best)})"
    reason = f"{queries:,} dev queries are few: what leads on other datasets, within one standard error, {deficit}"
    return Choice(preferred, list(contenders), reason)


def is_within_standard_error(row: Contender, best: Contender) -> bool:
    """Return whether the mean paired difference to the best is at most its standard error."""
    differences = np.subtract(best.criterion, row.criterion)
    error = differences.std(ddof=1) / np.sqrt(len(differences)) if len(differences) > 1 else 0.0
    return bool(differences.mean() <= error + 1e-12)


def format_contender(row: Contender) -> str:
    """Format the parts of a contender, such as 'STAR, OPQ, BM25 100 x 0.15'."""
    fusion = f"BM25 {row.fusion.lexical} x {row.fusion.weight:g}" if row.fusion.lexical else "no BM25"
    return f"{CHOICE_NAMES.get(row.vectors, row.vectors)}, {CHOICE_NAMES.get(row.codes, row.codes)}, {fusion}"
