"""The model card: README.md in the model folder, for whoever is handed the folder and nothing else."""

import json
import os
from pathlib import Path
from typing import Any

from bidr.models.saved_model import Model
from bidr.utils.files import write_atomically

CARD_NAME = "README.md"
BUILT_IN = "built-in"

USE = """\
## Use

`RUN` is this folder, `DATA` a folder of documents and questions (BEIR, MS MARCO or parquet layout).

    bidr build    --data DATA --model RUN --out INDEX
    bidr search   --index INDEX "words of a question"
    bidr evaluate --index INDEX --data DATA --split test --json figures.json

No figures of a test split are in this card: the last command measures them.

The encoders of the vectors with sentence-transformers alone (`sparse/` is that of the codes):

```python
from sentence_transformers import SentenceTransformer

texts = ["{text}"]
documents = SentenceTransformer("RUN/dense").encode(texts{document_prompt})
questions = SentenceTransformer("RUN/{of_vectors}").encode(["words of a question"]{query_prompt})
scores = questions @ documents.T
```

The encoders as ONNX files, for programs without torch:

    bidr export --model RUN --out ONNX

Codes, codebooks, vectors and ids of an index for numpy and Faiss alone, row for row the same documents:

    bidr export --index INDEX --out PLAIN

```python
import numpy as np

codes = np.load("PLAIN/codes.npy", mmap_mode="r")  # the number of a codeword in each book
vectors = np.load("PLAIN/vectors.npy", mmap_mode="r")
```

`PLAIN/codes.faiss` is a plain Faiss index, searched by inner product with questions encoded with RUN/{of_codes};
`PLAIN/README.md` has the lines that search and rank.

Rotation and codebooks are the arrays `rotation` and `centroids` of `sparse/quantizer.safetensors`: a document's code
is, in each book, the number of the codeword nearest to its part of the rotated vector (`vector @ rotation.T`); where
there is an array `choosing`, of its codewords. Where there is an array `document`, codewords are summed instead: those
of `choosing` whose sum is nearest to `(vector - centre) @ document.T`, found by beam search."""


def write_card(model: Model, changed: dict[str, Any]) -> Path:
    """Write the card of a model; `changed`: the settings that differ from the defaults."""
    path = model.folder / CARD_NAME
    write_atomically(path, (render_card(model, changed) + "\n").encode())
    return path


def render_card(model: Model, changed: dict[str, Any]) -> str:
    """The text of the card."""
    training = model.training
    about = "\n".join(f"| {key} | {value} |" for key, value in _about(model))
    settings = "\n".join(
        f"{key} = {json.dumps(hide_path(value))}" for key, value in changed.items() if value is not None
    )
    stages = "\n\n".join(
        f"### {stage}\n\n{format_epochs(epochs)}" for stage, epochs in training.get("stages", {}).items()
    )
    return "\n\n".join(
        [
            _front_matter(model),
            f"# Codes and vectors for {hide_path(training['data'])}",
            "A bidr model. It gives every document two representations: a few bytes of codes that stay in RAM and find "
            "candidates, and a vector on disk that decides among them.",
            f"| | |\n|---|---|\n{about}",
            _use(model),
            "## Training",
            "The settings that differ from the defaults, for `bidr train --data DATA --out RUN --config FILE`:",
            f"```toml\n{settings}\n```",
            "What each epoch showed: the mean loss, the measure on the dev questions, and what its batches were like.",
            stages,
        ]
    )


def hide_path(value: Any) -> Any:
    """A setting as others may read it: of a path on this machine only the last part."""
    return Path(os.path.abspath(os.path.expanduser(value))).name if _is_path(value) else value


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and (
        value.startswith((os.sep, f".{os.sep}", f"..{os.sep}", "~")) or (bool(value) and os.path.exists(value))
    )


def _front_matter(model: Model) -> str:
    backbone = _backbone(model)
    lines = ["library_name: bidr", "pipeline_tag: sentence-similarity"]
    if backbone != BUILT_IN and not _is_path(backbone):
        lines.append(f"base_model: {json.dumps(backbone)}")
    tags = ["bidr", "sentence-transformers", "feature-extraction", "dense-retrieval", "product-quantization"]
    return "\n".join(["---", *lines, "tags:", *(f"- {tag}" for tag in tags), "---"])


def _about(model: Model) -> list[tuple[str, str]]:
    from torch import __version__ as torch_version

    from bidr._version import __version__

    training, text, books = model.training, model.text, model.codebooks
    used = training.get("codewords")
    rows = [
        ("data", f"{hide_path(training['data'])}: {training['documents']:,} documents"),
        ("questions", f"{training['train_queries']:,} to train on"),
        ("method", str(training["config"].get("method", "bidr"))),
        ("encoder", f"{hide_path(_backbone(model))}, {books.dim} dimensions"),
        ("text", f"titles: {text.titles}; most tokens: question {text.query_length}, document {text.document_length}"),
        ("codes", f"{books.bytes_per_doc} bytes a document ({books.books} books of {books.words} codewords)"),
        ("question encoders", "one for both sides (`query/`)" if model.unified else "one for each side"),
        ("candidates", f"{model.candidates} by default"),
        ("fingerprint", f"`{model.fingerprint}`"),
        ("versions", f"bidr {__version__}, torch {torch_version}"),
    ]
    if training.get("recipe"):
        rows.insert(3, ("recipe", f"`{training['recipe']}`; its settings are among those below"))
    if model.lists is not None:
        rows.insert(-4, ("coarse lists", f"{len(model.lists.means):,}, learned with the question encoder"))
    if used:
        entropy = f"entropy {used['entropy_bits']:.2f} of {books.bits} bits"
        worst = f"{used['least_entropy_bits']:.2f} in the worst book"
        rows.insert(-4, ("codewords", f"{used['used']:.1%} used, {entropy}, {worst}"))
    return rows


def _use(model: Model) -> str:
    asked = (model.query or model.dense).prompts.query

    def prompt(text: str) -> str:
        return f", prompt={json.dumps(text)}" if text else ""

    return USE.format(
        text="title and text of a document" if model.text.titles == "prepend" else "text of a document",
        document_prompt=prompt(model.dense.prompts.document),
        query_prompt=prompt(asked),
        of_vectors="query" if model.unified else "dense",
        of_codes="query" if model.unified else "sparse",
    )


def format_epochs(epochs: list[dict[str, float]]) -> str:
    """What was measured, a line each time."""
    if not epochs:
        return "No epochs."
    names = list(dict.fromkeys(name for epoch in epochs for name in epoch))
    lines = [names, ["---"] * len(names)]
    lines += [[_figure(epoch.get(name)) for name in names] for epoch in epochs]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _backbone(model: Model) -> str:
    return str(model.training["config"].get("encoder", {}).get("backbone", BUILT_IN))
