"""Datasets for training, search and evaluation: a streamed corpus and splits of judged queries."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import xxhash

from bidr.data.id_map import IdMap, scan_ids
from bidr.data.readers import beir, irds, msmarco, parquet
from bidr.data.readers.trec import Qrels
from bidr.data.record_sources import DroppedFieldCounter, Source, SplitTables, Table, make_memory_table, parse_score
from bidr.data.types import Document, Qrel, Query, validate_documents, validate_queries
from bidr.data.validation import check_attribute_strings, coerce_id, format_value
from bidr.errors import ConfigError, DataError
from bidr.utils.deprecation import DeprecatedAlias

Titles = Literal["prepend", "ignore"]

_FOLDER_FORMATS: tuple[tuple[Callable[[Path], Source | None], str], ...] = (
    (beir.detect, beir.EXPECTED_FILES),
    (msmarco.detect, msmarco.EXPECTED_FILES),
    (parquet.detect, parquet.EXPECTED_FILES),
)


def compose_text(document: Document, titles: Titles) -> str:
    """Compose the encoder input of a document: title and text ("prepend"), or the text only ("ignore")."""
    if titles == "prepend":
        return f"{document.title} {document.text}" if document.title else document.text
    if titles == "ignore":
        return document.text
    raise ConfigError(f"titles={titles!r} is not known; choose 'prepend' or 'ignore'")


class Corpus:
    """A re-iterable document collection; every iteration streams from the files."""

    def __init__(self, table: Table[Document]) -> None:
        self.table = table
        self._count: int | None = None
        self.has_attributes: bool | None = None
        """Whether any document has attributes; None before the first complete iteration."""
        self.dropped_fields: DroppedFieldCounter | None = None
        """Metadata that cannot become attributes; None before the first complete iteration."""
        self._reported = False

    def __iter__(self) -> Iterator[Document]:
        count, has_attributes, dropped_fields = 0, False, DroppedFieldCounter()
        for _, document in self.table.read_counting(dropped_fields) if self.table.read_counting else self.table:
            count += 1
            has_attributes = has_attributes or bool(document.attributes)
            yield document
        if not count:
            raise DataError(f"{self.table.where} has no documents; expected at least one")
        self._count, self.has_attributes, self.dropped_fields = count, has_attributes, dropped_fields

    def report_dropped_fields(self) -> None:
        """Print the dropped metadata once, after the first complete iteration."""
        if self.dropped_fields is not None and not self._reported:
            self.dropped_fields.report(self.table.where)
            self._reported = True

    def count(self) -> int:
        """Return the number of documents; reads all of them unless an iteration has completed before."""
        if self._count is None:
            for _ in self:
                pass
        assert self._count is not None
        return self._count

    ids = DeprecatedAlias("Corpus.ids", "iter_ids")
    texts = DeprecatedAlias("Corpus.texts", "iter_texts")

    def iter_ids(self) -> Iterator[str]:
        """Yield the document ids in order."""
        return (document.id for document in self)

    def iter_texts(self, titles: Titles) -> Iterator[str]:
        """Yield the encoder input of each document in order."""
        return (compose_text(document, titles) for document in self)

    def fingerprint(self) -> str:
        """Hash file names, sizes and modification times (nothing is read), or the records of an in-memory corpus."""
        return _hash_tables([self.table])


@dataclass(frozen=True)
class Split:
    """Queries with at least one relevant document, in file order, and all their judgments."""

    name: str
    queries: list[Query]
    qrels: Qrels


class Dataset:
    """A corpus and its splits, read lazily."""

    def __init__(self, source: Source) -> None:
        self.name = source.name
        self.corpus = Corpus(source.documents)
        self.tables = source.splits

    def splits(self) -> list[str]:
        """List the names of the splits that have judgments."""
        return list(self.tables)

    def split(self, name: str) -> Split:
        """Read the queries and judgments of a split; DataError for a judgment of an unknown query."""
        if name not in self.tables:
            names = ", ".join(self.tables) or "none"
            raise DataError(f"dataset {self.name!r} has no split {name!r}; its splits with judgments: {names}")
        tables = self.tables[name]
        qrels = _read_judgments(tables.judgments)
        answered = {query for query, scores in qrels.items() if max(scores.values()) > 0}
        queries = _read_queries(tables, answered, qrels)
        if not queries:
            raise DataError(f"{tables.judgments.where} has no judgment with a score above 0; split {name!r} is empty")
        return Split(name, queries, {query.id: qrels[query.id] for query in queries})

    def fingerprint(self, splits: Iterable[str]) -> str:
        """Hash the file states of these splits; splits that the dataset lacks are ignored."""
        return _hash_tables([table for name in splits for table in self.tables.get(name, ())])

    @classmethod
    def from_records(
        cls,
        name: str,
        documents: Iterable[Document],
        queries: Iterable[Query] = (),
        qrels_by_split: Mapping[str, Mapping[str, Mapping[str, int]]] | None = None,
    ) -> "Dataset":
        """Create a dataset in memory.

        Integer ids become strings and missing titles (None, NaN) empty strings; other non-strings are a DataError.

        Args:
            name: Name of the dataset in error messages.
            documents: The corpus.
            queries: Queries of all splits.
            qrels_by_split: Scores by split ("train", "dev", "test"), query id and document id; above 0 is relevant.
        """
        what = f"{name} queries"
        query_table, splits = make_memory_table(what, validate_queries(queries, what)), {}
        qrels_by_split = {} if qrels_by_split is None else qrels_by_split
        if not isinstance(qrels_by_split, Mapping):
            raise DataError(f"{name} qrels: given {format_value(qrels_by_split)}, expected qrels by split")
        for split, qrels in qrels_by_split.items():
            what = f"{name} qrels {split}"
            splits[split] = SplitTables(query_table, make_memory_table(what, _flatten_qrels(qrels, what)))
        what = f"{name} documents"
        records = validate_documents(documents, what)
        for document in records:
            if isinstance(document.attributes, Mapping):
                check_attribute_strings(document.attributes, f"document {document.id!r}")
        return cls(Source(name, make_memory_table(what, records), splits))


def _flatten_qrels(qrels: Any, what: str) -> Iterator[Qrel]:
    if not isinstance(qrels, Mapping) or not all(isinstance(scores, Mapping) for scores in qrels.values()):
        raise DataError(
            f"{what}: given {format_value(qrels)}, expected scores by query id and document id: {{'q': {{'d': 1}}}}"
        )
    number = 0
    for query, scores in qrels.items():
        for document, score in scores.items():
            number += 1
            place = f"{what} number {number}"
            yield Qrel(coerce_id(query, place), coerce_id(document, place), parse_score(score, place))


def _hash_tables(tables: Sequence[Table[Any]]) -> str:
    digest = xxhash.xxh3_128()
    for table in tables:
        digest.update((table.where if not table.files else "").encode())
        for path in table.files:
            state = path.stat()
            digest.update(f"{path.name} {state.st_size} {state.st_mtime_ns}".encode())
        for record in table.records:
            digest.update(repr(record).encode())
    return digest.hexdigest()


def _read_judgments(table: Table[Qrel]) -> Qrels:
    qrels: Qrels = {}
    for number, (query, document, score) in table:
        scores = qrels.setdefault(query, {})
        if scores.setdefault(document, score) != score:
            raise DataError(
                f"{table.format_place(number)}: query {query!r} and document {document!r} were judged "
                f"{scores[document]} before and {score} here; keep one"
            )
    if not qrels:
        raise DataError(f"{table.where} has no judgments; expected at least one")
    return qrels


def _read_queries(tables: SplitTables, answered: set[str], judged: Collection[str]) -> list[Query]:
    """Read the answered queries; DataError for a repeated query id or a judgment of an unknown query."""
    ids: set[str] = set()
    queries, table = [], tables.queries
    for number, query in table:
        if query.id in ids:
            raise DataError(f"{table.format_place(number)}: query id {query.id!r} occurs twice; make the ids unique")
        ids.add(query.id)
        if query.id in answered:
            queries.append(query)
    if not ids:
        raise DataError(f"{table.where} has no queries; expected at least one")
    if not ids.issuperset(judged):
        _raise_unknown(tables.judgments, lambda judgment: judgment.query_id not in ids, table.where)
    return queries


def _raise_unknown(table: Table[Qrel], is_unknown: Callable[[Qrel], bool], where: str) -> None:
    """Name the first judgment of an unknown id; reads the file a second time to find its line."""
    number, judgment = next((number, judgment) for number, judgment in table if is_unknown(judgment))
    raise DataError(
        f"{table.format_place(number)}: the judgment of query {judgment.query_id!r} and document "
        f"{judgment.doc_id!r} refers to an id that is not in {where}; remove the line or complete the file"
    )


def load(source: str | Path) -> Dataset:
    """Open a dataset: a folder (BEIR, MS MARCO or parquet, recognized by its files) or an "irds:" id.

    Only file names are examined here; files are read when documents or splits are, or by `check`.
    """
    if isinstance(source, str) and source.startswith(irds.PREFIX):
        return Dataset(irds.detect(source))
    if not isinstance(source, str | Path):
        raise DataError(f"data: given {format_value(source)}, expected a folder (a string or a Path), or 'irds:NAME'")
    folder = Path(source)
    if folder.is_file():
        raise DataError(f"{folder} is a file; give the folder that holds the corpus, the queries and the qrels")
    if not folder.is_dir():
        raise DataError(f"{folder} does not exist; give a folder, or an ir_datasets id as 'irds:NAME'")
    for detect, _ in _FOLDER_FORMATS:
        opened = detect(folder)
        if opened is not None:
            return Dataset(opened)
    expected = "; ".join(files for _, files in _FOLDER_FORMATS)
    raise DataError(f"{folder} is not a readable dataset; expected one of: {expected}")


def check(dataset: Dataset, splits: Iterable[str] | None = None) -> IdMap:
    """Read the whole dataset once; return the document ids in order, or raise DataError at the first fault.

    Finds what streaming alone cannot: duplicate document ids, and judgments of unknown documents in `splits` (None:
    all). Holds the ids in memory, 24 bytes a document above their own length.
    """
    ids = IdMap(dataset.corpus.iter_ids())
    _refuse_duplicate(dataset.corpus.table, ids.find_duplicate())
    for name in dataset.splits() if splits is None else splits:
        check_split(dataset, dataset.split(name), ids)
    return ids


def check_corpus(dataset: Dataset, scratch_parent: Path) -> None:
    """Read all documents once; raise DataError at the first fault or duplicate id.

    Memory is bounded (tens of MB): ids are sorted externally, in a temporary file near the path `near`.
    """
    corpus = dataset.corpus
    _refuse_duplicate(corpus.table, scan_ids(corpus.iter_ids, scratch_parent).duplicate_rows)


def check_split(dataset: Dataset, split: Split, ids: Collection[str]) -> None:
    """Raise DataError for a judgment of a document that is not among `ids`."""
    judged = {document for scores in split.qrels.values() for document in scores}
    unknown = {document for document in judged if document not in ids}
    if unknown:
        table = dataset.tables[split.name].judgments
        _raise_unknown(table, lambda judgment: judgment.doc_id in unknown, dataset.corpus.table.where)


def _refuse_duplicate(table: Table[Document], rows: tuple[int, int] | None) -> None:
    """Raise DataError for two rows with the same id; reads the table a second time to find their lines."""
    if rows is None:
        return
    (first, document), (second, _) = (record for row, record in enumerate(table) if row in rows)
    raise DataError(
        f"{table.format_place(second)}: document id {document.id!r} is that of {table.format_place(first)}; "
        "make the ids unique"
    )
