"""`bidr create`: create an index without documents."""

from dataclasses import dataclass
from typing import Literal

from bidr.cli.base import Command, CommandResult, Engine, OptionalNumber
from bidr.cli.index_writer import Index


@dataclass(frozen=True, kw_only=True)
class Create(Command):
    """Create an index without documents, for vectors that are added later (`bidr add`, or over HTTP).

    Searches rank all documents by their vectors until there are --fit-documents; then codes are fitted to them.
    """

    index: Index
    """Index folder, which must not exist."""
    dim: int
    """Dimensions of the vectors."""
    metric: Literal["cosine", "ip"] = "cosine"
    """Similarity: cosine, or inner product as given."""
    bytes_per_doc: OptionalNumber = None
    """Size of the codes; by default 32 bytes, or the largest valid size below."""
    codewords: Literal[16, 256] = 16
    """Codewords of a codebook: 16 scan faster, 256 are more accurate at the same size."""
    engine: Engine = "auto"
    """Engine over the fitted codes; auto: by the number of documents."""
    stored: Literal["fp16", "int8"] = "fp16"
    """Vectors on disk."""
    lexical: bool = False
    """Also index texts for BM25."""
    fit_documents: int = 10_000
    """Number of documents from which on codes are fitted."""

    def run(self) -> CommandResult:
        from bidr.pipeline.create import create_index

        create_index(
            self.index,
            self.dim,
            metric=self.metric,
            bytes_per_doc=self.bytes_per_doc,
            codewords=self.codewords,
            engine=self.engine,
            stored=self.stored,
            lexical="prepend" if self.lexical else None,
            fit_documents=self.fit_documents,
        )
        value = {"index": str(self.index), "dim": self.dim, "fit_documents": self.fit_documents}
        return CommandResult(f"{self.index}: created, without documents; add some: bidr add {self.index} FILE", value)
