"""Model cards: README.md of saved models, of both kinds."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bidr.models.static_embeddings import WORDLLAMA, WORDLLAMA_REPOSITORY
from bidr.utils.files import write_atomically

if TYPE_CHECKING:
    from bidr.models.codes_only_model import CodesOnlyModel
    from bidr.models.saved_model import Model

CARD_NAME = "README.md"
BUILT_IN = "built-in"
CHOICE_NAMES = {"warmup": "warm-up", "conventional": "STAR", "random-walk": "random walk", "opq": "OPQ"}

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


def write_card(model: "Model", changed: dict[str, Any]) -> Path:
    """Write README.md of a text model. `changed`: settings that differ from the defaults."""
    path = model.folder / CARD_NAME
    write_atomically(path, (render_card(model, changed) + "\n").encode())
    return path


def render_card(model: "Model", changed: dict[str, Any]) -> str:
    """Render the card of a text model."""
    training = model.training
    facts = "\n".join(f"| {key} | {value} |" for key, value in _collect_facts(model))
    settings = "\n".join(
        f"{key} = {json.dumps(hide_path(value))}" for key, value in changed.items() if value is not None
    )
    stages = "\n\n".join(
        f"### {stage}\n\n{format_epochs(epochs)}" for stage, epochs in training.get("stages", {}).items()
    )
    return "\n\n".join(
        [
            _format_front_matter(model),
            f"# Codes and vectors for {hide_path(training['data'])}",
            "A bidr model. It gives every document two representations: a few bytes of codes that stay in RAM and find "
            "candidates, and a vector on disk that decides among them.",
            f"| | |\n|---|---|\n{facts}",
            _format_usage(model),
            *_format_choice(training.get("choice")),
            "## Training",
            "The settings that differ from the defaults, for `bidr train --data DATA --out RUN --config FILE`:",
            f"```toml\n{settings}\n```",
            "What each epoch showed: the mean loss, the measure on the dev questions, and what its batches were like.",
            stages,
        ]
    )


def hide_path(value: Any) -> Any:
    """Reduce a local path to its last part; other settings are returned unchanged."""
    return Path(os.path.abspath(os.path.expanduser(value))).name if _is_path(value) else value


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and (
        value.startswith((os.sep, f".{os.sep}", f"..{os.sep}", "~")) or (bool(value) and os.path.exists(value))
    )


def _format_front_matter(model: "Model") -> str:
    backbone = _get_backbone(model)
    lines = ["library_name: bidr", "pipeline_tag: sentence-similarity"]
    if backbone != BUILT_IN and not _is_path(backbone):
        lines.append(f"base_model: {json.dumps(WORDLLAMA_REPOSITORY if backbone == WORDLLAMA else backbone)}")
    tags = ["bidr", "sentence-transformers", "feature-extraction", "dense-retrieval", "product-quantization"]
    return "\n".join(["---", *lines, "tags:", *(f"- {tag}" for tag in tags), "---"])


def _collect_facts(model: "Model") -> list[tuple[str, str]]:
    from torch import __version__ as torch_version

    from bidr._version import __version__

    training, text, books = model.training, model.text, model.codebooks
    used = training.get("codewords")
    rows = [
        ("data", f"{hide_path(training['data'])}: {training['documents']:,} documents"),
        ("questions", f"{training['train_queries']:,} to train on"),
        ("method", str(training["config"].get("method", "bidr"))),
        ("encoder", f"{hide_path(_get_backbone(model))}, {books.dim} dimensions"),
        ("text", f"titles: {text.titles}; most tokens: question {text.query_length}, document {text.document_length}"),
        ("codes", f"{books.bytes_per_doc} bytes a document ({books.books} books of {books.words} codewords)"),
        ("question encoders", "one for both sides (`query/`)" if model.unified else "one for each side"),
        ("candidates", f"{model.candidates} by default"),
        ("fingerprint", f"`{model.fingerprint}`"),
        ("versions", f"bidr {__version__}, torch {torch_version}"),
    ]
    if training.get("recipe"):
        rows.insert(3, ("recipe", f"`{training['recipe']}`; its settings are among those below"))
    if model.search.lexical:
        fusion = f"{model.search.lexical} candidates, weight {model.search.lexical_weight:g}; used by default"
        rows.insert(-2, ("fusion with BM25", fusion))
    if model.lists is not None:
        rows.insert(-4, ("coarse lists", f"{len(model.lists.means):,}, learned with the question encoder"))
    if used:
        entropy = f"entropy {used['entropy_bits']:.2f} of {books.bits} bits"
        worst = f"{used['least_entropy_bits']:.2f} in the worst book"
        rows.insert(-4, ("codewords", f"{used['used']:.1%} used, {entropy}, {worst}"))
    return rows


def _format_usage(model: "Model") -> str:
    query_prompt = (model.query or model.dense).prompts.query

    def format_prompt(text: str) -> str:
        return f", prompt={json.dumps(text)}" if text else ""

    return USE.format(
        text="title and text of a document" if model.text.titles == "prepend" else "text of a document",
        document_prompt=format_prompt(model.dense.prompts.document),
        query_prompt=format_prompt(query_prompt),
        of_vectors="query" if model.unified else "dense",
        of_codes="query" if model.unified else "sparse",
    )


def _format_choice(choice: dict[str, Any] | None) -> list[str]:
    """Format what was chosen on dev, and why."""
    return ["## Choice", "All contenders on dev.", format_choice(choice["rows"], choice["why"])] if choice else []


def format_choice(rows: Sequence[dict[str, Any]], why: str) -> str:
    """Format the rows of choice.json as a Markdown table, the best first, with the chosen one marked."""
    heads = ["", "vectors", "codes", "BM25", "weight", "dev R@10", "dev R@100", "candidates' recall", "bytes"]
    lines = [heads, ["---"] * len(heads)]
    for row in sorted(rows, key=lambda row: -row["criterion"]):
        recalls = [f"{row[name]:.4f}" for name in ("R@10", "R@100", "candidate_recall")]
        fusion = [str(row["lexical"]), f"{row['lexical_weight']:g}"] if row["lexical"] else ["none", ""]
        parts = [CHOICE_NAMES.get(row[name], row[name]) for name in ("vectors", "codes")]
        lines.append(["chosen" if row["chosen"] else "", *parts, *fusion, *recalls, f"{row['bytes_per_doc']:.2f}"])
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    table = [
        "| " + " | ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    return "\n".join([*table, "", f"Chosen: {why}."])


def format_epochs(epochs: list[dict[str, float]]) -> str:
    """Format measurements as a table, one row per epoch."""
    if not epochs:
        return "No epochs."
    # The last row has all columns in their order; the initial weights, epoch 0, have no loss.
    names = list(dict.fromkeys(name for epoch in reversed(epochs) for name in epoch))
    lines = [names, ["---"] * len(names)]
    lines += [[_format_number(epoch.get(name)) for name in names] for epoch in epochs]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _format_number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _get_backbone(model: "Model") -> str:
    return str(model.training["config"].get("encoder", {}).get("backbone", BUILT_IN))


UNPREFIXED_SETTINGS = ("bytes_per_doc", "codewords", "seed")
"""Settings at the top level; the others are in the table `frozen`."""

CODES_ONLY_CARD = """\
---
library_name: bidr
pipeline_tag: sentence-similarity
tags:
- bidr
- product-quantization
---

