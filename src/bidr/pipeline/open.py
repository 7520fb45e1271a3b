"""An index with the model that made it: opened for searching, or for adding to."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, Unpack

import numpy.typing as npt

from bidr.data.types import Document
from bidr.data.vector_source import open_vectors
from bidr.errors import ConfigError, IndexFolderError, ModelError
from bidr.index.live.live_index import LiveIndex
from bidr.index.live.types import Coded
from bidr.index.live.writer import LiveWriter
from bidr.index.storage.live_state import model_of
from bidr.models.codes_only_model import CodesOnlyModel, open_model
from bidr.models.saved_model import Model
from bidr.pipeline.build import Vectors
from bidr.pipeline.document_encoders import make_codebook_encoder, make_codes_only_encoder, make_model_encoder
from bidr.search.searcher import QueryEncoder, Searcher, check_integer
from bidr.search.types import QueryVectors, RankedBatch, SearchOptions
from bidr.utils.array_types import Floats
from bidr.utils.device import pick_device


class OpenIndex(Searcher):
    """An index with the model that made it, ready for questions in words. Use it in a `with` block."""

    model: Model | CodesOnlyModel | None = None

    def encode(self, texts: Sequence[str]) -> tuple[QueryVectors, float]:
        """As that of `Searcher`; tells whose index has no model what to do instead."""
        if self.encoder is None:
            raise ConfigError(
                f"{self.reader.folder} was made from vectors without a model: a question in words cannot be encoded; "
                "give its vector, from the model that made the documents' (--query-vectors, or search_vectors in "
                "Python), and for what words find (--lexical, words=...) both"
            )
        return super().encode(texts)

    def search_vectors(
        self,
        queries: QueryVectors | Path | npt.ArrayLike,
        k: int = 10,
        candidates: int | None = None,
        *,
        words: Sequence[str] | None = None,
        **options: Unpack[SearchOptions],
    ) -> RankedBatch:
        """The k best documents for each query, as arrays. `queries` may be the vectors of the users' own model.

        words: the same questions in words, for the documents that words find; options as `SearchOptions` has them.
        """
        asked = queries if isinstance(queries, QueryVectors) else self.query_vectors(queries)
        return super().search_vectors(asked, k, candidates, words=words, **options)

    def make_lookup_encoder(self, vectors: Vectors, rows: dict[str, int]) -> QueryEncoder:
        """An encoder that looks names up: what `evaluate` asks with where questions are rows of vectors."""
        asked = self.query_vectors(vectors)

        def encode(texts: Sequence[str]) -> QueryVectors:
            places = [rows[name] for name in texts]
            return QueryVectors(asked.codes[places], asked.vectors[places])

        return encode

    def query_vectors(self, vectors: Path | npt.ArrayLike) -> QueryVectors:
        """Questions' vectors as each side of the index takes them."""
        if isinstance(self.model, CodesOnlyModel):
            return QueryVectors(*self.model.queries(vectors))
        own = open_vectors(vectors, "query vectors", "cosine" if self.reader.manifest.unit else "ip")[:]
        return QueryVectors(own, own)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.reader.close()


def open_index_model(
    folder: Path | str, model: Path | str | None = None, device: str = "cpu"
) -> Model | CodesOnlyModel | None:
    """The model that made an index, or the one that is said to have; none where the index was made from arrays."""
    stamp = model_of(Path(folder))
    if model is None and stamp is None:
        return None
    where = model if model is not None else stamp.folder if stamp else ""
    try:
        return open_model(where, pick_device(device))
    except ModelError as error:
        if model is not None:
            raise
        raise ModelError(
            f"{folder} was built with the model in {where}, which cannot be opened there any more ({error}); "
            "say where it is now with --model, or model=... in Python"
        ) from error


def open_index(
    folder: Path | str,
    model: Path | str | None = None,
    *,
    candidates: int | None = None,
    ef: int | None = None,
    device: str = "cpu",
    fuse: float = 0.0,
    lexical: int = 0,
    lexical_weight: float = 0.0,
) -> OpenIndex:
    """Open an index for searching; what is added to it and deleted from it later is seen within a second.

    model:  its model folder, if that is no longer where it was when the index was built.
    ef:     how widely candidates are looked for: lists that are visited, or documents that a graph keeps in view.
    device: where queries are encoded.
    fuse:   as that of `Searcher`: how much of the codes' score is added to the vectors'.
    lexical, lexical_weight: as those of `Searcher`: how many documents the words find join the candidates.
    """
    for name, number in (("ef", ef), ("candidates", candidates)):
        if number is not None:
            check_integer(name, number)
    words: dict[str, Any] = {"fuse": fuse, "lexical": lexical, "lexical_weight": lexical_weight}
    opened = open_index_model(folder, model, device)
    if opened is None:
        return OpenIndex(LiveIndex.open(folder, ef=ef), **words)
    reader = LiveIndex.open(folder, expect_model=opened.fingerprint, ef=ef)

    def encode(texts: Sequence[str]) -> QueryVectors:
        return QueryVectors(*opened.encode_queries(list(texts)))

    searcher = OpenIndex(reader, encode, candidates or opened.candidates, **words)
    searcher.model = opened
    return searcher


def open_writer(
    folder: Path | str, model: Path | str | None = None, *, device: str = "auto", **options: Any
) -> LiveWriter:
    """Open an index for adding, replacing and deleting documents; use it in a `with` block.

    Texts are encoded by the index's model; where that was learned from vectors, or there is none, give vectors:
    ``writer.add([Document("id", "title", "text", {"lang": "en"})], vectors)``. Options as those of `LiveWriter`.
    """
    opened = open_index_model(folder, model, device)
    if opened is None:
        return _plain_writer(folder, options)
    coder = make_codes_only_encoder(opened) if isinstance(opened, CodesOnlyModel) else make_model_encoder(opened)
    return LiveWriter(folder, coder, expect_model=opened.fingerprint, **options)


def _plain_writer(folder: Path | str, options: dict[str, Any]) -> LiveWriter:
    """Codes by what the index has once it is held: whoever was waited for may have built it anew."""

    def code(documents: Sequence[Document], vectors: Floats | None) -> Coded:
        view = writer.view
        return make_codebook_encoder(view.codebooks, unit=view.manifest.unit)(documents, vectors)

    writer = LiveWriter(folder, code, **options)
    if writer.view.state.model is not None:
        writer.close()
        raise IndexFolderError(f"{folder}: built anew with a model while this waited to write; start again")
    return writer


def has_text_encoder(folder: Path | str, model: Path | str | None = None) -> bool:
    """Whether documents are added to an index as texts alone, and not with vectors."""
    return isinstance(open_index_model(folder, model), Model)
