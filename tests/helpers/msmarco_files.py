"""Small data sets in the files of MS MARCO: passages and documents, with their own names."""

import random
from pathlib import Path

from sample_encoders import WORDS


def write_passages(folder: Path, count: int = 300) -> Path:
    """collection.tsv, queries of train and dev, qrels of train, dev and dev.small (a part of dev)."""
    folder.mkdir(parents=True)
    texts, queries, splits = make_texts(count)
    write_columns(folder / "collection.tsv", [(str(row), text) for row, text in enumerate(texts)])
    write_queries(folder, queries, splits, "queries.{}.tsv", "qrels.{}.tsv")
    small = [row for row in splits["dev"] if row % 3 == 0]
    write_columns(folder / "qrels.dev.small.tsv", [(f"{1_000 + row}", "0", str(row), "1") for row in small])
    return folder


def write_documents(folder: Path, count: int = 300) -> Path:
    """msmarco-docs.tsv, and queries and qrels of doctrain and docdev."""
    folder.mkdir(parents=True)
    texts, queries, splits = make_texts(count)
    rows = [(str(row), f"http://x/{row}", text.split()[0], text) for row, text in enumerate(texts)]
    write_columns(folder / "msmarco-docs.tsv", rows)
    named = {f"doc{name}": members for name, members in splits.items()}
    write_queries(folder, queries, named, "msmarco-{}-queries.tsv", "msmarco-{}-qrels.tsv")
    return folder


def make_texts(count: int) -> tuple[list[str], list[str], dict[str, list[int]]]:
    """Documents of a few known words; a query is some words of one of them."""
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=8)) for _ in range(count)]
    queries = [" ".join(text.split()[:4]) for text in texts]
    splits = {"dev": [row for row in range(count) if row % 4 == 0], "train": [row for row in range(count) if row % 4]}
    return texts, queries, splits


def write_queries(folder: Path, queries: list[str], splits: dict[str, list[int]], name: str, judged: str) -> None:
    for split, rows in splits.items():
        write_columns(folder / name.format(split), [(str(1_000 + row), queries[row]) for row in rows])
        write_columns(folder / judged.format(split), [(str(1_000 + row), "0", str(row), "1") for row in rows])


def write_columns(path: Path, lines: list[tuple[str, ...]]) -> None:
    path.write_text("".join("\t".join(line) + "\n" for line in lines))