# Codes for vectors of {dim} dimensions

A bidr model without a text encoder, learned from vectors of another model, which stay as they are: it codes documents
into a few bytes that stay in RAM and find candidates, and adapts questions to these codes. Give it vectors of the same
model only.

| | |
|---|---|
{about}

## Use

`RUN` is this folder; vectors are .npy files, one a row, of documents and of questions.

    bidr build    --vectors documents.npy --model RUN --out INDEX
    bidr search   --index INDEX --query-vectors questions.npy
    bidr evaluate --index INDEX --query-vectors questions.npy --qrels qrels.tsv --json figures.json

Ids are row numbers unless `--ids` and `--query-ids` name them. In Python:

```python
import bidr, numpy as np

with bidr.open_index("INDEX") as searcher:
    results = searcher.search_vectors(np.load("questions.npy"), k=10)
```

With numpy alone: `sparse/adapter.safetensors` holds `centre`, `document` (documents are coded as
`(vector - centre) @ document.T`, by the codewords `chosen_by`, those before training, \
whose sum is nearest) and `query` (questions are compared
as `vector @ query.T`); `sparse/quantizer.safetensors` holds the codewords that are compared.

## Training

The settings, for `{train}`:

```toml
{settings}
```

| setting | meaning |
|---|---|
| `frozen.own`, `frozen.others` | documents of a query in the softmax at each step: \
from its exact top `frozen.depth`, and random ones |
| `frozen.borrowed` | pseudo-queries per labeled query: \
a labeled query-document offset, added to nearby documents |
| `frozen.borrowers` | documents that get pseudo-queries: `all`, or `unasked` (no labeled query) |
| other `frozen.*` | `bidr train --help-all` |

`kept_by` is the score by which the saved step was chosen: the mean held-out recall at several depths.

Held-out evaluation during training:

{history}
"""


def write_codes_only_card(model: "CodesOnlyModel") -> Path:
    """Write README.md of a codes-only model."""
    path = model.folder / CARD_NAME
    write_atomically(path, render_codes_only_card(model).encode())
    return path


def render_codes_only_card(model: "CodesOnlyModel") -> str:
    """Render the card of a codes-only model."""
    from bidr._version import __version__

    training, books = model.training, model.codebooks
    rows = {
        "documents": f"{training['documents']:,}; training sample: {training['sampled_documents']:,}",
        "queries": f"{training['questions']:,}, {training['labelled_questions']:,} of them labeled",
        "codes": f"{books.bytes_per_doc} bytes a document ({books.books} books of {books.words} codewords, summed)",
        "similarity": "cosine" if model.metric == "cosine" else "inner product",
        "candidates": f"{model.candidates} by default",
        "fingerprint": f"`{model.fingerprint}`",
        "versions": f"bidr {__version__}",
    }
    return CODES_ONLY_CARD.format(
        dim=model.dim,
        about="\n".join(f"| {key} | {value} |" for key, value in rows.items()),
        train=_format_command(model),
        settings="\n".join(f"{name} = {json.dumps(value)}" for name, value in _collect_settings(model).items()),
        history=format_epochs(training["dev"]),
    )


def _collect_settings(model: "CodesOnlyModel") -> dict[str, Any]:
    """Collect settings by TOML key. Crops need texts and are refused with vectors."""
    settings = {"candidates": model.candidates}
    for name, value in model.training["config"].items():
        if value is not None and name != "crops":
            settings[name if name in UNPREFIXED_SETTINGS else f"frozen.{name}"] = value
    return settings


def _format_command(model: "CodesOnlyModel") -> str:
    words = ["bidr train --vectors documents.npy"]
    words += ["--query-vectors questions.npy"] if model.training["questions"] else []
    words += ["--qrels qrels.tsv"] if model.training["labelled_questions"] else []
    words += [f"--metric {model.metric}"] if model.metric != "cosine" else []
    return " ".join([*words, "--out RUN --config FILE"])
