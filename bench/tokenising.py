"""Texts tokenised a second: by the words seen before, beside the tokenizer itself.

python bench/tokenising.py --data FOLDER --tokenizer tokenizer.json [--texts 60000] [--whole 4000]

Seconds of CPU, so that neither other work nor the tokenizer's threads count, and of time passed; words are looked up by
one thread, then by as many as there are cores, four at most. That the tokens are the same is checked for the texts that
both were given.
"""

import time
from itertools import islice
from pathlib import Path

import numpy as np
import tyro
from tokenizers import Tokenizer

import bidr
from bidr.tokenization.token_store import Tokens
from bidr.tokenization.tokenizer import TextTokenizer


def main(data: str, tokenizer: Path, texts: int = 60_000, whole: int = 4_000, length: int = 128) -> None:
    """texts: of the corpus, at most; whole: how many of them the tokenizer is timed with; length: tokens a text."""
    documents = islice(bidr.load(data).corpus, texts)
    given = [f"{document.title} {document.text}" for document in documents]
    own = Tokenizer.from_file(str(tokenizer))
    TextTokenizer(own, length, by_words=True)(given[:8])  # compiles
    by_words = TextTokenizer(own, length, by_words=True)
    several, by_words.threads = by_words.threads, 1
    found = timed("by words, one thread", by_words, given)
    by_words.threads = several
    timed(f"by words, {several} threads", by_words, given)
    expected = timed("the tokenizer", TextTokenizer(own, length), given[:whole])
    same = np.array_equal(found.offsets[: len(expected.offsets)], expected.offsets)
    same &= np.array_equal(found.ids[: len(expected.ids)], expected.ids)
    print("the same tokens" if same else "OTHER TOKENS")


def timed(name: str, tokeniser: TextTokenizer, texts: list[str]) -> Tokens:
    started, cpu = time.perf_counter(), time.process_time()
    tokens = tokeniser(texts)
    cpu, seconds = time.process_time() - cpu, time.perf_counter() - started
    print(f"{name}: {len(texts) / cpu:,.0f} texts a second of CPU, {len(texts) / seconds:,.0f} of time passed")
    return tokens


if __name__ == "__main__":
    tyro.cli(main)
