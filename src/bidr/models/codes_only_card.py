"""The card of a model that was learned from vectors: README.md in its folder."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bidr.models.model_card import CARD_NAME, format_epochs
from bidr.utils.files import write_atomically

if TYPE_CHECKING:
    from bidr.models.codes_only_model import CodesOnlyModel

UNPREFIXED_SETTINGS = ("bytes_per_doc", "codewords", "seed")
"""Settings of every run; the others are those of the table `frozen`."""

CARD = """\
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
    found = searcher.search_vectors(np.load("questions.npy"), k=10)
```

With numpy alone: `sparse/adapter.safetensors` holds `centre`, `document` (documents are coded as
`(vector - centre) @ document.T`, by the codewords `chosen_by` whose sum is nearest) and `query` (questions are compared
as `vector @ query.T`); `sparse/quantizer.safetensors` holds the codewords that are compared.

## Training

The settings, for `{train}`:

```toml
{settings}
```

What was measured on questions held out on the way:

{history}
"""


def write_codes_only_card(model: "CodesOnlyModel") -> Path:
    """Write the card of a model into its folder."""
    path = model.folder / CARD_NAME
    write_atomically(path, render_codes_only_card(model).encode())
    return path


def render_codes_only_card(model: "CodesOnlyModel") -> str:
    """The text of the card: nothing of it but sizes tells of the vectors."""
    from bidr._version import __version__

    training, books = model.training, model.codebooks
    rows = {
        "documents": f"{training['documents']:,}, of which {training['sampled_documents']:,} were looked at",
        "questions": f"{training['questions']:,}, {training['labelled_questions']:,} of them with answers",
        "codes": f"{books.bytes_per_doc} bytes a document ({books.books} books of {books.words} codewords, summed)",
        "compared by": "cosine" if model.metric == "cosine" else "inner product",
        "candidates": f"{model.candidates} by default",
        "fingerprint": f"`{model.fingerprint}`",
        "versions": f"bidr {__version__}",
    }
    return CARD.format(
        dim=model.dim,
        about="\n".join(f"| {key} | {value} |" for key, value in rows.items()),
        train=_command(model),
        settings="\n".join(f"{name} = {json.dumps(value)}" for name, value in _settings(model).items()),
        history=format_epochs(training["dev"]),
    )


def _settings(model: "CodesOnlyModel") -> dict[str, Any]:
    """As keys of a TOML file; crops are of texts, and refused with vectors."""
    found = {"candidates": model.candidates}
    for name, value in model.training["config"].items():
        if value is not None and name != "crops":
            found[name if name in UNPREFIXED_SETTINGS else f"frozen.{name}"] = value
    return found


def _command(model: "CodesOnlyModel") -> str:
    words = ["bidr train --vectors documents.npy"]
    words += ["--query-vectors questions.npy"] if model.training["questions"] else []
    words += ["--qrels qrels.tsv"] if model.training["labelled_questions"] else []
    words += [f"--metric {model.metric}"] if model.metric != "cosine" else []
    return " ".join([*words, "--out RUN --config FILE"])
