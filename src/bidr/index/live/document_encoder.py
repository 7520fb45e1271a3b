"""Encoded documents and the protocol of what encodes them."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from bidr.data.types import Document
from bidr.utils.array_types import Codes, Floats


class EncodedBatch(NamedTuple):
    """Codes and vectors of documents, and the quantization error of each."""

    codes: Codes
    vectors: Floats
    errors: Floats


class DocumentEncoder(Protocol):
    """Encodes documents: their texts, or the vectors that are given with them."""

    def __call__(self, documents: Sequence[Document], vectors: Floats | None) -> EncodedBatch: ...
