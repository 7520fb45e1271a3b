"""A small index that is asked in words: random bags of word pieces, and codes so coarse that the vectors reorder."""

from pathlib import Path

import numpy as np

from bidr.data.types import Document
from bidr.index.builder.build import build_index
from bidr.index.storage.manifest import ModelReference
from bidr.models.bag_of_tokens import BagOfTokensEncoder
from bidr.models.corpus_encoding import encode_texts
from bidr.models.saved_model import ModelParts, SearchSettings, TextSettings, save_model
from bidr.quantization.pq_training import fit_pq
from bidr.tokenization.tokenizer import tokenize
from bidr.tokenization.wordpieces import train_wordpieces

THINGS = ("boat", "bridge", "candle", "clock", "door", "feather", "garden", "kettle", "mirror", "piano", "river")
DOINGS = ("breaks", "burns", "drifts", "falls", "floats", "grows", "leans", "opens", "rests", "shines", "sings")
WHERE = ("above", "below", "beside", "behind", "beyond", "inside", "near", "outside", "over", "under")


def words_index(
    folder: Path,
    count: int = 400,
    search: SearchSettings | None = None,
    *,
    attributes: bool = False,
    **options: object,
) -> Path:
    """An index of sentences such as 'the clock sings below the river'; `search`: what its model recommends.

    attributes: documents have a thing (string), a row (number) and whether it is even.
    """
    random = np.random.default_rng(0)
    documents = []
    for row in range(count):
        first, second, third = (str(random.choice(words)) for words in (THINGS, DOINGS, WHERE))
        last = str(random.choice(THINGS))
        text = f"The {first} {second} {third} the {last}. " + f"Nobody has seen the {last} since, or so they say. " * 3
        values = {"thing": first, "row": row, "even": row % 2 == 0} if attributes else None
        documents.append(Document(f"d{row}", f"{first} and {last} {row}", text, values))
    texts = [f"{document.title} {document.text}" for document in documents]
    tokenizer = train_wordpieces(texts, 300)
    store = tokenize(texts, tokenizer, folder / "tokens", max_length=64, source="made")
    encoder = BagOfTokensEncoder.create(tokenizer, store, 32, 0)
    encoder.save(folder / "encoder")
    vectors = encode_texts(encoder, texts, prompt="", max_length=64)
    books = fit_pq(vectors, 4, 16, rotate=False, iterations=5)
    parts = ModelParts(sparse=folder / "encoder", dense=folder / "encoder", query=None, codebooks=books)
    (folder / "model").mkdir()
    text = TextSettings(titles="prepend", query_length=64, document_length=64)
    model = save_model(folder / "model", parts, text, candidates=100, training={}, search=search)
    stamp = ModelReference(model.fingerprint, str(model.folder.resolve()))
    codes = books.encode(vectors)
    options = {"documents": documents, "model": stamp, **options}
    build_index(folder / "index", codebooks=books, codes=codes, vectors=vectors, **options)
    return folder / "index"
