"""What words find of a served index: as the local searcher finds it, and refused where it cannot be."""

import asyncio

import httpx
import numpy as np
import pytest
from sample_server import asking, opened
from sample_text_index import words_index

import bidr
from bidr.errors import ConfigError
from bidr.models.saved_model import SearchSettings
from bidr.server.app import make_app
from bidr.server.limits import RequestLimits

ASKED = ["the clock sings below the river", "d17 piano", "a candle beyond the door 233"]
LIMITS = RequestLimits(candidates=150, reads=400, queries=8)


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return words_index(tmp_path_factory.mktemp("words"), lexical="prepend")


@pytest.fixture(scope="module")
def service(index):
    return opened(index, limits=LIMITS)


def ask(service, method="POST", path="/v1/search", **body):
    async def go():
        async with asking(service) as client:
            return await client.request(method, path, json=body or None)

    return asyncio.run(go())


def test_answers_are_those_of_the_searcher(index, service):
    found = ask(service, texts=ASKED, k=8, candidates=20, lexical=15, lexical_weight=0.6).json()["results"]
    with bidr.open_index(index, candidates=20, lexical=15, lexical_weight=0.6) as searcher:
        wanted = searcher.search(ASKED, k=8)
    for result, answers in zip(found, wanted, strict=True):
        names = ("rank", "id", "candidate_rank", "word_rank")
        assert [[row[name] for name in names] for row in result["answers"]] == [
            [getattr(answer, name) for name in names] for answer in answers
        ]
        np.testing.assert_allclose([row["score"] for row in result["answers"]], [one.score for one in answers], 1e-4)
    assert any(row["word_rank"] for result in found for row in result["answers"])
    assert any(row["candidate_rank"] == 0 for result in found for row in result["answers"])


@pytest.mark.parametrize(
    "options",
    [
        {"lexical": 15, "lexical_weight": 0.6},
        {"lexical": np.int64(15), "lexical_weight": np.float32(0.6)},
        {"lexical": 15, "lexical_weight": None},
        {"codes_only": True},
        {"codes_only": True, "lexical": 15},
    ],
)
def test_local_and_remote_searches_give_the_same_results(index, service, options):
    """Local, and by a client: with the same names, and numbers of numpy."""
    k, candidates = np.int64(8), np.int32(20)

    async def remote():
        transport = httpx.ASGITransport(make_app(service), client=("127.0.0.1", 1))
        async with bidr.AsyncClient("http://127.0.0.1", transport=transport) as client:
            return await client.search(ASKED, k, candidates, **options)

    with bidr.open_index(index) as searcher:
        local = searcher.search(ASKED, k, candidates, **options)
    for mine, theirs in zip(asyncio.run(remote()), local, strict=True):
        assert len(mine) == 8
        assert [one._replace(score=0, candidate_score=0) for one in mine] == [
            one._replace(score=0, candidate_score=0) for one in theirs
        ]
        for name in ("score", "candidate_score"):
            assert [getattr(one, name) for one in mine] == pytest.approx(
                [getattr(one, name) for one in theirs], rel=1e-4, abs=1e-4
            )


def test_without_asking_for_them_there_are_no_words(service):
    for more in ({}, {"lexical": 0, "lexical_weight": 1}, {"codes_only": True, "lexical": 20}):
        (result,) = ask(service, texts=ASKED[:1], k=5, candidates=20, **more).json()["results"]
        assert [row["word_rank"] for row in result["answers"]] == [0] * 5
    assert ask(service, "GET", "/v1/index").json()["words"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"lexical": -1}, "from 0 to 150"),
        ({"lexical": 151}, "from 0 to 150"),
        ({"lexical": True}, "from 0 to 150"),
        ({"lexical": 100, "candidates": 51}, "candidates and lexical together"),
        ({"lexical": 70, "candidates": 70, "texts": ASKED}, "up to 400"),
        ({"lexical": 5, "lexical_weight": 1e30}, "from -1000 to 1000"),
        ({"lexical": 5, "lexical_weight": "1"}, "from -1000 to 1000"),
        ({"lexical": 5, "texts": None, "vectors": [[0.1] * 32]}, "needs texts, not vectors"),
    ],
)
def test_invalid_requests_are_errors_with_a_remedy(service, body, said):
    found = ask(service, **({"texts": ASKED[:1], "k": 5} | body))
    assert found.status_code == 422, found.text
    assert said in found.text


