"""Text encoder of an index of vectors: recorded when the index is built, or attached when it is opened."""

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bidr.data.dataset import Dataset, Titles, compose_text
from bidr.data.types import Document
from bidr.data.vector_source import TINY, VectorSource, truncate
from bidr.errors import ConfigError, ModelError
from bidr.index.live.document_encoder import DocumentEncoder, EncodedBatch
from bidr.index.live.view import LiveView
from bidr.index.storage.manifest import EncoderReference
from bidr.models.auto import open_pretrained_encoder
from bidr.models.corpus_encoding import encode_texts
from bidr.models.encoder_interface import TextEncoder
from bidr.models.encoder_source import fingerprint_encoder
from bidr.utils.array_types import Floats, Rows
from bidr.utils.progress import say

CHECKED_DOCUMENTS = 16
MIN_COSINE = 0.97
"""Least median cosine of texts encoded again with the stored vectors. Vectors stored in 8 bits have .9996, those of
another version of a library .999, those of another model about 0, without the prompt of documents .9."""
MAX_LENGTH_DEVIATION = 0.05


class IndexEncoder:
    """An encoder with the prompts and limits that an index was built with."""

    def __init__(self, encoder: TextEncoder, reference: EncoderReference) -> None:
        self.encoder, self.reference = encoder, reference

    @property
    def titles(self) -> Titles:
        """Whether documents are encoded with their titles."""
        return "ignore" if self.reference.titles == "ignore" else "prepend"

    def encode_queries(self, texts: Sequence[str]) -> Floats:
        return self._encode(list(texts), self.reference.query_prompt)

    def encode_documents(self, documents: Sequence[Document]) -> Floats:
        return self._encode(self.compose_texts(documents), self.reference.document_prompt)

    def compose_texts(self, documents: Sequence[Document]) -> list[str]:
        """Compose the input of the encoder: title and text, or the text alone."""
        return [compose_text(document, self.titles) for document in documents]

    def _encode(self, texts: list[str], prompt: str) -> Floats:
        return encode_texts(self.encoder, texts, prompt=prompt, max_length=self.reference.max_length)


def open_index_encoder(
    name: Path | str,
    device: str = "cpu",
    *,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    max_length: int | None = None,
    titles: Titles = "prepend",
    threads: int = 0,
) -> IndexEncoder:
    """Open an encoder by name, with the prompts and the maximum length of its settings unless others are given."""
    encoder = open_pretrained_encoder(name, device, threads)
    if max_length is not None and not 1 <= max_length <= encoder.max_length:
        raise ConfigError(f"max_length: given {max_length}, expected 1 to {encoder.max_length:,}, the encoder's own")
    path = Path(name).expanduser()
    reference = EncoderReference(
        name=str(path.resolve()) if path.exists() else str(name),
        fingerprint=fingerprint_encoder(name),
        query_prompt=encoder.prompts.query if query_prompt is None else query_prompt,
        document_prompt=encoder.prompts.document if document_prompt is None else document_prompt,
        max_length=max_length or encoder.max_length,
        titles=titles,
    )
    return IndexEncoder(encoder, reference)


def attach_encoder(view: LiveView, name: Path | str | None, device: str = "cpu", threads: int = 0) -> IndexEncoder:
    """Open the encoder of an index of vectors, and check that it made them.

    Args:
        name: None: that which the index was built with. Another one is opened with the settings of the recorded one,
            or with its own; unless its fingerprint is the recorded one, some texts are encoded again and compared.
    """
    recorded = view.manifest.encoder
    if name is None and recorded is None:
        raise ConfigError(f"{view.folder}: no encoder is recorded in this index; give one (--encoder)")
    if name is None:
        assert recorded is not None
        return _open_recorded(view.folder, recorded, device, threads)
    settings = {} if recorded is None else recorded._asdict()
    text_settings = {key: settings[key] for key in ("query_prompt", "document_prompt", "titles") if key in settings}
    opened = open_index_encoder(name, device, threads=threads, **text_settings)
    if recorded is not None:
        length = min(recorded.max_length, opened.encoder.max_length)
        opened.reference = opened.reference._replace(max_length=length)
        if opened.reference.fingerprint == recorded.fingerprint:
            return opened
    return check_encoder(view, opened)


def _open_recorded(folder: Path, recorded: EncoderReference, device: str, threads: int) -> IndexEncoder:
    try:
        encoder, fingerprint = (
            open_pretrained_encoder(recorded.name, device, threads),
            fingerprint_encoder(recorded.name),
        )
    except ModelError as error:
        raise ModelError(
            f"{folder} was built with the encoder {recorded.name}, which cannot be opened ({error}); say where it is "
            "now with --encoder, or encoder=... in Python"
        ) from error
    if fingerprint != recorded.fingerprint:
        raise ModelError(
            f"{folder} was built with the encoder {recorded.name}, whose files have changed since (fingerprint "
            f"{fingerprint}, the index says {recorded.fingerprint}); restore them, or give the encoder with --encoder: "
            "texts are then encoded again to check that it fits"
        )
    return IndexEncoder(encoder, recorded)


