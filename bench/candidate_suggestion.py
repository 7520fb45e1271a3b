"""Whether the candidates that `suggest_candidates` gives keep their recall on queries that it has not seen.

python bench/candidate_suggestion.py FOLDER... [--recall .95] [--k 10]

Each FOLDER is a dataset (corpus and queries). Texts are the means of wordllama's token vectors (extra `static`); they
are indexed with the default codes of `bidr build --vectors`. One line for each: suggested from 500 queries, and recall
with so many candidates on 500 others; and the same suggested from documents in place of queries.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from unit import unit

import bidr
from bidr.data.dataset import compose_text, load
from bidr.index.live.live_reader import LiveIndex
from bidr.models.static_embeddings import load_static_embeddings
from bidr.search.candidate_suggestion import QuerySample, find_exact_top
from bidr.search.types import QueryVectors

QUERIES, TOKENS = 500, 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--recall", type=float, default=0.95)
    parser.add_argument("--k", type=int, default=10)
    arguments = parser.parse_args()
    for folder in arguments.folders:
        print(measure(folder, arguments.recall, arguments.k), flush=True)


def measure(folder: str, recall: float, k: int) -> str:
    documents, queries = encode(folder)
    order = np.random.default_rng(0).permutation(len(queries))
    seen, unseen = queries[order[:QUERIES]], queries[order[QUERIES : 2 * QUERIES]]
    with tempfile.TemporaryDirectory() as work:
        bidr.build_vectors(documents, None, Path(work) / "index")
        with bidr.open_index(Path(work) / "index") as searcher:
            parts = [f"{Path(folder).name}, {len(documents):,} documents"]
            for name, sample in (("queries", seen), ("documents", None)):
                suggestion = searcher.suggest_candidates(recall, k, sample)
                held = measure_recall(searcher, unseen, suggestion.candidates, k)
                parts.append(
                    f"from {suggestion.queries} {name}: {suggestion.candidates} candidates, recall "
                    f"{suggestion.recall:.4f}, on {len(unseen)} unseen queries {held:.4f}"
                )
    return "; ".join(parts)


def measure_recall(searcher: bidr.OpenIndex, queries: np.ndarray, candidates: int, k: int) -> float:
    view = LiveIndex.open(searcher.reader.folder).latest()
    encoded = searcher.query_vectors(queries)
    exact = find_exact_top(view, QuerySample(QueryVectors(*encoded)), k)
    hits = searcher.search_vectors(encoded, k, candidates).positions
    return float(np.mean([np.isin(top, row).mean() for top, row in zip(exact, hits, strict=True)]))


def encode(folder: str) -> tuple[np.ndarray, np.ndarray]:
    """Return vectors of documents and of queries: means of token vectors."""
    data, (tokenizer, table) = load(folder), load_static_embeddings("wordllama")

    def embed(texts: list[str]) -> np.ndarray:
        encoded = tokenizer.encode_batch(texts)
        rows = [table[text.ids[:TOKENS] or [0]].mean(axis=0) for text in encoded]
        return unit(np.array(rows, dtype=np.float32))

    queries = [query.text for name in ("train", "test") for query in data.split(name).queries]
    return embed([compose_text(document, "prepend") for document in data.corpus]), embed(queries)


if __name__ == "__main__":
    main()
