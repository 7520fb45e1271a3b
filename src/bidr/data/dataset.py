"""Datasets for training, search and evaluation: a streamed corpus and splits of judged queries."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, Literal, NamedTuple

import xxhash

from bidr.data.column_roles import ColumnOptions, format_option
from bidr.data.id_map import IdMap, scan_ids
from bidr.data.line_reader import COMPRESSIONS, find_file
from bidr.data.readers import arrow, beir, csv_file, frame, irds, json_lines, msmarco, parquet, text_files
from bidr.data.readers.trec import Qrels
from bidr.data.record_sources import DroppedFieldCounter, Source, SplitTables, Table, make_memory_table, parse_score
from bidr.data.remote_path import (
    describe_file_state,
    get_glob_root,
    is_address,
    is_glob,
    is_remote,
    list_glob,
    open_path,
    remote_errors,
)
from bidr.data.tabular_source import RecordSource, find_roles, make_document_source
from bidr.data.text_chunks import DEFAULT_CHUNK_CHARS, DEFAULT_OVERLAP_CHARS, Chunking
from bidr.data.types import Document, Qrel, Query, validate_documents, validate_queries
from bidr.data.validation import check_attribute_strings, coerce_id, format_value
from bidr.errors import BidrError, ConfigError, DataError
from bidr.utils.deprecation import DeprecatedAlias
from bidr.utils.notebook import format_attributes, render_table
from bidr.utils.progress import say

Titles = Literal["prepend", "ignore"]

_FOLDER_FORMATS: tuple[tuple[Callable[[Path], Source | None], str], ...] = (
    (beir.detect, beir.EXPECTED_FILES),
    (msmarco.detect, msmarco.EXPECTED_FILES),
    (parquet.detect, parquet.EXPECTED_FILES),
)
_TABLE_KINDS: dict[str, type[Any]] = {
    **dict.fromkeys(csv_file.SUFFIXES, csv_file.CsvSource),
    **dict.fromkeys(json_lines.SUFFIXES, json_lines.JsonSource),
    ".parquet": parquet.ParquetSource,
}
SHOWN_DOCUMENTS = 3
EXPECTED_OTHERS = (
    "table files (.csv, .tsv, .jsonl, .json, .parquet)",
    "text files (.txt, .md, .html), in any subfolder",
)
EXPECTED_OBJECTS = (
    "a path or address (a string or a Path), a data frame, an Arrow table, a Hugging Face dataset, a list of dicts, "
    "or a dict of columns"
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
        self._count = table.count
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

    def describe_count(self) -> str:
        """Describe the number of documents, as far as it is known."""
        return "documents not counted yet" if self._count is None else f"{self._count:,} documents"

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
        self.read_vectors = source.vectors
        """Reads the vectors of the documents in blocks, in their order; None: the dataset has no vectors."""
        self.has_row_numbers = source.has_row_numbers
        """Whether ids are row numbers, as the source has none."""

    def __len__(self) -> int:
        """Return the number of documents; see `Corpus.count`."""
        return self.corpus.count()

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        parts = [repr(self.name), self.corpus.describe_count()]
        parts += [f"splits {', '.join(self.tables)}"] if self.tables else []
        parts += ["with vectors"] if self.read_vectors is not None else []
        return f"Dataset({', '.join(parts)})"

    def _repr_html_(self) -> str:
        """Return the first documents as a table, for notebooks."""
        try:
            documents = list(islice(self.corpus, SHOWN_DOCUMENTS))
        except BidrError as error:
            return render_table(f"{self!r}: {error}", (), ())
        rows = [
            (document.id, document.title, document.text, format_attributes(document.attributes))
            for document in documents
        ]
        return render_table(f"{self!r}, the first:", ("id", "title", "text", "attributes"), rows)

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

    def replace_ids(self, ids: Iterable[str]) -> "Dataset":
        """Return the dataset with other ids, one for each document in order."""
        table = replace(
            self.corpus.table,
            read=partial(_read_with_ids, self.corpus.table, ids),
            read_counting=partial(_read_with_ids, self.corpus.table, ids),
            stamp=partial(_hash_with_ids, self.corpus.table, ids),
        )
        dataset = copy(self)
        dataset.corpus = Corpus(table)
        return dataset

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


def _read_with_ids(
    table: Table[Document], ids: Iterable[str], dropped: DroppedFieldCounter | None = None
) -> Iterator[tuple[int, Document]]:
    records = table if table.read_counting is None or dropped is None else table.read_counting(dropped)
    try:
        for (number, document), identifier in zip(records, ids, strict=True):
            yield number, document._replace(id=identifier)
    except ValueError as error:
        raise DataError(f"{table.where}: given another number of ids than rows, expected one id for each") from error


def _hash_with_ids(table: Table[Document], ids: Iterable[str]) -> str:
    digest = xxhash.xxh3_128(_hash_tables([table]).encode())
    for identifier in ids:
        digest.update(f"{identifier}\0".encode())
    return digest.hexdigest()


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
        digest.update(((table.where if not table.files else "") + table.settings).encode())
        for path in table.files:
            digest.update(describe_file_state(path).encode())
        digest.update(table.stamp().encode() if table.stamp else b"")
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


def load(
    source: Any,
    *,
    text_column: str | None = None,
    id_column: str | None = None,
    title_column: str | None = None,
    vector_column: str | None = None,
    metadata: Sequence[str] | None = None,
    chunk_size: int | None = None,
    chunk_overlap: int | None = None,
) -> Dataset:
    """Open a dataset: files, an address, an "irds:" id, a data frame, an Arrow table or Python objects.

    Of a table, the columns of ids, texts, titles and vectors are recognized by their usual names unless given, and
    every other column becomes an attribute. Files are read when documents are; of tables the header is read here.

    Args:
        source: A folder (BEIR, MS MARCO, parquet, or of text files), a table file (CSV, TSV, JSON lines, parquet), a
            pattern such as "part-*.csv", an address such as "s3://bucket/docs.parquet", "irds:" and an id; a pandas or
            Polars data frame, a pyarrow table, dataset or stream, a Hugging Face dataset, a list of dicts, or a dict
            of columns.
        text_column: Column of the texts.
        id_column: Column of the ids. Without one, row numbers are the ids.
        title_column: Column of the titles.
        vector_column: Column of the vectors.
        metadata: Columns that become attributes; None: all others.
        chunk_size: Length of the chunks of text files in characters (1,000); 0: whole sections.
        chunk_overlap: Characters that a chunk repeats of the one before (100).
    """
    columns = ColumnOptions(text_column, id_column, title_column, vector_column, metadata)
    return _open_source(source, _LoadOptions(columns, chunk_size, chunk_overlap))


def load_metadata(metadata: Any, ids: Iterable[str] | None) -> Dataset:
    """Open a table of ids, texts or attributes in the order of vectors, all optional. ids: other ids for its rows."""
    dataset = _open_source(metadata, _LoadOptions(needs_content=False))
    return dataset if ids is None else dataset.replace_ids(ids)


class _LoadOptions(NamedTuple):
    """Options of `load`. needs_content: refuse a table without texts and vectors."""

    columns: ColumnOptions = ColumnOptions()
    chunk_size: int | None = None
    chunk_overlap: int | None = None
    needs_content: bool = True

    def refuse(self, where: str) -> None:
        """Refuse options for a source whose fields are fixed."""
        names = [format_option(role) for role, value in self.columns._asdict().items() if value is not None]
        if names:
            raise ConfigError(f"{', '.join(names)}: given for {where}, whose fields have fixed names; leave them out")
        self.refuse_chunks(where)

    def refuse_chunks(self, where: str) -> None:
        """Refuse lengths of chunks for a source that is not divided into chunks."""
        for name in ("chunk_size", "chunk_overlap"):
            if getattr(self, name) is not None:
                raise ConfigError(f"{name}: given for {where}, expected text files (.txt, .md, .html); leave it out")

    def make_chunking(self) -> Chunking:
        """Return the lengths of chunks, with defaults for what was not given."""
        size = DEFAULT_CHUNK_CHARS if self.chunk_size is None else self.chunk_size
        overlap = self.chunk_overlap
        if overlap is None:
            is_number = isinstance(size, int) and size > 0
            overlap = min(DEFAULT_OVERLAP_CHARS, size // 10) if is_number else 0
        return Chunking(size, overlap).check()


def _open_source(source: Any, options: _LoadOptions) -> Dataset:
    if isinstance(source, Dataset):
        options.refuse(f"dataset {source.name!r}")
        return source
    if isinstance(source, str) and source.startswith(irds.PREFIX):
        options.refuse(source)
        return Dataset(irds.detect(source))
    if isinstance(source, str | Path) or (hasattr(source, "fs") and hasattr(source, "protocol")):
        return _load_path(source, options)
    records = open_object(source, "data")
    if isinstance(records, Dataset):
        options.refuse("a list of Documents")
        return records
    if records is None:
        raise DataError(f"data: given {format_value(source)}, expected {EXPECTED_OBJECTS}")
    options.refuse_chunks("data")
    return make_dataset(records, options.columns, needs_content=options.needs_content)


def open_object(value: Any, where: str) -> RecordSource | Dataset | None:
    """Open a table in memory, or a list of Documents; None for anything else."""
    if isinstance(value, list | tuple) and not isinstance(value, Document) and value and isinstance(value[0], Document):
        return Dataset.from_records(where, value)
    openers = (arrow.open_arrow, frame.open_frame, arrow.open_stream, frame.open_records)
    return next((source for source in (open_kind(value, where) for open_kind in openers) if source is not None), None)


def make_dataset(records: RecordSource, columns: ColumnOptions, *, needs_content: bool = True) -> Dataset:
    """Make a dataset of a table, and say which columns were taken for what."""
    roles = find_roles(records, columns, needs_content=needs_content)
    if isinstance(records, csv_file.CsvSource):
        records.read_texts(sorted(roles.role_columns))
    if not isinstance(records, text_files.TextFolderSource):
        say(roles.format(records.where))
    return Dataset(make_document_source(records, roles))


def is_table_file(source: str | Path) -> bool:
    """Return whether a path, pattern or address names table files."""
    if is_glob(source):
        return get_suffix(PurePosixPath(source)) in _TABLE_KINDS
    name = PurePosixPath(str(source).partition("?")[0] if is_address(source) else source)
    path = Path(source)
    if get_suffix(name) not in (*_TABLE_KINDS, ".npy") and not is_address(source) and path.is_dir():
        return not any(path.glob("*.npy")) and any(get_suffix(file) in _TABLE_KINDS for file in path.rglob("*"))
    return get_suffix(name) in _TABLE_KINDS


def _load_path(source: Any, options: _LoadOptions) -> Dataset:
    if is_glob(source):
        return _load_files(str(source), list_glob(source), get_glob_root(source), options)
    path = open_path(source) if isinstance(source, str | Path) else source
    with remote_errors(path):
        suffix = get_suffix(path)
        is_known_file = suffix in _TABLE_KINDS or suffix in text_files.SECTION_PARSERS
        if path.is_file() or (is_known_file and is_remote(path) and not path.is_dir()):
            return _load_files(str(path), [path], path.parent, options)
        if not path.is_dir():
            raise DataError(f"{path} does not exist; give a file or folder, or an ir_datasets id as 'irds:NAME'")
        for detect, _ in _FOLDER_FORMATS:
            opened = detect(path)
            if opened is not None:
                options.refuse(str(path))
                return Dataset(opened)
        return _load_files(str(path), _list_files(path), path, options)


def _list_files(folder: Path) -> list[Path]:
    """List the table and text files of a folder and its subfolders, without hidden ones."""
    files = [
        path
        for path in folder.rglob("*")
        if (get_suffix(path) in _TABLE_KINDS or get_suffix(path) in text_files.SECTION_PARSERS)
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.is_file()
    ]
    # Queries and judgments without a corpus are a dataset that lost it, not a table of documents.
    has_lost_corpus = (folder / "qrels").is_dir() or find_file(folder, "queries.jsonl") is not None
    if not files or has_lost_corpus:
        expected = "; ".join([*(names for _, names in _FOLDER_FORMATS), *EXPECTED_OTHERS])
        raise DataError(f"{folder} is not a readable dataset; expected one of: {expected}")
    return sorted(files)


def get_suffix(path: PurePath) -> str:
    """Return the suffix of a file in small letters, without that of a compression or the query of an address."""
    name = PurePosixPath(path.name.partition("?")[0] if is_remote(path) else path.name)
    return PurePosixPath(name.stem if name.suffix in COMPRESSIONS else name.name).suffix.lower()


def _load_files(where: str, files: list[Path], root: Path, options: _LoadOptions) -> Dataset:
    """Open files of one kind."""
    kinds: dict[Any, list[Path]] = {}
    for file in files:
        suffix = get_suffix(file)
        kind = "text" if suffix in text_files.SECTION_PARSERS else _TABLE_KINDS.get(suffix)
        if kind is None:
            raise DataError(f"{file}: {_explain_suffix(suffix)}; expected one of: {'; '.join(EXPECTED_OTHERS)}")
        kinds.setdefault(kind, []).append(file)
    if len(kinds) > 1:
        counts = _count_suffixes(files)
        raise DataError(
            f"{where} holds files of several kinds ({counts}), expected one; choose it with a pattern such as "
            f"'{where.rstrip('/')}/**/*{get_suffix(files[0])}'"
        )
    kind, name = next(iter(kinds)), Path(where).name or where
    if kind == "text":
        options._replace(chunk_size=None, chunk_overlap=None).refuse(where)
        texts = text_files.TextFolderSource(name, where, files, root, options.make_chunking())
        return make_dataset(texts, ColumnOptions())
    options.refuse_chunks(where)
    if kind is parquet.ParquetSource and any("=" in part for part in files[0].parent.parts[len(root.parts) :]):
        partitions = parquet.PartitionedSource(name, where, files, root)
        return make_dataset(partitions, options.columns, needs_content=options.needs_content)
    return make_dataset(kind(name, where, files), options.columns, needs_content=options.needs_content)


def _explain_suffix(suffix: str) -> str:
    if suffix in (".npy", ".npz"):
        return "an array of vectors, not documents: give it as vectors (--vectors)"
    return f"files with the suffix {suffix!r} are not read" if suffix else "a file without a suffix that tells its kind"


def _count_suffixes(files: Iterable[Path]) -> str:
    counts: dict[str, int] = {}
    for file in files:
        counts[get_suffix(file)] = counts.get(get_suffix(file), 0) + 1
    return ", ".join(f"{count:,} {suffix}" for suffix, count in counts.items())


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
