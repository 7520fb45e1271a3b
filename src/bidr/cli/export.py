"""bidr export: the encoders for programs without torch."""

from dataclasses import dataclass

from bidr.cli.shown import Folder, Shown, Verb


@dataclass(frozen=True, kw_only=True)
class Export(Verb):
    """Write a model's encoders as ONNX, checked against the model itself.

    Pooling, projection and normalisation are in the files; onnx.json says what reads queries and documents, with which
    prompt and length. Needs the extra 'onnx'.
    """

    model: Folder
    """What `bidr train` left."""
    out: Folder
    """Folder for the files: new or empty."""
    onnx_int8: bool = False
    """Files with 8-bit weights besides: smaller and faster, and not quite the same vectors."""

    def run(self) -> Shown:
        from bidr.api import export_onnx
        from bidr.cli.about import size

        done = export_onnx(self.model, self.out, int8=self.onnx_int8)
        lines = ["file                     size      texts  largest difference  smallest cosine"]
        for one in done.checks:
            name = f"{one.encoder}/{one.file}"
            lines.append(
                f"{name:<23}  {size(one.bytes):>8}  {one.texts:>5}  {one.difference:>18.1e}  {one.cosine:>15.6f}"
            )
        for reads in ("queries", "documents"):
            for side, how in done.about[reads].items():
                lines.append(f"{reads} for the {side}: {how['encoder']}/, at most {how['max_length']} tokens")
        return Shown("\n".join(lines), {"folder": str(self.out), **done.about})
