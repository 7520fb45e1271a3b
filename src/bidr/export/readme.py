"""The README of an exported index: what lies in the folder, and the lines that read it."""

from typing import NamedTuple

from bidr.index.live.view import LiveView
from bidr.quantization.codebooks import Codebooks


class Asked(NamedTuple):
    """What encodes questions for the codes and for the vectors: folders of a model, or what users bring."""

    codes: str = "the model that made the vectors"
    vectors: str = "the model that made the vectors"


PAGE = """\
# {count:,} documents as plain files

Row i of every file is document i{order}.

| file | what it is |
|---|---|
{files}

{questions}

With numpy, in this folder:

```python
import json
import numpy as np

codes, books, rotation = (np.load(f"{{name}}.npy") for name in ("codes", "codebooks", "rotation"))
parts = (rotation @ {asked}[0]).reshape(len(books), -1)  # a part for every book
table = np.einsum("bd,bwd->bw", parts, books)  # what each codeword is worth to the question
scores = sum(column[numbers] for column, numbers in zip(table, codes.T))
rows = np.argsort(-scores)[:200]  # candidates, by their codes
vectors = np.load("vectors.npy", mmap_mode="r")
near = vectors[rows].astype(np.float32) @ questions[0]{cut}
best = rows[np.argsort(-near)[:10]]  # ranked by their vectors
{names}
```

With Faiss the candidates are:

```python
import faiss

index = faiss.read_index("codes.faiss"){visits}
rows = index.search({asked}, 200)[1][0]
```

{coding}
"""
PRODUCT = """\
The code of another vector is, in each book, the number of the codeword of `{books}.npy` nearest to its part of
`rotation @ vector`:

```python
chosen = np.load("{books}.npy")
parts = (vector @ rotation.T).reshape(len(chosen), 1, -1)
code = np.square(chosen - parts).sum(axis=2).argmin(axis=1)
```"""
SUMMED = """\
Codewords are summed: the code of another vector are those codewords of `choosing.npy`, one from each book, whose sum is
nearest to `document @ (vector - centre)`, found by beam search (`bidr.quantization.additive_quantizer`); {groups}."""


def readme(view: LiveView, engine: str, codebooks: Codebooks, asked: Asked, named: bool) -> str:
    """The text of it; with the names that the folder's own lines take."""
    manifest, apart = view.manifest, asked.codes != asked.vectors
    cut = f"[:{manifest.stored_dim}]" if manifest.dims is not None else ""
    visits = "\nfaiss.extract_index_ivf(index).nprobe = 64  # lists to visit; by default as many as bidr does"
    return PAGE.format(
        count=view.count,
        order="" if view.has_changes else ", in the order in which they were given",
        files="\n".join(f"| `{name}` | {text} |" for name, text in _files(view, engine, codebooks, named).items()),
        questions=_questions(asked, manifest.unit, manifest.dims),
        asked="code_questions" if apart else "questions",
        cut=cut,
        names='ids = [json.loads(line) for line in open("ids.jsonl")]\nnames = [ids[row] for row in best]'
        if named
        else "names = best  # no ids were given: a row's number is its id",
        visits=visits if engine == "lists" else "",
        coding=_coding(codebooks),
    )


def _files(view: LiveView, engine: str, codebooks: Codebooks, named: bool) -> dict[str, str]:
    kind = {"scan": "IndexPQ", "lists": "IndexIVFPQ", "hnsw": "IndexHNSWPQ"}[engine]
    files = {
        "codes.faiss": f"the codes as a Faiss {kind}, by inner product",
        "codes.npy": f"(documents, {codebooks.books}): the number of a codeword in each book",
        "codebooks.npy": f"{codebooks.centroids.shape}: books, codewords, numbers of each",
        "rotation.npy": f"{codebooks.rotation.shape}: what questions are mapped by for the codes",
    }
    if codebooks.choosing is not None:
        files["choosing.npy"] = "the codewords by which documents chose"
    if codebooks.centre is not None and codebooks.document is not None:
        files["centre.npy"] = "what is taken from a document before it is coded"
        files["document.npy"] = f"{codebooks.document.shape}: what it is mapped by then"
    files["vectors.npy"] = f"(documents, {view.manifest.stored_dim}): the vectors that rank"
    if named:
        files["ids.jsonl"] = "an id a line, as JSON"
    return files


def _questions(asked: Asked, unit: bool, dims: int | None) -> str:
    length = ", of length 1" if unit else ""
    if asked.codes == asked.vectors:
        told = f"`questions` are rows of float32 from {asked.vectors}{length}."
    else:
        told = f"`questions` are rows of float32 from {asked.vectors}{length}, `code_questions` from {asked.codes}."
    return told if dims is None else f"{told} They are whole: only the first {dims} numbers of documents' lie here."


def _coding(codebooks: Codebooks) -> str:
    if codebooks.document is None:
        return PRODUCT.format(books="codebooks" if codebooks.choosing is None else "choosing")
    groups = len(codebooks.document) // codebooks.centroids.shape[2]
    split = f"the books in {groups} groups, each for a slice of it" if groups > 1 else "all books for all of it"
    return SUMMED.format(groups=split)
