"""A cross-encoder as third stage of a server: as in the local searcher, within limits and deadlines."""

import pytest
from sample_cross_encoder import write_cross_encoder
from sample_server import ask, opened, said_well, search
from sample_text_index import THINGS, words_index

import bidr
from bidr.errors import ConfigError
from bidr.search.cross_encoder import CrossEncoder
from bidr.server import search_handler
from bidr.server.limits import RequestLimits

ASKED = ["the clock sings below the river", "a candle beyond the door"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rerank")
    return words_index(folder / "words", 200), write_cross_encoder(folder / "cross", words=THINGS)


@pytest.fixture(scope="module")
def service(folders):
    return opened(folders[0], reranker=folders[1], limits=RequestLimits(k=60, answers=100, seconds=60))


def test_results_are_those_of_the_searcher(folders, service):
    found = search(service, texts=ASKED, k=5, rerank=30, offset=2).json()["results"]
    with bidr.open_index(folders[0], reranker=folders[1]) as searcher:
        for text, result in zip(ASKED, found, strict=True):
            expected = searcher.search_reranked(text, 5, rerank=30, offset=2)
            assert [hit["id"] for hit in result["answers"]] == [hit.id for hit in expected]
            assert [hit["rerank_score"] for hit in result["answers"]] == [hit.rerank_score for hit in expected]
            assert result["timings"]["rerank"] > 0
            plain = searcher.search(text, 5)
            assert [hit.rerank_score for hit in plain] == [None] * 5
            few = searcher.search_reranked(text, 10, rerank=3)
            assert [hit.rerank_score is None for hit in few] == [False] * 3 + [True] * 7
            assert searcher.search_reranked(text, 3, rerank=50, seconds=0)[0].id == plain[0].id
    with bidr.open_index(folders[0]) as searcher, pytest.raises(ConfigError, match="cross-encoder"):
        searcher.search_reranked(ASKED[0])


def test_a_short_deadline_keeps_the_order_of_the_vectors(service, monkeypatch):
    plain = search(service, texts=ASKED[:1], k=5).json()["results"][0]["answers"]
    monkeypatch.setattr(search_handler, "RERANK_SHARE", 0.0)
    cut = search(service, texts=ASKED[:1], k=5, rerank=20).json()["results"][0]["answers"]
    assert [hit["id"] for hit in cut] == [hit["id"] for hit in plain]
    assert {hit["rerank_score"] for hit in cut} == {None}


@pytest.mark.parametrize(
    "options",
    [{"rerank": -1}, {"rerank": 61}, {"rerank": "x"}, {"rerank": True}, {"rerank": 20, "codes_only": True},
     {"rerank": 20, "combine": "max"}, {"rerank": 60}],
)  # fmt: skip
def test_invalid_requests_are_errors_with_a_remedy(service, options):
    found = search(service, texts=ASKED, **options)
    assert found.status_code == 422, found.text
    said_well(found)


def test_a_server_without_cross_encoder_says_so(folders):
    plain = opened(folders[0])
    found = search(plain, texts=ASKED, rerank=5)
    assert found.status_code == 422
    said_well(found)
    schema = ask(plain, "GET", "/openapi.json").json()["paths"]["/v1/search"]["post"]
    by_text = schema["requestBody"]["content"]["application/json"]["schema"]["oneOf"][0]
    assert by_text["properties"]["rerank"]["maximum"] == 0
    assert CrossEncoder(folders[1]).score("clock", ["river"])[0] == 10
