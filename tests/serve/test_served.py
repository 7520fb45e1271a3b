"""Following an index: new states, new models, and what happens when one cannot be opened."""

import asyncio

import numpy as np
import pytest

from bidr.errors import IndexFolderError
from bidr.index.folder import ModelStamp
from bidr.serve.served import Served
from serve.made_server import asking, made, opened, vector


def test_a_rebuild_is_taken_up_and_old_answers_stay_whole(tmp_path):
    index = made(tmp_path / "index", seed=1)
    served = Served(index, None, lambda model: None)
    before = served.now
    made(index, count=90, seed=2)
    assert served.look()
    assert (served.now.generation, served.now.view.count) == (2, 90)
    assert before.finder.fields(np.array([5]), texts=True)[0]["text"].startswith("Text 5 of 1")  # gone by name only
    assert served.now.finder.documents(["doc-85"])[0][0]["id"] == "doc-85"
    assert not served.look()


def test_a_request_that_meets_a_replaced_state_is_answered_from_the_new_one(tmp_path):
    """Columns and ids are opened when first asked for: the old ones are gone by then, and nobody has looked yet."""
    service = opened(made(tmp_path / "index"))
    made(tmp_path / "index", seed=2)

    async def both():
        async with asking(service) as client:
            found = await client.post("/v1/search", json={"vectors": [vector(1)], "filter": {"even": True}})
            return found, await client.get("/v1/documents?id=doc-1")

    found, fetched = asyncio.run(both())
    assert (found.status_code, found.json()["generation"]) == (200, 2)
    assert fetched.json()["documents"][0]["text"].startswith("Text 1 of 2")


def test_an_index_of_another_model_is_not_taken_up(tmp_path):
    """It cannot be searched with the queries of ours: what was served goes on being served, and /readyz says so."""
    service = opened(made(tmp_path / "index"))
    made(tmp_path / "index", seed=3, model=ModelStamp("of-another", str(tmp_path / "nowhere")))
    service.served.look()

    async def state():
        async with asking(service) as client:
            found = await client.post("/v1/search", json={"vectors": [vector(1)]})
            return found, await client.get("/readyz")

    found, ready = asyncio.run(state())
    assert (found.status_code, found.json()["generation"]) == (200, 1)
    told = ready.json()
    assert (ready.status_code, told["status"], told["generation"]) == (200, "behind", 1)
    assert "nowhere" in told["trouble"]
    made(tmp_path / "index", seed=4)
    service.served.look()
    assert asyncio.run(state())[1].json()["status"] == "ready"


def test_a_damaged_state_is_not_taken_up(tmp_path):
    index = made(tmp_path / "index")
    served = Served(index, None, lambda model: None)
    made(index, seed=3)
    codes = index / "000002" / "codes.npy"
    codes.write_bytes(codes.read_bytes()[:-1] + b"\xff")
    assert not served.look()
    assert "codes.npy" in (served.trouble or "")
    assert served.now.generation == 1
    with pytest.raises(IndexFolderError):
        Served(index, None, lambda model: None)
