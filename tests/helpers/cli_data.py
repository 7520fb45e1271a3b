"""A small world that can be learned: documents of a few topics, questions that share words with one document."""

import random
from pathlib import Path
from typing import NamedTuple

import pytest

from bidr.cli import main
from bidr.data.readers.beir import write_beir
from bidr.data.types import Document, Query

COUNT = 320
TINY = [
    "--method", "bidr",
    "--encoder.dim", "32", "--encoder.vocabulary", "500", "--bytes-per-doc", "8", "--codewords", "16",
    "--batch-size", "64", "--candidates", "20", "--dense.depth", "20", "--device", "cpu",
]  # fmt: skip


def beir_folder(folder: Path, count: int = COUNT, seed: int = 0) -> Path:
    """A document has two own words among those of its topic; its question has one of them and one of the topic."""
    draw = random.Random(seed)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    words = ["".join(draw.choices(syllables, k=3)) for _ in range(3 * count)]
    topics = [draw.sample(words, 12) for _ in range(16)]
    documents, queries, qrels = [], [], {"train": {}, "dev": {}, "test": {}}
    for row in range(count):
        topic = topics[row % len(topics)]
        own = [words[row], words[count + row]]
        documents.append(Document(f"d{row}", f"About {own[0]}", " ".join([*own, *draw.choices(topic, k=10), own[1]])))
        queries.append(Query(f"q{row}", f"{own[1]} {draw.choice(topic)}"))
        split = "test" if row % 8 == 0 else "dev" if row % 8 == 1 else "train"
        qrels[split][f"q{row}"] = {f"d{row}": 1}
    write_beir(folder, documents, queries, qrels)
    return folder


class Made(NamedTuple):
    """Where things are; nobody may change them."""

    data: Path
    model: Path
    index: Path


class Ran(NamedTuple):
    code: int
    out: str
    err: str


class Run:
    """Runs `bidr` in this process."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self.capfd = capfd

    def __call__(self, *args: object) -> Ran:
        self.capfd.readouterr()
        code = main([str(arg) for arg in args])
        return Ran(code, *self.capfd.readouterr())

    def refused(self, *args: object) -> str:
        """The one line that bad input gives; what went before it was progress of work that had to be done first."""
        code, out, err = self(*args)
        lines = err.splitlines()
        assert (code, out, len(lines)) == (2, "", 1), err
        assert lines[0].startswith("bidr: ")
        return lines[0]
