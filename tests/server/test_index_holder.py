"""Following an index: new states, new models, and what happens when one cannot be opened."""

import asyncio
import gc
import os
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from sample_server import BOOKS, asking, made, opened, vector

from bidr.data.types import Document
from bidr.errors import IndexFolderError
from bidr.index.live.document_encoder import EncodedBatch
from bidr.index.live.inspection import describe_live
from bidr.index.live.writer import LiveWriter
from bidr.index.storage.manifest import ModelReference
from bidr.server.index_holder import IndexHolder, describe_index
from bidr.server.limits import RequestLimits
from bidr.server.worker import Worker


def test_a_rebuilt_index_is_served_while_old_results_stay_readable(tmp_path):
    index = made(tmp_path / "index", seed=1)
    holder = IndexHolder(index, None, lambda model: None)
    before = holder.current
    made(index, count=90, seed=2)
    assert holder.refresh()
    assert (holder.current.generation, holder.current.view.count) == (2, 90)
    assert before.lookup.get_fields(np.array([5]), texts=True)[0]["text"].startswith("Text 5 of 1")  # gone by name only
    assert holder.current.lookup.get_documents(["doc-85"])[0][0]["id"] == "doc-85"
    assert not holder.refresh()


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


def test_a_replaced_generation_is_let_go_at_once(tmp_path):
    """Its files take disk space for as long as anybody has them open, and no garbage collection may come for long."""
    index = made(tmp_path / "index", engine="lists")
    service = opened(index)

    def held():
        with open("/proc/self/maps") as maps:
            gone = sum(str(tmp_path) in line and "(deleted)" in line for line in maps)
        return gone, len(os.listdir("/proc/self/fd"))

    async def use():
        async with asking(service) as client:
            for body in ({}, {"filter": {"even": True, "lang": {"gte": "a"}}}, {"codes_only": True}):
                assert (await client.post("/v1/search", json={"vectors": [vector(1)], **body})).status_code == 200
            assert (await client.get("/v1/documents?id=doc-1&id=nobody")).status_code == 200
            assert (await client.get("/v1/index")).status_code == 200

    gc.collect()
    gc.disable()
    try:
        after = []
        for seed in range(2, 6):
            asyncio.run(use())
            made(index, seed=seed // 2, engine="lists", documents=in_words(seed // 2))  # twice the same
            assert service.holder.refresh()
            after.append(held())
    finally:
        gc.enable()
    assert [gone for gone, _ in after] == [0, 0, 0, 0]
    assert len({handles for _, handles in after}) == 1, after


def in_words(seed, count=60):
    """Documents with attributes in words too, which have a dictionary."""
    known = ({"even": row % 2 == 0, "lang": f"l{row % 5}"} for row in range(count))
    return [Document(f"doc-{row}", "", f"{seed}", each) for row, each in enumerate(known)]


def test_an_index_of_another_model_is_not_make_snapshot(tmp_path):
    """It cannot be searched with the queries of ours: what was served goes on being served, and /readyz says so."""
    service = opened(made(tmp_path / "index"))
    made(tmp_path / "index", seed=3, model=ModelReference("of-another", str(tmp_path / "nowhere")))
    service.holder.refresh()

    async def state():
        async with asking(service) as client:
            found = await client.post("/v1/search", json={"vectors": [vector(1)]})
            return found, await client.get("/readyz")

    found, ready = asyncio.run(state())
    assert (found.status_code, found.json()["generation"]) == (200, 1)
    told = ready.json()
    assert (ready.status_code, told["status"], told["generation"]) == (200, "behind", 1)
    assert "nowhere" in service.holder.error
    assert "cannot be opened" in told["trouble"]
    assert str(tmp_path) not in ready.text
    made(tmp_path / "index", seed=4)
    service.holder.refresh()
    assert asyncio.run(state())[1].json()["status"] == "ready"


def test_the_log_has_the_reason_that_readyz_withholds(tmp_path, capfd):
    """Once, though a request was the first to meet it."""
    service = opened(made(tmp_path / "index"))
    worker = Worker(service)
    made(tmp_path / "index", seed=3, model=ModelReference("of-another", str(tmp_path / "nowhere")))
    service.holder.refresh()
    asyncio.run(worker.refresh())
    asyncio.run(worker.refresh())
    assert capfd.readouterr().err.count('"event":"behind"') == 1


def test_a_replaced_model_lives_until_requests_in_progress_end(tmp_path, monkeypatch):
    """Those that began with it end with it."""
    service = opened(made(tmp_path / "index"), limits=RequestLimits(seconds=300.0))
    timers = []
    monkeypatch.setattr(threading, "Timer", lambda seconds, work: timers.append(seconds) or SimpleNamespace(start=int))
    before = replace(service.holder.current, encoder=SimpleNamespace(close=None))
    monkeypatch.setattr(
        "bidr.models.codes_only_model.open_model", lambda folder: SimpleNamespace(fingerprint="new", candidates=5)
    )
    made(tmp_path / "index", seed=2, model=ModelReference("new", str(tmp_path)))
    service.holder._make_snapshot(service.holder._live.refresh_now(), before)
    assert timers == [300.0]


def test_what_cannot_be_make_snapshot_is_not_tried_all_the_time(tmp_path, monkeypatch):
    """Every try opens a model; a state that is new is tried at once."""
    index = made(tmp_path / "index")
    holder = IndexHolder(index, None, lambda model: None)
    tries, real = [], holder._make_snapshot
    monkeypatch.setattr(holder, "_make_snapshot", lambda *given: (tries.append(1), real(*given))[1])
    made(index, seed=3, model=ModelReference("of-another", str(tmp_path / "nowhere")))
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    for tick in range(300):  # a minute
        clock[0] = 0.2 * tick
        assert not holder.refresh()
    assert 6 <= len(tries) <= 12
    made(index, seed=4)
    assert holder.refresh()
    assert (holder.error, holder.current.generation) == (None, 3)


def test_reported_ram_equals_that_of_inspect_with_the_log_counted_once(tmp_path):
    index = made(tmp_path / "index")
    new = [Document("new", "", "text")]
    with LiveWriter(
        index, lambda documents, vectors: EncodedBatch(BOOKS.encode(vectors), vectors, np.zeros(1))
    ) as writer:
        writer.add(new, np.array([vector(1)], dtype=np.float32))
    holder = IndexHolder(index, None, lambda model: None)
    assert holder.current.view.memtable.bytes > 0
    told, inspected = describe_index(holder, {}), describe_live(holder.current.view)
    assert told["ram_bytes"] == sum(inspected["ram_bytes"].values())
    assert told["ram_bytes_per_document"] == inspected["ram_bytes_per_document"]["total"]
    assert {"codes", "codebooks", "checksums", "seen blocks", "log"} <= inspected["ram_bytes"].keys()


def test_a_damaged_state_is_not_make_snapshot(tmp_path):
    index = made(tmp_path / "index")
    holder = IndexHolder(index, None, lambda model: None)
    made(index, seed=3)
    codes = index / "000002" / "codes.npy"
    codes.write_bytes(codes.read_bytes()[:-1] + b"\xff")
    assert not holder.refresh()
    assert "codes.npy" in (holder.error or "")
    assert holder.current.generation == 1
    with pytest.raises(IndexFolderError):
        IndexHolder(index, None, lambda model: None)
