"""Makes the golden indexes: folders of today's format that every later version must open, or refuse with a word.

    python tests/laws/make_golden.py tests/laws/golden/NAME

writes four small indexes of made-up words, and `answers.json` with what searches of them found. Run it once for a
format, commit what it wrote, and never again over the same name: `test_golden.py` looks at every folder here.

scan    4-bit codes, texts, attributes, words; added to, replaced and deleted from: two segments and a log
lists   4-bit codes, int8 vectors of length 1, ids
hnsw    8-bit codes, the first 8 of 16 dimensions stored, rows without ids
plain   8-bit codes, nothing else, as it was built
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import bidr
from bidr.index.builder.build import build_index
from bidr.quantization.codebooks import Codebooks

COUNT, DIM, QUESTIONS, K = 96, 16, 4, 5
SYLLABLES = ("ba", "do", "fi", "ku", "le", "mo", "ni", "pa", "ru", "sa", "te", "vo")


def made_vectors(count: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, DIM)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def made_codebooks(words: int) -> Codebooks:
    random = np.random.default_rng(words)
    rotation = np.linalg.qr(random.standard_normal((DIM, DIM)))[0].astype(np.float32)
    return Codebooks(rotation, (0.3 * random.standard_normal((4, words, DIM // 4))).astype(np.float32))


def made_document(row: int, version: int = 0) -> bidr.Document:
    random = np.random.default_rng([row, version])
    words = ["".join(random.choice(SYLLABLES, 2)) for _ in range(12)]
    attributes = {"year": 2000 + row % 20, "kind": words[0][:2], "tags": [words[1], words[2]], "new": version > 0}
    return bidr.Document(f"doc-{row}", f"{words[0]} {words[1]}", " ".join(words), attributes)


def write(folder: Path, words: int, **how: Any) -> None:
    codebooks, vectors = made_codebooks(words), made_vectors(COUNT, 0)
    build_index(folder, codebooks=codebooks, codes=codebooks.encode(vectors), vectors=vectors, **how)


def write_all(out: Path) -> None:
    write(out / "plain", 256, engine="scan")
    write(out / "hnsw", 256, engine="hnsw", dims=8)
    write(out / "lists", 16, engine="lists", stored="int8", unit=True, ids=[f"doc-{row}" for row in range(COUNT)])
    documents = [made_document(row) for row in range(COUNT)]
    write(out / "scan", 16, engine="scan", documents=documents, lexical="prepend")
    with bidr.open_writer(out / "scan") as writer:
        writer.add([made_document(row, 1) for row in range(90, 104)], made_vectors(14, 1))
        writer.delete(["doc-3", "doc-95"])
        writer.flush()
        writer.add([made_document(row, 2) for row in (0, 100, 110)], made_vectors(3, 2))
        writer.delete(["doc-5"])
    for lock in out.rglob(".*"):
        lock.unlink()


def asked_of(folder: Path) -> dict[str, Any]:
    """What some searches of an index find, as JSON has it."""
    questions = made_vectors(QUESTIONS, 7)
    how: dict[str, dict[str, Any]] = {"": {}}
    if folder.name == "scan":
        how["filtered"] = {"filter": {"year": {"gte": 2010}, "new": True}}
        how["by words"] = {"words": [made_document(row).title for row in range(QUESTIONS)], "lexical": 5}
    with bidr.open_index(folder) as index:
        found = {
            name: index.load_results(index.search_vectors(questions, K, 30, **given)) for name, given in how.items()
        }
        return {
            "documents": index.reader.count,
            "found": {
                name: [[[answer.id, round(float(answer.score), 3)] for answer in one] for one in answers]
                for name, answers in found.items()
            },
            "texts": [answer.document.text for answer in found[""][0] if answer.document],
        }


if __name__ == "__main__":
    target = Path(sys.argv[1])
    write_all(target)
    answers = {folder.name: asked_of(folder) for folder in sorted(target.iterdir()) if folder.is_dir()}
    (target / "answers.json").write_text(json.dumps(answers, indent=1) + "\n")
