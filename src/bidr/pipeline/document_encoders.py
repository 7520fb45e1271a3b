"""How documents that are added get codes and vectors: by what made the index."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bidr.data.dataset import compose_text
from bidr.data.types import Document
from bidr.data.vector_source import VectorSource
from bidr.errors import ConfigError, DataError
from bidr.index.live.types import Coded, Coder
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.metrics import compute_reconstruction_errors
from bidr.utils.array_types import Floats

if TYPE_CHECKING:
    from bidr.models.codes_only_model import CodesOnlyModel
    from bidr.models.saved_model import Model
    from bidr.models.text_encoder import TextEncoder

Sides = Callable[[list[str]], tuple[Floats, Floats]]
"""Encodes texts of documents for the codes, and for the disk."""


def make_model_encoder(model: "Model", sides: Sides | None = None) -> Coder:
    """Encodes the texts, each side by its own encoder, as the build did.

    sides: encodes in the place of the model's own encoders, which are then not loaded.
    """
    both = sides or _own_sides(model)

    def code(documents: Sequence[Document], vectors: Floats | None) -> Coded:
        given, rows = both([compose_text(document, model.text.titles) for document in documents])
        if sides is None:
            from bidr.models.corpus_encoding import encode_codes

            codes = encode_codes(model.codebooks, given, model.sparse)
        else:
            codes = model.codebooks.encode(given)
        return Coded(codes, rows, compute_reconstruction_errors(model.codebooks, given, codes))

    return code


def _own_sides(model: "Model") -> Sides:
    from bidr.models.corpus_encoding import encode_texts

    def encode(encoder: "TextEncoder", texts: list[str]) -> Floats:
        longest = min(model.text.document_length, encoder.max_length)
        return encode_texts(encoder, texts, prompt=encoder.prompts.document, max_length=longest)

    return lambda texts: (encode(model.sparse, texts), encode(model.dense, texts))


def make_codes_only_encoder(model: "CodesOnlyModel") -> Coder:
    """Codes vectors that are given."""

    def code(documents: Sequence[Document], vectors: Floats | None) -> Coded:
        rows = model.documents(_given(vectors))[:]
        codes = model.additive.encode(rows)
        return Coded(codes, rows, compute_reconstruction_errors(model.additive, rows, codes))

    return code


def make_codebook_encoder(codebooks: Codebooks, *, unit: bool) -> Coder:
    """Codes vectors by the codebooks of the index itself. unit: they are made as long as 1."""

    def code(documents: Sequence[Document], vectors: Floats | None) -> Coded:
        rows = VectorSource(_given(vectors), "vectors", "cosine" if unit else "ip")[:]
        codes = codebooks.encode(rows)
        return Coded(codes, rows, compute_reconstruction_errors(codebooks, rows, codes))

    return code


def _given(vectors: Floats | None) -> Floats:
    if vectors is None:
        raise DataError("documents without vectors given, but the index has no text encoder; give a vector of each")
    return vectors


def refuse_documents(documents: Sequence[Document], vectors: Floats | None) -> Coded:
    """For a writer that adds nothing, and so needs no model."""
    raise ConfigError("this writer was opened to delete and to compact; open one with the model of the index")
