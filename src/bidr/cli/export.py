"""bidr export: encoders for programs without torch, and an index for programs without bidr."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bidr.cli.base import Command, CommandResult, Folder, OptionalFolder, format_count
from bidr.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Export(Command):
    """Write a model's encoders as ONNX (--model), or an index as Faiss and numpy files (--index).

    Encoders are checked against the model itself; pooling, projection and normalisation are in the files; onnx.json
    says what reads queries and documents, with which prompt and length. Needs the extra 'onnx'. Of an index leave
    codes, codebooks, vectors and ids, in the order of documents, and a README.md with the lines that read them.
    """

    out: Folder
    """Folder for the files: new or empty."""
    model: OptionalFolder = None
    """What `bidr train` left, to leave as ONNX."""
    index: OptionalFolder = None
    """What `bidr build` left, to leave as Faiss and numpy files."""
    onnx_int8: bool = False
    """With --model: files with 8-bit weights besides: smaller and faster, and not quite the same vectors."""
    engine: Literal["flat", "ivf", "graph", "scan", "lists", "hnsw"] | None = None
    """With --index: what the Faiss index looks at: all codes ('scan', the default), those in the nearest lists (of an
    index that was built with lists), or a graph, which is linked then."""

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
        from bidr.cli.format_index import format_bytes
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
        from bidr.cli.format_index import format_bytes
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
