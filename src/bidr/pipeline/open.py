"""Open an index with its model, for searching or for writing."""

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Self, Unpack

import numpy.typing as npt

from bidr.data.types import Document
from bidr.data.vector_source import open_vectors
from bidr.errors import ConfigError, IndexFolderError, ModelError
from bidr.index.live.document_encoder import EncodedBatch
from bidr.index.live.lexical_search import has_lexical_index
from bidr.index.live.live_reader import LiveIndex
from bidr.index.live.writer import LiveWriter
from bidr.index.storage.live_state import read_model_reference
from bidr.index.vectors.vector_memory import CacheSize, parse_cache_size
from bidr.models.codes_only_model import CodesOnlyModel, open_model
from bidr.models.saved_model import Model, SearchSettings
from bidr.pipeline.build import Vectors
from bidr.pipeline.document_encoders import make_codebook_encoder, make_codes_only_encoder, make_model_encoder
from bidr.pipeline.index_encoder import add_text_encoder, attach_encoder
from bidr.search.searcher import CANDIDATES, QueryEncoder, Searcher, check_integer
from bidr.search.types import QueryVectors, RankedBatch, SearchOptions
from bidr.utils.array_types import Floats
from bidr.utils.deprecation import DeprecatedAlias
from bidr.utils.device import pick_device


