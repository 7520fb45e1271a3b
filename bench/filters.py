"""What a filter costs and loses: engines beside the scan over the allowed documents, on your own vectors.

python bench/filters.py documents.npy queries.npy --books 64 --codewords 16

An attribute that has nothing to do with the vectors, one that goes with the query (documents nearest to it are allowed)
and one that goes against it (those furthest away are).
"""

import time
from pathlib import Path

import faiss
import numpy as np
import tyro
from tyro.conf import Positional

from bidr.codes.fit import fit
from bidr.index.engines.make import make_lists
from bidr.index.engines.scan import Scan

SHARES = (0.5, 0.1, 0.01, 0.001)


def main(
    vectors: Positional[Path],
    queries: Positional[Path],
    books: int = 64,
    codewords: int = 16,
    documents: int = 192_990,
    depth: int = 1_000,
    asked: int = 60,
) -> None:
    """Print a line for each kind of attribute and share of allowed documents."""
    faiss.omp_set_num_threads(1)
    corpus, questions = _unit(np.load(vectors)[:documents]), _unit(np.load(queries)[:asked])
    codebooks = fit(corpus, books, codewords)
    lists, order = make_lists(codebooks, codebooks.encode(corpus))
    corpus, scan = corpus[order], Scan(lists.store)
    lists.threads = scan.threads = 1
    random = np.random.default_rng(0)
    _report("everything", lists, scan, [(query, None) for query in questions], depth)
    for share in SHARES:
        kinds: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {"at random": [], "with": [], "against": []}
        for query in questions:
            near = corpus @ query
            kinds["at random"].append((query, random.random(len(corpus)) < share))
            kinds["with"].append((query, near >= np.quantile(near, 1 - share)))
            kinds["against"].append((query, near <= np.quantile(near, share)))
        for kind, cases in kinds.items():
            _report(f"{share:.1%} {kind}", lists, scan, cases, depth)


def _report(name: str, lists: object, scan: object, cases: list, depth: int) -> None:
    shares, times = [], []
    lists.search(cases[0][0][None], depth)
    packed = [(query, None if mask is None else np.packbits(mask, bitorder="little")) for query, mask in cases]
    for query, allowed in packed:
        started = time.process_time()
        found = lists.search(query[None], depth, allowed=allowed)[1][0]
        times.append(1000 * (time.process_time() - started))
        wanted = scan.search(query[None], depth, allowed=allowed)[1][0][:100]
        shares.append(np.isin(wanted[wanted >= 0], found).mean() if (wanted >= 0).any() else 1.0)
    middle, late = np.percentile(times, [50, 99])
    print(f"{name:<18} {np.mean(shares):.4f} of the scan's top 100, {middle:.2f} ms, p99 {late:.2f} ms", flush=True)


def _unit(rows: np.ndarray) -> np.ndarray:
    floats = rows.astype(np.float32)
    return floats / np.linalg.norm(floats, axis=1, keepdims=True)


if __name__ == "__main__":
    tyro.cli(main)
