"""Measure tokenization with and without the word cache, in texts per second.

python bench/tokenizing.py --data FOLDER --tokenizer tokenizer.json [--texts 60000] [--whole 4000]

Reports CPU time, which excludes other processes, and wall time; the cache runs on one thread, then on one per core
(four at most). Checks that both give the same tokens.
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
    """texts: maximum number; whole: number that the tokenizer without cache is timed with; length: tokens per text."""
    documents = islice(bidr.load(data).corpus, texts)
    corpus_texts = [f"{document.title} {document.text}" for document in documents]
    loaded = Tokenizer.from_file(str(tokenizer))
    TextTokenizer(loaded, length, use_cache=True)(corpus_texts[:8])  # compiles
    cached = TextTokenizer(loaded, length, use_cache=True)
    threads, cached.threads = cached.threads, 1
    tokens = time_tokenizer("word cache, one thread", cached, corpus_texts)
    cached.threads = threads
    time_tokenizer(f"word cache, {threads} threads", cached, corpus_texts)
    expected = time_tokenizer("tokenizer only", TextTokenizer(loaded, length), corpus_texts[:whole])
    same = np.array_equal(tokens.offsets[: len(expected.offsets)], expected.offsets)
    same &= np.array_equal(tokens.ids[: len(expected.ids)], expected.ids)
    print("the same tokens" if same else "OTHER TOKENS")


def time_tokenizer(name: str, tokenizer: TextTokenizer, texts: list[str]) -> Tokens:
    start, cpu = time.perf_counter(), time.process_time()
    tokens = tokenizer(texts)
    cpu, seconds = time.process_time() - cpu, time.perf_counter() - start
    print(f"{name}: {len(texts) / cpu:,.0f} texts per CPU second, {len(texts) / seconds:,.0f} per second of wall time")
    return tokens


if __name__ == "__main__":
    tyro.cli(main)