class OpenIndex(Searcher):
    """An index with its model, searched by text or vectors. Use it as a context manager."""

    model: Model | CodesOnlyModel | None = None
    is_lexical_optional = False
    """Whether BM25 candidates are the model's recommendation: searches by vectors without words have none."""

    def encode(self, texts: Sequence[str]) -> tuple[QueryVectors, float]:
        """Encode query texts; refuse if the index has no model."""
        if self.encoder is None:
            raise ConfigError(
                f"{self.reader.folder} was made from vectors without an encoder: a query text cannot be encoded; give "
                "the encoder that made them (--encoder, or encoder=... in Python), or give its vector "
                "(--query-vectors, or search_vectors); for hybrid search pass both the vector and the text "
                "(--lexical, words=...)"
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
        """Return the best k documents for each query as arrays; options: see `SearchOptions`.

        Args:
            queries: query vectors, also from another model.
            k: number of documents.
            candidates: number of candidates to read.
            words: texts of the queries for BM25.
        """
        encoded = queries if isinstance(queries, QueryVectors) else self.query_vectors(queries)
        if words is None and self.is_lexical_optional and options.get("lexical") is None:
            options["lexical"] = 0
        return super().search_vectors(encoded, k, candidates, words=words, **options)

    by_vectors = DeprecatedAlias("OpenIndex.by_vectors", "make_lookup_encoder")

    def make_lookup_encoder(self, vectors: Vectors, rows: dict[str, int]) -> QueryEncoder:
        """Return an encoder that looks up the vectors of query ids, for `evaluate`."""
        encoded = self.query_vectors(vectors)

        def encode(texts: Sequence[str]) -> QueryVectors:
            selected = [rows[name] for name in texts]
            return QueryVectors(encoded.codes[selected], encoded.vectors[selected])

        return encode

    def query_vectors(self, vectors: Path | npt.ArrayLike) -> QueryVectors:
        """Prepare query vectors for the codes and for the vectors."""
        if isinstance(self.model, CodesOnlyModel):
            return QueryVectors(*self.model.queries(vectors))
        rows = open_vectors(vectors, "query vectors", "cosine" if self.reader.manifest.unit else "ip")[:]
        return QueryVectors(rows, rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.reader.close()


def open_index_model(
    folder: Path | str, model: Path | str | None = None, device: str = "cpu"
) -> Model | CodesOnlyModel | None:
    """Open the model of an index; None if it was built from arrays. `model`: its folder, if that has moved."""
    stamp = read_model_reference(Path(folder))
    if model is None and stamp is None:
        return None
    model_folder = model if model is not None else stamp.folder if stamp else ""
    try:
        return open_model(model_folder, pick_device(device))
    except ModelError as error:
        if model is not None:
            raise
        raise ModelError(
            f"{folder} was built with the model in {model_folder}, which cannot be opened there any more ({error}); "
            "say where it is now with --model, or model=... in Python"
        ) from error


def open_index(
    folder: Path | str,
    model: Path | str | None = None,
    *,
    encoder: Path | str | None = None,
    candidates: int | None = None,
    ef: int | None = None,
    device: str = "cpu",
    fuse: float = 0.0,
    lexical: int | None = None,
    lexical_weight: float | None = None,
    cache: CacheSize = None,
) -> OpenIndex:
    """Open an index for searching. Later additions and deletions are visible within a second.

    Args:
        model: the folder of the model, if it has moved since the index was built.
        encoder: for an index of vectors, the encoder that made them: a folder, an .onnx file or a Hugging Face id.
            Some texts of the index are encoded again to check it. None: that which the index was built with.
        candidates: number of candidates to read for a query; None: as the model was trained for.
        ef: nprobe of lists, or ef_search of a graph.
        device: where queries are encoded.
        fuse: weight of the code score (see `Searcher`).
        lexical: number of BM25 candidates (see `Searcher`); None: as the model recommends for texts, if the index
            has words.
        lexical_weight: weight of the BM25 score (see `Searcher`); None: as the model recommends.
        cache: memory for vectors: bytes, or a text such as "2GiB"; 0: none. None: the page cache if all vectors fit in
            the available memory, otherwise a cache of half of it.
    """
    for name, number in (("ef", ef), ("candidates", candidates)):
        if number is not None:
            check_integer(name, number)
    parse_cache_size(cache)
    opened = open_index_model(folder, model, device)
    _refuse_encoder_of_text_model(folder, opened, encoder)
    reader = LiveIndex.open(folder, expect_model=None if opened is None else opened.fingerprint, ef=ef, cache=cache)
    recommended = SearchSettings()
    if opened is not None and has_lexical_index(reader.latest()):
        recommended = opened.search
    options: dict[str, Any] = {
        "fuse": fuse,
        "lexical": recommended.lexical if lexical is None else lexical,
        "lexical_weight": recommended.lexical_weight if lexical_weight is None else lexical_weight,
    }
    try:
        default_candidates = CANDIDATES if opened is None else opened.candidates
        searcher = OpenIndex(reader, None, candidates or default_candidates, **options)
        searcher.model, searcher.is_lexical_optional = opened, opened is not None and lexical is None
        searcher.encoder = _make_query_encoder(searcher, encoder, device)
    except BaseException:
        reader.close()
        raise
    return searcher


def _make_query_encoder(searcher: OpenIndex, name: Path | str | None, device: str) -> QueryEncoder | None:
    """Make the encoder of query texts; None for an index of vectors without one."""
    model = searcher.model
    if isinstance(model, Model):
        return lambda texts: QueryVectors(*model.encode_queries(list(texts)))
    view: Any = searcher.reader.latest()
    if name is None and view.manifest.encoder is None:
        return None if model is None else lambda texts: QueryVectors(*model.encode_queries(list(texts)))
    # A recorded encoder is opened by the first text: searching by vectors must not depend on it.
    get_encoder = cache(partial(attach_encoder, view, name, device))
    if name is not None:
        get_encoder()
    return lambda texts: searcher.query_vectors(get_encoder().encode_queries(texts))


def _refuse_encoder_of_text_model(
    folder: Path | str, opened: Model | CodesOnlyModel | None, encoder: Path | str | None
) -> None:
    if encoder is not None and isinstance(opened, Model):
        raise ConfigError(
            f"encoder: given for {folder}, which has a model with text encoders of its own; leave it out (--model says "
            "where the model is)"
        )


def open_writer(
    folder: Path | str,
    model: Path | str | None = None,
    *,
    encoder: Path | str | None = None,
    device: str = "auto",
    **options: Any,
) -> LiveWriter:
    """Open an index for adding, replacing and deleting documents; use it as a context manager.

    Texts are encoded by the model or the encoder of the index, or by `encoder`, as for `open_index`. If there is none,
    give vectors: ``writer.add([Document("id", "title", "text", {"lang": "en"})], vectors)``.
    Options: see `LiveWriter`.
    """
    opened = open_index_model(folder, model, device)
    _refuse_encoder_of_text_model(folder, opened, encoder)
    if isinstance(opened, Model):
        return LiveWriter(folder, make_model_encoder(opened), expect_model=opened.fingerprint, **options)
    return _open_vector_writer(folder, opened, encoder, device, options)


def _open_vector_writer(
    folder: Path | str, model: CodesOnlyModel | None, encoder: Path | str | None, device: str, options: dict[str, Any]
) -> LiveWriter:
    """Open a writer that encodes by a codes-only model, or by the codebooks of the index once locked."""

    def code(documents: Sequence[Document], vectors: Floats | None) -> EncodedBatch:
        view = writer.view
        coder = (
            make_codebook_encoder(view.codebooks, unit=view.manifest.unit)
            if model is None
            else make_codes_only_encoder(model)
        )
        if encoder is not None or view.manifest.encoder is not None:
            coder = add_text_encoder(coder, lambda records: get_encoder().encode_documents(records))
        return coder(documents, vectors)

    get_encoder = cache(lambda: attach_encoder(writer.view, encoder, pick_device(device)))
    writer = LiveWriter(folder, code, expect_model=None if model is None else model.fingerprint, **options)
    try:
        if model is None and writer.view.state.model is not None:  # another writer may have rebuilt it meanwhile
            raise IndexFolderError(f"{folder}: built anew with a model while this waited to write; start again")
        if encoder is not None:
            get_encoder()
    except BaseException:
        writer.close()
        raise
    return writer


def has_text_encoder(folder: Path | str, model: Path | str | None = None) -> bool:
    """Return whether an index has a model of texts, so that documents are added to it without vectors."""
    return isinstance(open_index_model(folder, model), Model)
