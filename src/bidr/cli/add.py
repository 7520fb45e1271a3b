"""`bidr add`: add documents to an index, or replace them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from bidr.cli.base import (
    CommandResult,
    OptionalEncoder,
    OptionalFile,
    OptionalFolder,
    OptionalSize,
    format_count,
)
from bidr.cli.index_writer import Index, describe_state
from bidr.cli.table_flags import TableCommand
from bidr.errors import ConfigError, DataError
from bidr.utils.progress import hide_progress

if TYPE_CHECKING:
    from bidr.data.record_sources import DroppedFieldCounter, Table
    from bidr.data.types import Document
    from bidr.data.vector_source import VectorSource
    from bidr.index.live.writer import LiveWriter


# Limits of one commit: documents, and characters of their texts (but at least one document).
AT_ONCE, LETTERS_AT_ONCE = 1_024, 16 << 20


@dataclass(frozen=True, kw_only=True)
class Add(TableCommand):
    """Add documents to an index, or replace those with the same ids.

    The files are validated before anything is added. Searches see the documents within a second.
    """

    index: Index
    """Index folder."""
    documents: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """JSON lines: {"_id": ..., "title": ..., "text": ..., "metadata": {attributes}}; plain or compressed. Or a table
    (.csv, .tsv, .parquet) with a column of ids, or a folder of text files."""
    vectors: OptionalFile = None
    """Vectors of the documents (.npy), one row per line, for an index without a text encoder. A table may have them in
    a column."""
    model: OptionalFolder = None
    """Model folder, if it has moved since the index was built."""
    encoder: OptionalEncoder = None
    """Encoder of an index of vectors: that which made them (see bidr build), or where it is now. By default that which
    the index was built with."""
    device: str = "auto"
    """Device of the encoder: 'auto', 'cpu', 'cuda'."""
    ram_budget: OptionalSize = None
    """Maximum anonymous memory, the open index included, such as 1GiB, for merging segments. A merge that would
    exceed it is skipped with a message."""

    def run(self) -> CommandResult:
        from bidr.index.storage.commit import WRITER_WAIT_SECONDS
        from bidr.pipeline.open import has_text_encoder, open_writer
        from bidr.utils.progress import show_progress

        table = self._open_documents()
        count, left_out = check_documents(table)
        rows = self._open_vectors()
        if rows is not None and len(rows) != count:
            raise DataError(
                f"{self.vectors}: {format_count(len(rows), 'vector')} for {format_count(count, 'document')} of "
                f"{self.documents}, expected one "
                "for each, in their order; encode that very file"
            )
        warnings: list[str] = []
        if rows is not None and has_text_encoder(self.index, self.model):
            raise ConfigError(f"--vectors: given for {self.index}, whose model encodes texts itself; leave them out")
        how: dict[str, Any] = {
            "device": self.device,
            "ram_budget": self.ram_budget,
            "warn": warnings.append,
            "wait": WRITER_WAIT_SECONDS,
        }
        with open_writer(self.index, self.model, encoder=self.encoder, **how) as writer:
            if rows is not None:
                check_vectors(rows, writer)
            count_before, rows_added = writer.view.count, 0
            with show_progress("add", count, "documents") as advance:
                for batch in _read_batches(table):
                    writer.add(batch, None if rows is None else rows[rows_added : rows_added + len(batch)])
                    rows_added += len(batch)
                    advance(len(batch))
            added = writer.view.count - count_before
            value = {**describe_state(self.index, writer), "added": added, "replaced": count - added}
            value["warning"] = warnings[-1] if warnings else None
            value |= left_out.to_json()
        left_out.report(self.documents)
        line = (
            f"{self.index}: {added:,} added, {count - added:,} replaced; {format_count(value['documents'], 'document')}"
        )
        return CommandResult("\n".join([line, *warnings[-1:]]), value)

    def _open_documents(self) -> "Table[Document]":
        """Open the documents. Only those of tables and text files are read by columns; all need ids of their own."""
        from bidr.data.readers import beir
        from bidr.data.record_sources import Table

        path = Path(self.documents)
        if not self._has_columns():
            self.refuse_table_flags(f"with {self.documents}, which is JSON lines of documents")
            read = partial(beir.read_documents, path)
            return Table(self.documents, read, read_counting=read)
        dataset = self.load_table(self.documents)
        if dataset.has_row_numbers:
            raise DataError(
                f"{self.documents}: no column of ids, expected one, since row numbers would replace other documents; "
                "name it with --id-column"
            )
        return dataset.corpus.table

    def _has_columns(self) -> bool:
        from bidr.data.dataset import get_suffix
        from bidr.data.readers import json_lines

        path = Path(self.documents)
        return path.is_dir() or (get_suffix(path) not in (*json_lines.SUFFIXES, "") and path.exists())

    def _open_vectors(self) -> "VectorSource | None":
        """Open the vectors: --vectors, or a column of the documents."""
        from bidr.data.vector_source import VectorSource, collect_vectors, open_vectors

        if self.vectors is not None:
            return open_vectors(self.vectors, str(self.vectors), "ip")
        if not self._has_columns():
            return None
        with hide_progress():
            dataset = self.load_table(self.documents)
        if dataset.read_vectors is None:
            return None
        return VectorSource(collect_vectors(dataset), self.documents, "ip")


def check_documents(table: "Table[Document]") -> "tuple[int, DroppedFieldCounter]":
    """Validate a file of documents before any is added; return their number and the dropped fields."""
    from bidr.data.attribute_validation import check_attributes
    from bidr.data.id_map import IdMap
    from bidr.data.record_sources import DroppedFieldCounter

    left_out = DroppedFieldCounter()

    def ids() -> Iterator[str]:
        assert table.read_counting is not None
        for number, document in table.read_counting(left_out):
            check_attributes(document.attributes or {}, table.format_place(number))
            yield document.id

    ids_of_file = IdMap(ids())
    repeated = ids_of_file.find_duplicate()
    if repeated is not None:
        raise DataError(f"{table.where}: the id {ids_of_file[repeated[0]]!r} occurs twice; make the ids unique")
    if not len(ids_of_file):
        raise DataError(f"{table.where} has no documents; expected at least one a line")
    return len(ids_of_file), left_out


def check_vectors(rows: "VectorSource", writer: "LiveWriter") -> None:
    """Validate all vectors before any is added."""
    from bidr.index.vectors import MAX_VALUES

    manifest = writer.view.manifest
    if rows.dim != manifest.dim:
        raise DataError(
            f"{rows.name} has {rows.dim} dimensions, the index {manifest.dim}; give vectors of the same model"
        )
    for start in range(0, len(rows), AT_ONCE):
        block = rows[start : start + AT_ONCE]  # raises DataError for NaN and infinity
        if not manifest.unit and (largest := float(abs(block).max())) > MAX_VALUES["fp16"]:
            raise DataError(
                f"{rows.name}: a number of {largest:g} in size within rows {start:,} to {start + len(block) - 1:,}, "
                f"expected up to {MAX_VALUES['fp16']:g} (fp16); scale or normalize the vectors"
            )


def _read_batches(documents: "Iterable[tuple[int, Document]]") -> "Iterator[list[Document]]":
    batch, letters = list["Document"](), 0
    for _, document in documents:
        more = len(document.title) + len(document.text)
        if batch and (len(batch) == AT_ONCE or letters + more > LETTERS_AT_ONCE):
            yield batch
            batch, letters = [], 0
        batch.append(document)
        letters += more
    if batch:
        yield batch
