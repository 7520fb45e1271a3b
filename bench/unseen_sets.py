"""Datasets that no setting was chosen on, made from others, on which a choice on dev can go wrong.

python bench/unseen_sets.py --data SHARED --out DIR

SHARED holds the folders trivia, debian, scifact and medquad. Then `bidr compare --data DIR/NAME` for each of:

    sentences    10,000 articles without title and first sentence, which is the query: BM25 has little to match
    cipher       10,000 package descriptions; each word of a query is another string, a twentieth has no word: no BM25
    debian2k     2,000 package descriptions, 20 dev queries
    scifact500   500 abstracts, 289 train queries, no dev split
    medtypes     15,767 answers; a query is two words of a question and has 3 to 100 of them
"""

import hashlib
import random
import re
from collections.abc import Iterable
from pathlib import Path

import tyro

import bidr
from bidr.data.readers.beir import write_beir
from bidr.data.types import Document, Query

Judged = dict[str, list[str]]
SPLITS = ("train", "dev", "test")
DIGITS = str.maketrans("0123456789", "ghijklmnop")


def main(data: Path, out: Path) -> None:
    drawn = random.Random(0)
    make_sentences(data / "trivia", out / "sentences", drawn)
    documents = make_cipher(data / "debian", out / "cipher", drawn)
    make_few_dev_queries(data / "debian", out / "debian2k", documents[:2_000])
    make_few_documents(data / "scifact", out / "scifact500", drawn)
    make_many_positives(data / "medquad", out / "medtypes", drawn)


def make_sentences(data: Path, out: Path, drawn: random.Random) -> None:
    documents, queries = [], {}
    for document in shuffle(list(bidr.load(str(data)).corpus), drawn):
        first, _, rest = split_sentence(document.text)
        if len(first.split()) < 6 or len(rest.split()) < 20:
            continue
        for word in document.title.split():
            first = re.sub(re.escape(word), "", first, flags=re.IGNORECASE)
        documents.append(Document(document.id, "", rest))
        queries[f"q{document.id}"] = first.strip()
        if len(documents) == 10_000:
            break
    parts = draw_splits([document.id for document in documents], drawn, test=1_500, dev=1_000)
    judged = {name: {f"q{row}": [row] for row in rows[:5_000]} for name, rows in parts.items()}
    write(out, documents, queries, judged)


def make_cipher(data: Path, out: Path, drawn: random.Random) -> list[Document]:
    documents = shuffle(list(bidr.load(str(data)).corpus), drawn)
    texts, judged = read_queries(data, documents[:10_000])
    ciphered = {query: encipher(text) if row % 20 else "?!" for row, (query, text) in enumerate(texts.items())}
    write(out, documents[:10_000], ciphered, judged)
    return documents


def make_few_dev_queries(data: Path, out: Path, documents: list[Document]) -> None:
    texts, judged = read_queries(data, documents)
    spared = dict(list(judged["train"].items())[:800])
    judged["train"] = {query: rows for query, rows in judged["train"].items() if query not in spared}
    judged |= {"dev": dict(list(judged["dev"].items())[:20]), "test": judged["test"] | spared}
    write(out, documents, texts, judged)


def make_few_documents(data: Path, out: Path, drawn: random.Random) -> None:
    documents = list(bidr.load(str(data)).corpus)
    _, judged = read_queries(data, documents)
    needed = {row for rows in judged["test"].values() for row in rows}
    others = shuffle([document.id for document in documents if document.id not in needed], drawn)
    kept = needed | set(others[: max(0, 500 - len(needed))])
    documents = [document for document in documents if document.id in kept]
    write(out, documents, *read_queries(data, documents))


def make_many_positives(data: Path, out: Path, drawn: random.Random) -> None:
    documents = list(bidr.load(str(data)).corpus)
    texts, judged = read_queries(data, documents)
    answers: dict[str, set[str]] = {}
    for rows in judged.values():
        for query, positives in rows.items():
            words = [word for word in re.findall(r"[\w-]+", texts[query].lower()) if len(word) > 3]
            if len(words) > 1:
                answers.setdefault(f"{words[0]} {words[-1]}", set()).update(positives)
    numbered = {f"g{row}": (text, sorted(rows)) for row, (text, rows) in enumerate(sorted(answers.items()))}
    groups = {name: group for name, group in numbered.items() if 3 <= len(group[1]) <= 100}
    parts = draw_splits(list(groups), drawn, test=int(len(groups) * 0.4), dev=int(len(groups) * 0.1))
    judged = {split: {name: groups[name][1] for name in names} for split, names in parts.items()}
    write(out, documents, {name: text for name, (text, _) in groups.items()}, judged)


def split_sentence(text: str) -> tuple[str, str, str]:
    parts = re.split(r"(?<=[.!?])\s+", text, maxsplit=1)
    return (parts[0], " ", parts[1]) if len(parts) > 1 else ("", "", "")


def encipher(text: str) -> str:
    digests = (hashlib.md5(word.encode()).hexdigest()[:7] for word in re.findall(r"\w+", text.lower()))
    return " ".join(f"x{digest.translate(DIGITS)}" for digest in digests)


def read_queries(data: Path, documents: list[Document]) -> tuple[dict[str, str], dict[str, Judged]]:
    """Read texts, and by split the queries that documents of these answer."""
    dataset, kept = bidr.load(str(data)), {document.id for document in documents}
    splits = {name: dataset.split(name) for name in SPLITS if name in dataset.splits()}
    texts = {query.id: query.text for split in splits.values() for query in split.queries}
    judged = {
        name: {query: rows for query, found in split.qrels.items() if (rows := [row for row in found if row in kept])}
        for name, split in splits.items()
    }
    return texts, judged


def shuffle(values: list, drawn: random.Random) -> list:
    drawn.shuffle(values)
    return values


def draw_splits(names: list[str], drawn: random.Random, *, test: int, dev: int) -> dict[str, list[str]]:
    names = shuffle(names, drawn)
    return {"train": names[test + dev :], "dev": names[test : test + dev], "test": names[:test]}


def write(out: Path, documents: Iterable[Document], texts: dict[str, str], judged: dict[str, Judged]) -> None:
    used = dict.fromkeys(query for rows in judged.values() for query in rows)
    qrels = {name: {query: dict.fromkeys(rows, 1) for query, rows in part.items()} for name, part in judged.items()}
    out.mkdir(parents=True, exist_ok=True)
    write_beir(out, list(documents), [Query(query, texts[query]) for query in texts if query in used], qrels)
    print(f"{out.name}: " + ", ".join(f"{len(rows):,} {name}" for name, rows in judged.items()))


if __name__ == "__main__":
    tyro.cli(main)