def check_encoder(view: LiveView, opened: IndexEncoder) -> IndexEncoder:
    """Encode a sample of the texts of an index again and compare them with its vectors.

    Returns:
        The encoder; with or without titles, whichever fits better, unless the index records it.

    Raises:
        ModelError: The encoder did not make the vectors.
    """
    segment, manifest = view.segments[0], view.manifest
    positions = _spread(segment.count)
    documents = [segment.reader.documents.document(row) for row in segment.get_rows(positions).tolist()]
    target = VectorSample(str(view.folder), documents, segment.reader.vectors.read(positions), manifest.dims)
    return compare_encoder(
        opened, target, dim=manifest.dim, unit=manifest.unit, has_titles=manifest.encoder is not None
    )


def check_corpus_encoder(encoder: IndexEncoder | Path | str, rows: VectorSource, data: Dataset | None) -> IndexEncoder:
    """Open an encoder and check it against vectors and their documents, before an index is built of them."""
    opened = encoder if isinstance(encoder, IndexEncoder) else open_index_encoder(encoder)
    documents, sampled = list[Document](), np.empty(0, dtype=np.int64)
    if data is not None:
        sampled = _spread(len(rows))
        sampled_rows = set(sampled.tolist())
        documents = [document for row, document in enumerate(islice(data.corpus, len(rows))) if row in sampled_rows]
    sample = VectorSample(rows.name, documents, rows.gather(sampled[: len(documents)]))
    return compare_encoder(opened, sample, dim=rows.dim, unit=rows.metric == "cosine")


def _spread(count: int) -> Rows:
    """Spread the rows to check evenly over all; several for one that is compared, as some may have no text."""
    return np.unique(np.linspace(0, count - 1, 4 * CHECKED_DOCUMENTS).astype(np.int64))


class VectorSample(NamedTuple):
    """Some documents and their vectors.

    name: Of the index or file, for messages.
    dims: Number of leading dimensions in `vectors`; None: all.
    """

    name: str
    documents: Sequence[Document | None]
    vectors: Floats
    dims: int | None = None


def compare_encoder(
    opened: IndexEncoder, sample: VectorSample, *, dim: int, unit: bool, has_titles: bool = False
) -> IndexEncoder:
    """Compare vectors with those that an encoder makes of their documents (see `check_encoder`).

    Args:
        dim: dimensions of the vectors before truncation.
        unit: vectors are L2-normalized, so that only their directions are compared.
        has_titles: whether the encoder's use of titles is known.
    """
    name = opened.reference.name
    if opened.encoder.dim != dim:
        raise ModelError(
            f"encoder {name}: makes vectors of {opened.encoder.dim} dimensions, those of {sample.name} have {dim}; "
            "give the encoder that made them"
        )
    texts = [(row, document) for row, document in enumerate(sample.documents) if _has_text(document)]
    texts = texts[:: -(-len(texts) // CHECKED_DOCUMENTS) or 1]
    if not texts:
        say(
            f"{sample.name}: has no texts, so whether {name} made its vectors cannot be checked; only the dimensions "
            f"agree ({dim})"
        )
        return opened
    stored = sample.vectors[[row for row, _ in texts]]
    documents = [document for _, document in texts if document is not None]
    best: tuple[Floats, float, EncoderReference] | None = None
    has_alternative = not has_titles and any(document.title for document in documents)
    for titles in ("prepend", "ignore") if has_alternative else (opened.reference.titles,):
        reference = opened.reference._replace(titles=titles)
        vectors = IndexEncoder(opened.encoder, reference).encode_documents(documents)
        if sample.dims is not None:
            vectors = truncate(vectors, sample.dims, unit=unit)
        lengths = [np.maximum(np.linalg.norm(rows, axis=1), TINY) for rows in (vectors, stored)]
        cosines = (vectors * stored).sum(axis=1) / (lengths[0] * lengths[1])
        if best is None or np.median(cosines) > np.median(best[0]):
            best = cosines, float(np.median(lengths[0] / lengths[1])), reference
    assert best is not None
    cosines, ratio, reference = best
    median, deviates = float(np.median(cosines)), not unit and abs(ratio - 1) > MAX_LENGTH_DEVIATION
    if median < MIN_COSINE or deviates:
        lengths_text = f" and lengths {ratio:.2f} times those" if deviates else ""
        raise ModelError(
            f"encoder {name}: did not make the vectors of {sample.name}: {len(documents)} texts, encoded again, have "
            f"a median cosine of {median:.3f} (lowest {cosines.min():.3f}) with them{lengths_text}, expected "
            f"{MIN_COSINE} or more; give the encoder that made them, with its prompts (bidr build --document-prompt) "
            "and its version"
        )
    return IndexEncoder(opened.encoder, reference)


def _has_text(document: Document | None) -> bool:
    return document is not None and bool(document.text.strip() or document.title.strip())


def add_text_encoder(encode: DocumentEncoder, encode_texts: Callable[[Sequence[Document]], Floats]) -> DocumentEncoder:
    """Return a document encoder that makes the vectors of documents without.

    Args:
        encode: encodes documents with vectors.
        encode_texts: makes vectors of documents.
    """

    def code(documents: Sequence[Document], vectors: Floats | None) -> EncodedBatch:
        return encode(documents, encode_texts(documents) if vectors is None else vectors)

    return code
