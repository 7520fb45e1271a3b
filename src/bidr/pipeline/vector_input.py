"""What an index of vectors is built from: vectors, ids and metadata, given apart or as one table."""

from pathlib import Path
from typing import Any, NamedTuple

from bidr.data.dataset import Dataset, check_corpus, load, load_metadata
from bidr.data.vector_ids import IdSource, open_id_source
from bidr.data.vector_source import Metric, VectorSource, collect_vectors, is_table, open_vectors
from bidr.errors import ConfigError, DataError


class VectorInput(NamedTuple):
    """Vectors, and the ids or documents of their rows; without both, row numbers are the ids."""

    rows: VectorSource
    ids: IdSource | None
    data: Dataset | None


def open_vector_input(
    vectors: Any, ids: Any, metadata: Any, data: Dataset | None, metric: Metric, out: Path
) -> VectorInput:
    """Open vectors and what belongs to them; DataError for numbers of rows that differ.

    Args:
        vectors: As for `open_vectors`; of a table, the other columns are the documents unless `data` or `metadata` is.
        ids: Ids of the rows.
        metadata: A table of ids, texts and attributes.
        data: A dataset whose documents are those of the rows.
        metric: Similarity.
        out: The index folder, near which temporary files go.
    """
    if metadata is not None and data is not None:
        raise ConfigError("metadata: given with data, expected one of them: documents of data have their own metadata")
    if not is_table(vectors):
        rows = open_vectors(vectors, "vectors", metric)
    else:
        table = load(vectors)
        rows = VectorSource(collect_vectors(table, out), table.corpus.table.where, metric)
        if data is None and metadata is None:
            metadata = table
    names = None if ids is None else open_id_source(ids, len(rows), "documents", out)
    if metadata is not None:
        data, names = load_metadata(metadata, names), None
    if data is not None:
        check_corpus(data, out)  # before anything is written
        count, where = data.corpus.count(), "metadata" if metadata is not None else data.corpus.table.where
        if count != len(rows):
            raise DataError(f"{where}: {count:,} documents for {len(rows):,} vectors, expected one each, in order")
    return VectorInput(rows, names, data)
