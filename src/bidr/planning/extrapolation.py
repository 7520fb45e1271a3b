"""From a sample to the corpus that it stands for: how widely is searched then, and what that takes."""

import time
from typing import Any

from bidr.index.builder.coarse_clustering import choose_list_count
from bidr.index.builder.in_memory import make_scan
from bidr.index.engines.graph.engine import GraphEngine, estimate_comparisons, is_graph_faster
from bidr.index.engines.ivf import IvfEngine, get_default_nprobe
from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Codes, Floats

# Of so few documents a scan takes what a query takes however few there are; of as many runs the quickest counts.
FEW, RUNS = 256, 3


class Growth:
    """`count` documents that stand for `planned`, with the same codes in every engine; a scan is asked first."""

    def __init__(self, count: int, planned: int) -> None:
        self.count, self.planned = count, planned
        self._alone = self._a_code = 0.0

    @property
    def any(self) -> bool:
        return self.planned > self.count

    def begin(self, codebooks: Codebooks, codes: Codes, queries: Floats, k: int) -> None:
        """Find out what a query takes of no documents at all."""
        self._alone = codes_ms(make_scan(codebooks, codes[:FEW]), queries, k) if self.any else 0.0

    def ef(self, engine: Any, width: float | None) -> int | None:
        """What `--ef` must be for all documents. Of very many lists fewer are visited, by the law of the default."""
        if not isinstance(engine, IvfEngine) or width is None:
            return None if width is None else int(width)
        visits = visits_of(engine, width)
        if not self.any:
            return visits
        lists = choose_list_count(self.planned)
        times = visits / get_default_nprobe(engine.list_count)
        return lists if visits == engine.list_count else min(lists, get_default_nprobe(lists, times))

    def more_ms(self, engine: Any, width: float | None, candidates: int, queries: Floats) -> float:
        """How much longer a query takes of all documents.

        A scan grows with the documents, a walk with those that it compares; with lists it is the codes in those that
        are visited, as quick as a scan's, and what comparing centroids and going from list to list takes.
        """
        if not self.any:
            return 0.0
        spent = max(0.0, codes_ms(engine, queries, candidates) - self._alone)
        if isinstance(engine, GraphEngine):
            wide = max(int(width or 0), candidates)
            if is_graph_faster(self.planned, wide):
                return spent * (estimate_comparisons(self.planned, wide) / estimate_comparisons(self.count, wide) - 1)
        if not isinstance(engine, IvfEngine) or width is None:
            self._a_code = spent / self.count
            return spent * (self.planned / self.count - 1)
        lists = choose_list_count(self.planned)
        shares = visits_of(engine, width) / engine.list_count, (self.ef(engine, width) or 1) / lists
        now, then = max(candidates, shares[0] * self.count), max(candidates, shares[1] * self.planned)
        between = max(0.0, spent - self._a_code * now)
        return self._a_code * (then - now) + between * (lists / engine.list_count - 1)


def visits_of(engine: IvfEngine, share: float) -> int:
    """How many lists a share of them is."""
    return max(1, round(share * engine.list_count))


def codes_ms(engine: Any, queries: Floats, k: int) -> float:
    """CPU milliseconds that an engine takes for a query."""
    spent = []
    for _ in range(RUNS):
        started = time.process_time()
        engine.search(queries, k)
        spent.append(time.process_time() - started)
    return 1000 * min(spent) / len(queries)
