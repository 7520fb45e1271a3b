"""Tokenize a corpus as an encoder reads it."""

from pathlib import Path

from bidr.data.dataset import Dataset, Titles
from bidr.models.encoder_interface import TextEncoder
from bidr.tokenization.token_store import TokenStore
from bidr.tokenization.tokenizer import tokenize


def tokenize_corpus(
    dataset: Dataset,
    encoder: TextEncoder,
    folder: Path,
    *,
    titles: Titles,
    max_length: int,
    prompt: str | None = None,
) -> TokenStore:
    """Tokenize a corpus for an encoder, or open the tokens of an earlier call with the same settings.

    Args:
        prompt: the prompt of documents; None: the encoder's own.
    """
    prompt, corpus = encoder.prompts.document if prompt is None else prompt, dataset.corpus
    return tokenize(
        (prompt + text for text in corpus.iter_texts(titles)),
        encoder.tokenizer,
        folder,
        max_length=min(max_length, encoder.max_length),
        source=f"{corpus.fingerprint()} titles={titles} prompt={prompt!r}",
        total=corpus.count(),
    )
