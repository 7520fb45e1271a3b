"""Encoders of added documents: codes and vectors by the model or codebooks of the index."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bidr.data.dataset import compose_text
from bidr.data.types import Document
from bidr.data.vector_source import VectorSource
from bidr.errors import ConfigError, DataError
from bidr.index.live.document_encoder import DocumentEncoder, EncodedBatch
from bidr.quantization.code_quality import compute_reconstruction_errors
from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Floats

if TYPE_CHECKING:
    from bidr.models.codes_only_model import CodesOnlyModel
    from bidr.models.encoder_interface import TextEncoder
    from bidr.models.saved_model import Model

SideEncoder = Callable[[list[str]], tuple[Floats, Floats]]
"""Encodes texts of documents for the codes and for the vectors."""


def make_model_encoder(model: "Model", encode_sides: SideEncoder | None = None) -> DocumentEncoder:
    """Return an encoder of texts by the encoders of a model, as in the build.

    Args:
        encode_sides: replaces the encoders of the model, which are then not loaded.
    """
    encode_both = encode_sides or _make_side_encoder(model)

    def code(documents: Sequence[Document], vectors: Floats | None) -> EncodedBatch:
        inputs, rows = encode_both([compose_text(document, model.text.titles) for document in documents])
        if encode_sides is None:
            from bidr.models.corpus_encoding import encode_codes

            codes = encode_codes(model.codebooks, inputs, model.sparse)
        else:
            codes = model.codebooks.encode(inputs)
        return EncodedBatch(codes, rows, compute_reconstruction_errors(model.codebooks, inputs, codes))

    return code


def _make_side_encoder(model: "Model") -> SideEncoder:
    from bidr.models.corpus_encoding import encode_texts

    def encode(encoder: "TextEncoder", texts: list[str]) -> Floats:
        max_length = min(model.text.document_length, encoder.max_length)
        return encode_texts(encoder, texts, prompt=encoder.prompts.document, max_length=max_length)

    return lambda texts: (encode(model.sparse, texts), encode(model.dense, texts))


def make_codes_only_encoder(model: "CodesOnlyModel") -> DocumentEncoder:
    """Return an encoder of vectors by the codes of a model."""

    def code(documents: Sequence[Document], vectors: Floats | None) -> EncodedBatch:
        rows = model.documents(_check_vectors(vectors))[:]
        codes = model.additive.encode(rows)
        return EncodedBatch(codes, rows, compute_reconstruction_errors(model.additive, rows, codes))

    return code


def make_codebook_encoder(codebooks: Codebooks, *, unit: bool) -> DocumentEncoder:
    """Return an encoder of vectors by the codebooks of an index. `unit`: vectors are L2-normalized."""

    def code(documents: Sequence[Document], vectors: Floats | None) -> EncodedBatch:
        rows = VectorSource(_check_vectors(vectors), "vectors", "cosine" if unit else "ip")[:]
        codes = codebooks.encode(rows)
        return EncodedBatch(codes, rows, compute_reconstruction_errors(codebooks, rows, codes))

    return code


def _check_vectors(vectors: Floats | None) -> Floats:
    if vectors is None:
        raise DataError("documents without vectors, but the index has no text encoder; give one vector per document")
    return vectors


def refuse_documents(documents: Sequence[Document], vectors: Floats | None) -> EncodedBatch:
    """Encoder of a writer that adds no documents and needs no model."""
    raise ConfigError("this writer can only delete and compact; open one with the model of the index")