@pytest.fixture(scope="module")
def recommending(tmp_path_factory):
    """An index whose model recommends fusion."""
    return words_index(tmp_path_factory.mktemp("recommending"), lexical="prepend", search=SearchSettings(15, 0.6))


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({}, {"lexical": 15, "lexical_weight": 0.6}),
        ({"lexical": 0}, {"lexical": 0, "lexical_weight": 0}),
        ({"lexical": 4}, {"lexical": 4, "lexical_weight": 0.6}),
        ({"lexical_weight": 0}, {"lexical": 15, "lexical_weight": 0}),
    ],
)
def test_the_fusion_of_the_model_is_the_default_here_and_there(index, recommending, options, same):
    """In this process, served and asked by a client: the ranking of a searcher that is told the fusion."""
    with bidr.open_index(index, candidates=20, **same) as searcher:
        wanted = [[hit.id for hit in result] for result in searcher.search(ASKED, 8)]
    with bidr.open_index(recommending, candidates=20) as searcher:
        assert [[hit.id for hit in result] for result in searcher.search(ASKED, 8, **options)] == wanted

    async def remote():
        transport = httpx.ASGITransport(make_app(opened(recommending, limits=LIMITS)), client=("127.0.0.1", 1))
        async with bidr.AsyncClient("http://127.0.0.1", transport=transport) as client:
            return await client.search(ASKED, 8, 20, **options)

    assert [[hit.id for hit in result] for result in asyncio.run(remote())] == wanted


def test_what_a_model_recommends_is_told_and_kept_to_the_limits(recommending):
    service = opened(recommending, limits=RequestLimits(candidates=30, reads=400, queries=8))
    about = ask(service, "GET", "/v1/index").json()
    assert (about["lexical"], about["lexical_weight"]) == (15, 0.6)
    assert ask(service, texts=ASKED[:1], k=5, candidates=28).status_code == 200
    found = ask(service, texts=ASKED[:1], k=30, candidates=30).json()["results"][0]["answers"]
    assert all(row["word_rank"] == 0 for row in found), "no room for words"
    kinds = ask(service, "GET", "/openapi.json").json()["paths"]["/v1/search"]["post"]["requestBody"]["content"]
    by_text, by_vector, *_ = kinds["application/json"]["schema"]["oneOf"]
    assert (by_text["properties"]["lexical"]["default"], by_vector["properties"]["lexical"]["default"]) == (0, 0)


def test_vectors_have_no_words_although_the_model_recommends_them(recommending):
    vector = np.ones((1, 32), np.float32) / np.sqrt(np.float32(32))
    service = opened(recommending, limits=LIMITS)
    found = ask(service, vectors=vector.tolist(), k=5).json()["results"][0]["answers"]
    assert [row["word_rank"] for row in found] == [0] * 5
    with bidr.open_index(recommending) as searcher:
        assert searcher.search_vectors(vector, 5).word_ranks is None
        with pytest.raises(ConfigError, match="without words"):
            searcher.search_vectors(vector, 5, lexical=3)


def test_an_index_without_words_refuses_them(tmp_path):
    service = opened(words_index(tmp_path, 50))
    found = ask(service, texts=ASKED[:1], lexical=5)
    assert (found.status_code, "built without words" in found.text) == (422, True), found.text
    assert ask(service, texts=ASKED[:1], lexical=0).status_code == 200
    assert not ask(service, "GET", "/v1/index").json()["words"]
    kinds = ask(service, "GET", "/openapi.json").json()["paths"]["/v1/search"]["post"]["requestBody"]["content"]
    for kind in kinds["application/json"]["schema"]["oneOf"]:
        assert kind["properties"]["lexical"]["maximum"] == 0
