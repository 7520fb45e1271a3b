"""Write golden indexes: small indexes of the current format that every later version must open, or refuse.

    python tests/laws/make_golden.py tests/laws/golden/NAME

writes four indexes of random words, and `answers.json` with the results of searches. Run it once for each format,
commit the folder, and do not overwrite it: `test_golden.py` opens every folder.

scan    4-bit codes, texts, attributes, lexical index; updated: two segments and a log
lists   4-bit codes, int8 vectors of length 1, ids
hnsw    8-bit codes, the first 8 of 16 dimensions stored, rows without ids
plain   8-bit codes, nothing else, not updated
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import bidr
from bidr.index.builder.build import build_index
from bidr.quantization.codebooks import Codebooks

COUNT, DIM, QUERIES, K = 96, 16, 4, 5
SYLLABLES = ("ba", "do", "fi", "ku", "le", "mo", "ni", "pa", "ru", "sa", "te", "vo")


def make_vectors(count: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, DIM)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def make_codebooks(words: int) -> Codebooks:
    random = np.random.default_rng(words)
    rotation = np.linalg.qr(random.standard_normal((DIM, DIM)))[0].astype(np.float32)
    return Codebooks(rotation, (0.3 * random.standard_normal((4, words, DIM // 4))).astype(np.float32))


def make_document(row: int, version: int = 0) -> bidr.Document:
    random = np.random.default_rng([row, version])
    words = ["".join(random.choice(SYLLABLES, 2)) for _ in range(12)]
    attributes = {"year": 2000 + row % 20, "kind": words[0][:2], "tags": [words[1], words[2]], "new": version > 0}
    return bidr.Document(f"doc-{row}", f"{words[0]} {words[1]}", " ".join(words), attributes)


def write_index(folder: Path, words: int, **options: Any) -> None:
    codebooks, vectors = make_codebooks(words), make_vectors(COUNT, 0)
    build_index(folder, codebooks=codebooks, codes=codebooks.encode(vectors), vectors=vectors, **options)


def write_all(out: Path) -> None:
    write_index(out / "plain", 256, engine="scan")
    write_index(out / "hnsw", 256, engine="hnsw", dims=8)
    write_index(out / "lists", 16, engine="lists", stored="int8", unit=True, ids=[f"doc-{row}" for row in range(COUNT)])
    documents = [make_document(row) for row in range(COUNT)]
    write_index(out / "scan", 16, engine="scan", documents=documents, lexical="prepend")
    with bidr.open_writer(out / "scan") as writer:
        writer.add([make_document(row, 1) for row in range(90, 104)], make_vectors(14, 1))
        writer.delete(["doc-3", "doc-95"])
        writer.flush()
        writer.add([make_document(row, 2) for row in (0, 100, 110)], make_vectors(3, 2))
        writer.delete(["doc-5"])
    for lock in out.rglob(".*"):
        lock.unlink()


def search_index(folder: Path) -> dict[str, Any]:
    """Return document count, results of several searches, and texts of an index, as JSON values."""
    queries = make_vectors(QUERIES, 7)
    searches: dict[str, dict[str, Any]] = {"": {}}
    if folder.name == "scan":
        searches["filtered"] = {"filter": {"year": {"gte": 2010}, "new": True}}
        searches["by words"] = {"words": [make_document(row).title for row in range(QUERIES)], "lexical": 5}
    with bidr.open_index(folder) as index:
        results = {
            name: index.load_results(index.search_vectors(queries, K, 30, **options))
            for name, options in searches.items()
        }
        return {
            "documents": index.reader.count,
            "found": {
                name: [[[hit.id, round(float(hit.score), 3)] for hit in hits] for hits in batches]
                for name, batches in results.items()
            },
            "texts": [hit.document.text for hit in results[""][0] if hit.document],
        }


if __name__ == "__main__":
    target = Path(sys.argv[1])
    write_all(target)
    answers = {folder.name: search_index(folder) for folder in sorted(target.iterdir()) if folder.is_dir()}
    (target / "answers.json").write_text(json.dumps(answers, indent=1) + "\n")
