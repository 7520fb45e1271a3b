"""Opens and searches an index in a process of its own and prints what memory that took; run by test_ram.py.

python ram_probe.py SMALL INDEX [filters]

SMALL is a small index of the same kind: it is searched first, so that everything is imported and compiled. Printed as
JSON: anonymous bytes that INDEX added once it was searched, those that asking so many different filters added, and what
`bidr inspect` says of it.
"""

import json
import sys
from pathlib import Path

import numpy as np
from memory_probe import settled

from bidr.index.live.live_reader import LiveIndex
from bidr.search.searcher import Searcher
from bidr.search.types import QueryVectors


def search(index: LiveIndex, filters: int = 0) -> None:
    dim, searcher = index.manifest.dim, Searcher(index, candidates=200)
    for seed in range(5):
        query = np.random.default_rng(seed).standard_normal((1, dim)).astype(np.float32)
        searcher.search_vectors(QueryVectors(query, query), 10)
    for year in range(filters):
        searcher.search_vectors(QueryVectors(query, query), 10, filter={"year": {"gte": year}})


def main(small: Path, folder: Path, filters: int = 0) -> None:
    with LiveIndex.open(small) as index:
        search(index, filters)
    del index
    before = settled()
    with LiveIndex.open(folder) as index:
        search(index)
        searched, said = settled(), index.describe()["ram_bytes"]
        search(index, filters)
        filtered = settled()
    print(json.dumps({"searched": searched - before, "filtered": filtered - searched, "inspect": said}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
