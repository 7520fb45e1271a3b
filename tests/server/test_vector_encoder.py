"""A server of vectors with a text encoder: searches and additions by texts, and by vectors."""

import numpy as np
import pytest
from sample_encoder_index import make_dataset, make_documents, make_encoder
from sample_server import ask, opened, search

import bidr
from bidr.data.types import Document
from bidr.errors import ModelError
from bidr.pipeline.index_encoder import open_index_encoder
from bidr.server.config import ServerConfig
from bidr.server.worker import make_vector_encoder
from bidr.server.write_batcher import AddJob, WriteBatcher

CODES = bidr.PlainCodes(bytes_per_doc=4)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return make_encoder(tmp_path_factory.mktemp("encoder") / "static")


@pytest.fixture(scope="module")
def built(tmp_path_factory, encoder):
    folder = tmp_path_factory.mktemp("built") / "index"
    return bidr.build(make_dataset(), encoder=encoder, out=folder, plain=CODES, lexical=True)


@pytest.fixture(scope="module")
def of_vectors(tmp_path_factory, encoder):
    vectors = open_index_encoder(encoder).encode_documents(make_documents())
    folder = tmp_path_factory.mktemp("vectors") / "index"
    return bidr.build_vectors(vectors, None, folder, data=make_dataset(), plain=CODES)


def list_ids(response):
    assert response.status_code == 200, response.text
    return [hit["id"] for hit in response.json()["results"][0]["answers"]]


def test_texts_and_vectors_find_the_same(built, of_vectors, encoder):
    query = open_index_encoder(encoder).encode_queries(["pearl earring"])[0].tolist()
    for service in (opened(built), opened(of_vectors, encoder=str(encoder))):
        about = ask(service, "GET", "/v1/index").json()
        assert about["texts"] is True
        expected = list_ids(search(service, vectors=[query], k=5, candidates=300))
        assert list_ids(search(service, texts=["pearl earring"], k=5, candidates=300)) == expected
    with bidr.open_index(built) as searcher:
        assert [hit.id for hit in searcher.search("pearl earring", 5, 300)] == expected


def test_without_an_encoder_the_error_says_how_to_give_one(of_vectors):
    error = search(opened(of_vectors), texts=["pearl"]).json()["error"]
    assert "--encoder" in error["hint"]


def test_a_server_refuses_an_encoder_that_does_not_fit(of_vectors, tmp_path):
    with pytest.raises(ModelError, match="did not make the vectors"):
        opened(of_vectors, encoder=str(make_encoder(tmp_path / "other", seed=9)))


@pytest.mark.parametrize("kind", ["built", "of_vectors"])
def test_the_writer_encodes_texts_and_takes_vectors(kind, encoder, tmp_path, request):
    import shutil

    index = tmp_path / "index"
    shutil.copytree(request.getfixturevalue(kind), index)
    config = ServerConfig(index=index, encoder=None if kind == "built" else str(encoder))
    batcher = WriteBatcher(index, None, lambda model: None, lambda view: make_vector_encoder(config, view))
    document = Document("new", "pearl earring", "oysters oysters")
    given = Document("given", "", "any words")
    jobs = [AddJob([document], None, True), AddJob([given], np.eye(1, 16, dtype=np.float32), True)]
    assert [outcome["added"] for outcome in batcher.apply(jobs)] == [1, 1]
    batcher.release()
    with bidr.open_index(index, encoder=encoder) as searcher:
        assert searcher.search("pearl earring oysters oysters", k=1)[0].id == "new"
        hits = searcher.search_vectors(np.eye(1, 16, dtype=np.float32), 1)
        assert searcher.load_results(hits)[0][0].id == "given"
