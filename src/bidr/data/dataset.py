"""A data set to train on, search and measure: documents that stream, and splits of judged queries."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import xxhash

from bidr.data.dropped_fields import LeftOut
from bidr.data.id_map import Ids, pass_by
from bidr.data.readers import beir, irds, msmarco, parquet
from bidr.data.readers.trec import Qrels
from bidr.data.sources import Source, SplitTables, Table, held_table, score
from bidr.data.types import Document, Qrel, Query, several_documents, several_queries
from bidr.data.validation import check_attribute_strings, coerce_id, format_value
from bidr.errors import ConfigError, DataError

Titles = Literal["prepend", "ignore"]

_FOLDERS: tuple[tuple[Callable[[Path], Source | None], str], ...] = (
    (beir.detect, beir.LOOKED_FOR),
    (msmarco.detect, msmarco.LOOKED_FOR),
    (parquet.detect, parquet.LOOKED_FOR),
)


def document_text(document: Document, titles: Titles) -> str:
    """What an encoder reads of a document: title and text ("prepend"), or the text alone ("ignore")."""
    if titles == "prepend":
        return f"{document.title} {document.text}" if document.title else document.text
    if titles == "ignore":
        return document.text
    raise ConfigError(f"titles={titles!r} is not known; choose 'prepend' or 'ignore'")


class Corpus:
    """Documents that can be iterated again and again; each time they stream from where they are kept."""

    def __init__(self, table: Table[Document]) -> None:
        self.table = table
        self._count: int | None = None
        self.described: bool | None = None
        """Whether any document has attributes; None: they have not been read to the end yet."""
        self.left_out: LeftOut | None = None
        """The metadata that could not be attributes, where they have been read to the end."""
        self._told = False

    def __iter__(self) -> Iterator[Document]:
        count, described, left_out = 0, False, LeftOut()
        for _, document in self.table.telling(left_out) if self.table.telling else self.table:
            count += 1
            described = described or bool(document.attributes)
            yield document
        if not count:
            raise DataError(f"{self.table.where} has no documents; expected at least one")
        self._count, self.described, self.left_out = count, described, left_out

    def tell_left_out(self) -> None:
        """Say which metadata could not be attributes, once, when the documents have been read to the end."""
        if self.left_out is not None and not self._told:
            self.left_out.tell(self.table.where)
            self._told = True

    def count(self) -> int:
        """The number of documents. The first call reads them all, unless they have been read to the end before."""
        if self._count is None:
            for _ in self:
                pass
        assert self._count is not None
        return self._count

    def ids(self) -> Iterator[str]:
        return (document.id for document in self)

    def texts(self, titles: Titles) -> Iterator[str]:
        """What an encoder reads of each document, in order."""
        return (document_text(document, titles) for document in self)

    def fingerprint(self) -> str:
        """Changes when the files do (by name, size and time of change: nothing is read), or what is held in memory."""
        return _fingerprint([self.table])


@dataclass(frozen=True)
class Split:
    """Queries that have at least one relevant document, in the order of their file, and all judgements of them."""

    name: str
    queries: list[Query]
    qrels: Qrels


class Dataset:
    """A corpus and its splits. Nothing is read before it is asked for."""

    def __init__(self, source: Source) -> None:
        self.name = source.name
        self.corpus = Corpus(source.documents)
        self.tables = source.splits

    def splits(self) -> list[str]:
        """The names of the splits that have judgements."""
        return list(self.tables)

    def split(self, name: str) -> Split:
        """Read the queries and judgements of a split, checking that each judgement is of a known query."""
        if name not in self.tables:
            known = ", ".join(self.tables) or "none"
            raise DataError(f"data set {self.name!r} has no split {name!r}; its splits with judgements: {known}")
        tables = self.tables[name]
        qrels = _read_judgements(tables.judgements)
        relevant = {query for query, found in qrels.items() if max(found.values()) > 0}
        queries = _read_queries(tables, relevant, qrels)
        if not queries:
            raise DataError(f"{tables.judgements.where} has no judgement with a score above 0; split {name!r} is empty")
        return Split(name, queries, {query.id: qrels[query.id] for query in queries})

    def fingerprint(self, splits: Iterable[str]) -> str:
        """Changes when the files of these splits do, as far as they are there."""
        return _fingerprint([table for name in splits for table in self.tables.get(name, ())])

    @classmethod
    def from_records(
        cls,
        name: str,
        documents: Iterable[Document],
        queries: Iterable[Query] = (),
        qrels_by_split: Mapping[str, Mapping[str, Mapping[str, int]]] | None = None,
    ) -> "Dataset":
        """A data set held in memory.

        name:           what error messages call it.
        qrels_by_split: scores by split ("train", "dev", "test"), query id and document id; above 0 is an answer.

        Ids that are whole numbers become strings, and a missing title (None, NaN) an empty one; anything else that is
        no string is a DataError.
        """
        what = f"{name} queries"
        asked, splits = held_table(what, several_queries(queries, what)), {}
        qrels_by_split = {} if qrels_by_split is None else qrels_by_split
        if not isinstance(qrels_by_split, Mapping):
            raise DataError(f"{name} qrels: given {format_value(qrels_by_split)}, expected qrels by split")
        for split, qrels in qrels_by_split.items():
            what = f"{name} qrels {split}"
            splits[split] = SplitTables(asked, held_table(what, _judgements(qrels, what)))
        what = f"{name} documents"
        held = several_documents(documents, what)
        for document in held:
            if isinstance(document.attributes, Mapping):
                check_attribute_strings(document.attributes, f"document {document.id!r}")
        return cls(Source(name, held_table(what, held), splits))


def _judgements(qrels: Any, what: str) -> Iterator[Qrel]:
    """Judgements in memory, their ids strings."""
    if not isinstance(qrels, Mapping) or not all(isinstance(found, Mapping) for found in qrels.values()):
        raise DataError(
            f"{what}: given {format_value(qrels)}, expected scores by query id and document id: {{'q': {{'d': 1}}}}"
        )
    number = 0
    for query, found in qrels.items():
        for document, given in found.items():
            number += 1
            place = f"{what} number {number}"
            yield Qrel(coerce_id(query, place), coerce_id(document, place), score(given, place))


def _fingerprint(tables: Sequence[Table[Any]]) -> str:
    digest = xxhash.xxh3_128()
    for table in tables:
        digest.update((table.where if not table.files else "").encode())
        for path in table.files:
            state = path.stat()
            digest.update(f"{path.name} {state.st_size} {state.st_mtime_ns}".encode())
        for record in table.held:
            digest.update(repr(record).encode())
    return digest.hexdigest()


def _read_judgements(table: Table[Qrel]) -> Qrels:
    qrels: Qrels = {}
    for number, (query, document, given) in table:
        found = qrels.setdefault(query, {})
        if found.setdefault(document, given) != given:
            raise DataError(
                f"{table.place(number)}: query {query!r} and document {document!r} were judged "
                f"{found[document]} before and {given} here; keep one"
            )
    if not qrels:
        raise DataError(f"{table.where} has no judgements; expected at least one")
    return qrels


def _read_queries(tables: SplitTables, wanted: set[str], judged: Collection[str]) -> list[Query]:
    seen: set[str] = set()
    queries = []
    for number, query in tables.queries:
        if query.id in seen:
            raise DataError(f"{tables.queries.place(number)}: query id {query.id!r} occurs twice; make the ids unique")
        seen.add(query.id)
        if query.id in wanted:
            queries.append(query)
    if not seen:
        raise DataError(f"{tables.queries.where} has no queries; expected at least one")
    if not seen.issuperset(judged):
        _raise_unknown(tables.judgements, lambda judgement: judgement.query_id not in seen, tables.queries.where)
    return queries


def _raise_unknown(table: Table[Qrel], unknown: Callable[[Qrel], bool], where: str) -> None:
    """Name the first judgement that refers to nothing; the file is read again to find its line."""
    number, judgement = next((number, judgement) for number, judgement in table if unknown(judgement))
    raise DataError(
        f"{table.place(number)}: the judgement of query {judgement.query_id!r} and document {judgement.doc_id!r} "
        f"refers to an id that is not in {where}; remove the line or complete the file"
    )


def load(source: str | Path) -> Dataset:
    """Open a data set: a folder (BEIR, MS MARCO or parquet, recognised by its files) or an "irds:" id.

    Only names are looked at here; files are read and checked when documents or splits are asked for, or by `check`.
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
    for detect, _ in _FOLDERS:
        found = detect(folder)
        if found is not None:
            return Dataset(found)
    looked_for = "; ".join(name for _, name in _FOLDERS)
    raise DataError(f"{folder} is no data set that can be read; looked in it for {looked_for}")


