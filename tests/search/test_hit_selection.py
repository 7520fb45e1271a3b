"""Offset, minimum score, groups, diversity, fusion by rank, several vectors per query, more like a document."""

import numpy as np
import pytest
from sample_live_index import DIM, built, clustered, described, some, writer

from bidr.errors import ConfigError, DataError
from bidr.pipeline.open import open_index
from bidr.search.hit_selection import RRF_RANK
from bidr.search.types import QueryVectors

COUNT = 60


@pytest.fixture(scope="module")
def searcher(tmp_path_factory):
    """Lists, a segment of its own, deletions and a log."""
    documents = described(COUNT)
    index = built(tmp_path_factory.mktemp("shaping") / "i", 40, documents[:40], engine="lists", lexical="prepend")
    with writer(index) as live:
        live.add(documents[40:50], some(range(40, 50))[1])
        live.flush()
        live.add(documents[50:], some(range(50, COUNT))[1])
        live.delete(["doc-3", "doc-44", "doc-55"])
    with open_index(index) as opened:
        opened.reader.ef = 10**6
        yield opened


QUERIES = clustered(3, DIM, 321)


def search(searcher, k=10, queries=QUERIES, **options):
    batch = searcher.search_vectors(QueryVectors(queries, queries), k, COUNT, **options)
    return searcher.load_results(batch)


def test_pages_of_results_are_parts_of_all(searcher):
    full = search(searcher, 30)
    for offset in (0, 7, 25, 57, 100):
        for page, hits in zip(search(searcher, 10, offset=offset), search(searcher, COUNT), strict=True):
            assert [hit.id for hit in page] == [hit.id for hit in hits[offset : offset + 10]]
            assert [hit.rank for hit in page] == list(range(1, len(page) + 1))
    assert [len(hits) for hits in full] == [30] * 3


def test_a_minimum_score_leaves_out_what_is_below(searcher):
    full = search(searcher, COUNT)
    limit = full[0][4].score
    for hits, page in zip(full, search(searcher, COUNT, min_score=limit), strict=True):
        assert [hit.id for hit in page] == [hit.id for hit in hits if hit.score >= limit]
    assert search(searcher, 5, min_score=1e9) == [[], [], []]
    codes = search(searcher, COUNT, min_score=0, codes_only=True)
    assert all(hit.score >= 0 for hits in codes for hit in hits)


@pytest.mark.parametrize("size", [1, 2])
def test_a_group_has_its_best_documents_only(searcher, size):
    for hits, page in zip(search(searcher, COUNT), search(searcher, 8, group_by="name", group_size=size), strict=True):
        counts, expected = {}, []
        for hit in hits:
            name = (hit.document.attributes or {}).get("name")
            counts[name] = counts.get(name, 0) + 1
            if name is None or counts[name] <= size:
                expected.append(hit.id)
        assert [hit.id for hit in page] == expected[:8]


def select_by_relevance_and_cosines(hits, weight: float, k: int) -> list[str]:
    """Maximal marginal relevance, as the definition says."""
    vectors = some([int(hit.id.removeprefix("doc-")) for hit in hits])[1].astype(np.float16).astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    scores = np.array([hit.score for hit in hits]) / max(abs(hit.score) for hit in hits)
    chosen: list[int] = []
    while len(chosen) < min(k, len(hits)):
        rest = [number for number in range(len(hits)) if number not in chosen]
        values = [
            weight * scores[number]
            - (1 - weight) * max((vectors[number] @ vectors[other] for other in chosen), default=0)
            for number in rest
        ]
        chosen.append(rest[int(np.argmax(values))])
    return [hits[number].id for number in chosen]


@pytest.mark.parametrize("weight", [0, 0.3, 0.7, 1.0])
def test_diversity_is_maximal_marginal_relevance(searcher, weight):
    for hits, page in zip(search(searcher, COUNT), search(searcher, 8, mmr=weight), strict=True):
        assert [hit.id for hit in page] == select_by_relevance_and_cosines(hits, weight, 8)
    assert [hit.id for hit in search(searcher, 5, mmr=1.0)[0]] == [hit.id for hit in search(searcher, 5)[0]]


def test_fusion_by_rank_adds_reciprocal_ranks(searcher):
    words = ["word3 word7", "version title", "word58"]
    options = {"words": words, "lexical": 20}
    full = search(searcher, COUNT, lexical_weight=0.0, **options)
    for hits, page in zip(full, search(searcher, COUNT, fusion="rrf", lexical_weight=3.0, **options), strict=True):
        expected = {
            hit.id: 1 / (RRF_RANK + hit.rank) + (1 / (RRF_RANK + hit.word_rank) if hit.word_rank else 0) for hit in hits
        }
        assert {hit.id: hit.score for hit in page} == pytest.approx(expected)
        assert [hit.score for hit in page] == sorted((hit.score for hit in page), reverse=True)


@pytest.mark.parametrize("combine", ["max", "mean"])
def test_several_vectors_are_one_query(searcher, combine):
    full = search(searcher, COUNT)
    by_id = {hit.id: [] for hit in full[0]}
    for hits in full:
        for hit in hits:
            by_id[hit.id].append(hit.score)
    expected = {name: float(np.max(scores) if combine == "max" else np.mean(scores)) for name, scores in by_id.items()}
    (result,) = search(searcher, COUNT, combine=combine)
    assert {hit.id: hit.score for hit in result} == pytest.approx(expected, abs=1e-5)
    assert [hit.score for hit in result] == sorted((hit.score for hit in result), reverse=True)
    assert [hit.id for hit in search(searcher, 3, combine=combine, offset=2)[0]] == [hit.id for hit in result[2:5]]


def test_more_like_a_document(searcher):
    result = searcher.more_like("doc-7", 5, COUNT)
    expected = search(searcher, 6, some([7])[1].astype(np.float16).astype(np.float32))[0]
    assert expected[0].id == "doc-7"
    assert [hit.id for hit in result] == [hit.id for hit in expected[1:]]
    assert [hit.rank for hit in result] == [1, 2, 3, 4, 5]
    both = searcher.more_like(["doc-7", "doc-48", "doc-52"], 60, COUNT, filter={"whole": {"gte": 0}})
    assert not {"doc-7", "doc-48", "doc-52"} & {hit.id for hit in both}
    with pytest.raises(DataError, match="nobody"):
        searcher.more_like(["doc-7", "nobody"])


@pytest.mark.parametrize(
    "options",
    [{"offset": -1}, {"offset": 1.5}, {"offset": True}, {"min_score": "x"}, {"min_score": float("nan")}, {"mmr": 2},
     {"mmr": -0.1}, {"mmr": "x"}, {"group_by": ""}, {"group_by": 3}, {"group_size": 0}, {"fusion": "best"},
     {"combine": "min"}, {"combine": "max", "lexical": 5, "words": ["a", "b", "c"]}],
)  # fmt: skip
def test_invalid_options_are_refused(searcher, options):
    with pytest.raises(ConfigError, match=r"given .*expected "):
        search(searcher, 5, **options)
