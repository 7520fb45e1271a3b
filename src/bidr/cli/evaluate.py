"""`bidr evaluate`: retrieval measures, query times, and paired differences to another run."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import tyro

from bidr.cli.base import (
    CommandResult,
    OptionalData,
    OptionalFile,
    SearchCommand,
)
from bidr.cli.last_index import load_last_index
from bidr.errors import ConfigError, DataError, IndexFolderError

if TYPE_CHECKING:
    from bidr.data.dataset import Split
    from bidr.data.readers.trec import Run
    from bidr.search.evaluation import Comparison
    from bidr.search.searcher import Searcher

RunFile = Annotated[Path | None, tyro.conf.arg(name="run", metavar="FILE", help_behavior_hint="(optional)")]


@dataclass(frozen=True, kw_only=True)
class Evaluate(SearchCommand):
    """Measure an index on the judged queries of a dataset."""

    help_groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "queries": ("data", "split", "query-vectors", "query-ids", "qrels"),
        "index": ("index", "model", "encoder"),
        "ranking": ("candidates", "fuse"),
        "BM25 beside the codes": ("lexical", "lexical-weight"),
        "output": ("measures", "run", "compare", "json"),
    }

    data: OptionalData = None
    """Dataset: a folder in BEIR, MS MARCO, TREC or parquet layout, or 'irds:' and an ir_datasets id."""
    query_vectors: OptionalFile = None
    """Query vectors (.npy), for an index built from vectors: all queries of --data in its order, or those of
    --query-ids."""
    query_ids: OptionalFile = None
    """Ids of the rows of --query-vectors: one per line, or .npy; by default those of --data, or row numbers."""
    qrels: OptionalFile = None
    """Relevance judgments instead of --data: query id, document id, score."""
    split: str = "test"
    """Split of the dataset."""
    measures: tuple[str, ...] = ("R@10", "R@100", "RR@10", "nDCG@10")
    """Measures, as named by ir_measures."""
    run_file: RunFile = None
    """Write the rankings to this file, as a TREC run."""
    compare: OptionalFile = None
    """TREC run to compare with: difference, 95 % interval (paired bootstrap) and p (paired randomization)."""

    def list_outputs(self) -> list[Path]:
        return [path for path in (self.json, self.run_file) if path]

    def run(self) -> CommandResult:
        from bidr.data.readers.trec import read_run, write_run
        from bidr.index.storage.live_state import read_model_reference
        from bidr.index.vectors.vector_memory import parse_cache_size
        from bidr.models.dev_query_hashes import count_dev_queries
        from bidr.pipeline.open import open_index
        from bidr.search.evaluation import evaluate_searcher, save_recall_curve

        parse_cache_size(self.cache)
        if self.candidates is not None and self.candidates < 1:
            raise ConfigError(f"candidates: given {self.candidates}, expected 1 or more")
        if self.lexical and self.query_vectors is not None:
            raise ConfigError("--lexical and --query-vectors given, expected query texts: leave one of them out")
        index = self.index or load_last_index()
        split, rows = self._load_judged_queries()
        other = read_run(self.compare) if self.compare else None
        lexical = self.lexical if self.query_vectors is None else 0
        words: dict[str, Any] = {"lexical": lexical, "lexical_weight": self.lexical_weight}
        with open_index(index, self.model, encoder=self.encoder, fuse=self.fuse, cache=self.cache, **words) as searcher:
            _refuse_other_corpus(searcher, split, index)
            if self.query_vectors is not None:
                searcher.encoder = searcher.make_lookup_encoder(self.query_vectors, rows)
            report = evaluate_searcher(searcher, split, self.measures, candidates=self.candidates)
            training = searcher.model.training if searcher.model else {}
            selected_on = count_dev_queries(training, (query.text for query in split.queries))
        stamp = read_model_reference(index)
        save_recall_curve(index, report, stamp.fingerprint if stamp else None, self.split)
        if self.run_file:
            write_run(self.run_file, report.run)
        value = {
            "index": str(index),
            "data": self.data or str(self.qrels),
            "split": self.split,
            "queries_selected_on": selected_on,
            **json.loads(report.json()),
        }
        text = report.table()
        if selected_on:
            text += f"\n{selected_on:,} of {report.queries:,} queries are those that the model's training selected on"
        if other is not None and self.compare:
            comparisons = compare_runs(report.per_query, other, split, self.compare)
            value["compared_with"] = {
                "run": str(self.compare),
                **{name: comparison._asdict() for name, comparison in comparisons.items()},
            }
            text += "\n" + format_comparison(comparisons, self.compare)
        return CommandResult(text, value)

    def _load_judged_queries(self) -> tuple["Split", dict[str, int]]:
        """Load the judged queries, and the row of --query-vectors of each; no rows for text queries."""
        from bidr.data.dataset import Split, load
        from bidr.data.types import Query
        from bidr.data.vector_ids import read_ids, read_judgments
        from bidr.data.vector_source import open_vectors

        if (self.data is None) == (self.qrels is None):
            raise ConfigError("give either --data (queries and judgments) or --qrels (judgments alone)")
        data = load(self.data) if self.data else None
        if self.query_vectors is None:
            if data is None:
                raise ConfigError("--qrels goes with --query-vectors; without vectors give --data")
            return data.split(self.split), {}
        count = len(open_vectors(self.query_vectors, "query vectors", "ip"))
        data_ids = [query.id for _, query in data.tables[self.split].queries] if data is not None else None
        ids = read_ids(self.query_ids or data_ids, count, "questions")
        rows = {ids[row]: row for row in range(count)}
        if data is None:
            assert self.qrels is not None
            qrels = read_judgments(self.qrels)
            split = Split(self.split, [Query(name, name) for name in qrels], qrels)
        else:
            comparisons = data.split(self.split)
            split = Split(
                comparisons.name, [Query(query.id, query.id) for query in comparisons.queries], comparisons.qrels
            )
        for query in split.queries:
            if query.id not in rows:
                raise DataError(f"query {query.id!r} of split {split.name!r} has no row in {self.query_vectors}")
        return split, rows


def compare_runs(
    ours: dict[str, dict[str, float]], other: "Run", split: "Split", path: Path
) -> dict[str, "Comparison"]:
    """Compare each measure with that of a TREC run."""
    from bidr.search.evaluation import compare_paired, evaluate_run

    if not other.keys() & split.qrels.keys():
        raise DataError(f"{path} has no query of split {split.name!r}; give a run over the same queries")
    theirs = evaluate_run(other, split.qrels, list(ours)).per_query
    return {name: compare_paired(values, theirs[name]) for name, values in ours.items()}


def format_comparison(comparisons: dict[str, "Comparison"], path: Path) -> str:
    width = max(map(len, comparisons))
    lines = [
        f"{name:<{width}}  {paired.difference:+.4f}  [{paired.low:+.4f}, {paired.high:+.4f}]  p {paired.p:.4f}"
        for name, paired in comparisons.items()
    ]
    return "\n".join([f"difference to {path}, its 95 % interval, p:", *lines])


def _refuse_other_corpus(searcher: "Searcher", split: "Split", index: Path) -> None:
    """Refuse judged documents that the index lacks: they would count as misses, and the measure would be wrong."""
    from bidr.data.id_map import IdMap

    view = searcher.reader.latest()
    ids = IdMap(view.documents.id(row) for row in view.rows_of(view.places()).tolist())
    for query, judged in split.qrels.items():
        for document, score in judged.items():
            if score > 0 and document not in ids:
                raise IndexFolderError(
                    f"{index}: document {document!r}, the answer to query {query!r} of split {split.name!r}, is not in "
                    "the index; evaluate it with the data that it was built from"
                )
