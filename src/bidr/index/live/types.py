"""Documents as numbers, and what makes them so."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from bidr.data.types import Document
from bidr.utils.array_types import Codes, Floats


class Coded(NamedTuple):
    """Documents as numbers: codes, vectors, and how far the codes are from what they stand for."""

    codes: Codes
    vectors: Floats
    errors: Floats


class Coder(Protocol):
    """Turns documents into numbers: encodes their texts, or codes the vectors that are given with them."""

    def __call__(self, documents: Sequence[Document], vectors: Floats | None) -> Coded: ...