def check(dataset: Dataset, splits: Iterable[str] | None = None) -> Ids:
    """Read everything once: raise DataError at the first fault, or return the ids of the documents in order.

    Finds what streaming alone cannot: duplicate document ids, and judgements of unknown documents in the splits named
    (all of them when None). The memory needed is that of the ids, 24 bytes a document above their own length.
    """
    ids = Ids(dataset.corpus.ids())
    _refuse_repeated(dataset.corpus.table, ids.repeated())
    for name in dataset.splits() if splits is None else splits:
        check_split(dataset, dataset.split(name), ids)
    return ids


def check_corpus(dataset: Dataset, near: Path) -> None:
    """Read the documents once: raise DataError at the first fault or id that occurs twice.

    Whatever their number it takes a few ten megabytes; what is more waits on disk, as near to this path as can be.
    """
    corpus = dataset.corpus
    _refuse_repeated(corpus.table, pass_by(corpus.ids, near).repeated)


def check_split(dataset: Dataset, split: Split, ids: Collection[str]) -> None:
    """Raise DataError when a judgement of the split is of a document that is not among these ids."""
    judged = {document for found in split.qrels.values() for document in found}
    unknown = {document for document in judged if document not in ids}
    if unknown:
        table = dataset.tables[split.name].judgements
        _raise_unknown(table, lambda judgement: judgement.doc_id in unknown, dataset.corpus.table.where)


def _refuse_repeated(table: Table[Document], rows: tuple[int, int] | None) -> None:
    """Two documents have the same id: the table is read again for the lines on which they stand."""
    if rows is None:
        return
    (first, document), (second, _) = (each for row, each in enumerate(table) if row in rows)
    raise DataError(
        f"{table.place(second)}: document id {document.id!r} is that of {table.place(first)}; make the ids unique"
    )
