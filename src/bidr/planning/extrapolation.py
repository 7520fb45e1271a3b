"""Extrapolate search settings and query time from a sample to the planned corpus."""

import time
from typing import Any

from bidr.index.builder.coarse_clustering import choose_list_count
from bidr.index.builder.in_memory_engines import make_scan
from bidr.index.engines.graph.engine import GraphEngine, estimate_comparisons, is_graph_faster
from bidr.index.engines.ivf import IvfEngine, get_default_nprobe
from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Codes, Floats

# Documents in a flat engine that measure the fixed cost of a query; the fastest of RUNS runs counts.
FEW_DOCUMENTS, RUNS = 256, 3


class Extrapolation:
    """Extrapolates from `count` documents to `planned`, with the same codes in every engine; flat comes first."""

    def __init__(self, count: int, planned: int) -> None:
        self.count, self.planned = count, planned
        self._fixed_ms = self._code_ms = 0.0

    @property
    def is_needed(self) -> bool:
        return self.planned > self.count

    def calibrate(self, codebooks: Codebooks, codes: Codes, queries: Floats, k: int) -> None:
        """Measure the fixed cost of a query."""
        engine = make_scan(codebooks, codes[:FEW_DOCUMENTS])
        self._fixed_ms = measure_query_ms(engine, queries, k) if self.is_needed else 0.0

    def scale_ef(self, engine: Any, width: float | None) -> int | None:
        """Return `--ef` for all documents. The default share of lists to probe shrinks with their number."""
        if not isinstance(engine, IvfEngine) or width is None:
            return None if width is None else int(width)
        nprobe = count_probed_lists(engine, width)
        if not self.is_needed:
            return nprobe
        lists = choose_list_count(self.planned)
        factor = nprobe / get_default_nprobe(engine.list_count)
        return lists if nprobe == engine.list_count else min(lists, get_default_nprobe(lists, factor))

    def estimate_extra_ms(self, engine: Any, width: float | None, candidates: int, queries: Floats) -> float:
        """Return how much longer a query takes on all documents.

        A scan grows with the documents, a graph search with the comparisons. With lists these are the codes in probed
        lists, at the rate of a scan, plus the time of centroids and of switching lists.
        """
        if not self.is_needed:
            return 0.0
        ms = max(0.0, measure_query_ms(engine, queries, candidates) - self._fixed_ms)
        if isinstance(engine, GraphEngine):
            ef = max(int(width or 0), candidates)
            if is_graph_faster(self.planned, ef):
                return ms * (estimate_comparisons(self.planned, ef) / estimate_comparisons(self.count, ef) - 1)
        if not isinstance(engine, IvfEngine) or width is None:
            self._code_ms = ms / self.count
            return ms * (self.planned / self.count - 1)
        lists = choose_list_count(self.planned)
        sample_share = count_probed_lists(engine, width) / engine.list_count
        planned_share = (self.scale_ef(engine, width) or 1) / lists
        sample_codes = max(candidates, sample_share * self.count)
        planned_codes = max(candidates, planned_share * self.planned)
        list_ms = max(0.0, ms - self._code_ms * sample_codes)
        return self._code_ms * (planned_codes - sample_codes) + list_ms * (lists / engine.list_count - 1)


def count_probed_lists(engine: IvfEngine, share: float) -> int:
    return max(1, round(share * engine.list_count))


def measure_query_ms(engine: Any, queries: Floats, k: int) -> float:
    """Return the CPU milliseconds of an engine per query."""
    seconds = []
    for _ in range(RUNS):
        start = time.process_time()
        engine.search(queries, k)
        seconds.append(time.process_time() - start)
    return 1000 * min(seconds) / len(queries)
