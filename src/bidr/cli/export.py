"""`bidr export`: encoders as ONNX, and indexes as Faiss and numpy files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bidr.cli.base import Command, CommandResult, Folder, OptionalFolder, format_count
from bidr.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Export(Command):
    """Export a model's encoders as ONNX (--model), or an index as Faiss and numpy files (--index).

    Pooling, projection and normalization are in the ONNX files, whose vectors are compared with the model's; onnx.json
    names the file, prompt and length for queries and for documents (extra 'onnx'). An index is exported as codes,
    codebooks, vectors and ids in document order, with a README.md that shows how to read them (extra 'faiss').
    """

    out: Folder
    """Output folder, new or empty."""
    model: OptionalFolder = None
    """Model folder written by `bidr train`, to export as ONNX."""
    index: OptionalFolder = None
    """Index folder, to export as Faiss and numpy files."""
    onnx_int8: bool = False
    """With --model: also write files with 8-bit weights: smaller, faster, slightly different vectors."""
    engine: Literal["flat", "ivf", "graph", "scan", "lists", "hnsw"] | None = None
    """With --index: type of the Faiss index: 'flat' (IndexPQ, the default), 'ivf' (IndexIVFPQ, for an index built
    with ivf) or 'graph' (IndexHNSWPQ, whose graph is built now)."""

    def run(self) -> CommandResult:
        if self.index is not None and self.model is not None:
            raise ConfigError("--model and --index given, expected one of them; export them in two runs")
        if self.index is not None:
            if self.onnx_int8:
                raise ConfigError("--onnx-int8 is for --model, and --index was given; leave it out")
            return self._export_index(self.index)
        if self.model is None:
            raise ConfigError("neither --model (encoders as ONNX) nor --index (Faiss and numpy files) given; give one")
        if self.engine is not None:
            raise ConfigError("--engine is for --index, and --model was given; leave it out")
        return self._export_model(self.model)

    def _export_index(self, index: Path) -> CommandResult:
        from bidr.cli.format_description import format_bytes
        from bidr.export.index_export import export_index

        exported = export_index(index, self.out, engine=self.engine or "scan")
        lines = [f"{name:<13}  {format_bytes(count):>9}" for name, count in exported.files.items()]
        lines.append(
            f"{format_count(exported.documents, 'document')}; how to read them: {exported.folder / 'README.md'}"
        )
        return CommandResult(
            "\n".join(lines), {"folder": str(self.out), "documents": exported.documents, "files": exported.files}
        )

    def _export_model(self, model: Path) -> CommandResult:
        from bidr.cli.format_description import format_bytes
        from bidr.export.onnx import export_onnx

        exported = export_onnx(model, self.out, int8=self.onnx_int8)
        lines = ["file                     size      texts  largest difference  smallest cosine"]
        for check in exported.checks:
            name = f"{check.encoder}/{check.file}"
            lines.append(
                f"{name:<23}  {format_bytes(check.bytes):>8}  {check.texts:>5}  "
                f"{check.difference:>18.1e}  {check.cosine:>15.6f}"
            )
        for reads in ("queries", "documents"):
            for side, how in exported.about[reads].items():
                lines.append(f"{reads} for the {side}: {how['encoder']}/, at most {how['max_length']} tokens")
        return CommandResult("\n".join(lines), {"folder": str(self.out), **exported.about})
