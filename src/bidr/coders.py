"""How documents that are added get codes and vectors: by what made the index."""

from collections.abc import Sequence
from pathlib import Path

from bidr.codes.codebooks import Floats
from bidr.codes.errors import code_errors
from bidr.codes.fit import encode_on
from bidr.codes.vectors import VectorRows
from bidr.errors import DataError
from bidr.index.live.index import LiveIndex
from bidr.index.live.writer import Coded, Coder
from bidr.model.encode import encode_texts
from bidr.model.encoder import Encoder
from bidr.model.folder import Model
from bidr.model.frozen import FrozenModel
from bidr.text import Document, document_text


def text_coder(model: Model) -> Coder:
    """Encodes the texts, each side by its own encoder, as the build did."""

    def encode(encoder: Encoder, documents: Sequence[Document]) -> Floats:
        texts = [document_text(document, model.text.titles) for document in documents]
        longest = min(model.text.document_length, encoder.max_length)
        return encode_texts(encoder, texts, prompt=encoder.prompts.document, max_length=longest)

    def code(documents: Sequence[Document], vectors: Floats | None) -> Coded:
        given = encode(model.sparse, documents)
        codes = encode_on(model.codebooks, given, model.sparse.device)
        return Coded(codes, encode(model.dense, documents), code_errors(model.codebooks, given, codes))

    return code


def frozen_coder(model: FrozenModel) -> Coder:
    """Codes vectors that are given."""

    def code(documents: Sequence[Document], vectors: Floats | None) -> Coded:
        rows = model.documents(_given(vectors))[:]
        codes = model.additive.encode(rows)
        return Coded(codes, rows, code_errors(model.additive, rows, codes))

    return code


def plain_coder(folder: Path) -> Coder:
    """Codes vectors by the codebooks in the index itself."""
    index = LiveIndex.open(folder)
    codebooks, metric = index.codebooks, "cosine" if index.manifest.unit else "ip"

    def code(documents: Sequence[Document], vectors: Floats | None) -> Coded:
        rows = VectorRows(_given(vectors), "vectors", metric)[:]  # type: ignore[arg-type]
        codes = codebooks.encode(rows)
        return Coded(codes, rows, code_errors(codebooks, rows, codes))

    return code


def _given(vectors: Floats | None) -> Floats:
    if vectors is None:
        raise DataError("documents without vectors given, but the index has no text encoder; give a vector of each")
    return vectors
