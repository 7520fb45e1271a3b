"""The processes together: what one worker was given all have, and nothing fails while things change under them."""

import os
import re
import signal
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest
from sample_server import READ, children, document, made, running, vector

from bidr.errors import ConfigError
from bidr.server.config import ApiKeys, ServerConfig, load_api_keys, validate_config
from bidr.server.limits import RequestLimits
from bidr.server.worker import get_pss


def answers(client: httpx.Client, asked: list[float], **body: object) -> list[str]:
    found = client.post("/v1/search", json={"vectors": [asked], **body})
    assert found.status_code == 200, found.text
    return [each["id"] for each in found.json()["results"][0]["answers"]]


def each_worker(server, times: int = 8) -> list[httpx.Client]:
    """Connections enough that every worker has one; which one accepts is up to the system, so more are opened."""
    before, clients = len(server.events("request")), list[httpx.Client]()

    def one_more() -> bool:
        clients.append(server.client())
        clients[-1].get("/v1/index")
        return len(clients) >= times and len({each["pid"] for each in server.events("request")[before:]}) == 2

    _until(one_more)
    return clients


def test_what_was_added_is_found_by_the_next_search_of_every_worker(server):
    clients = each_worker(server)
    for number in range(6):
        new = document(number)
        done = clients[0].post("/v1/documents", json={"documents": [new]}).json()
        assert (done["added"], done["replaced"]) == (1, 0)
        for client in clients:
            assert answers(client, new["vector"], k=1, candidates=100) == [new["id"]]
    changed = document(3) | {"text": "changed"}
    assert clients[0].post("/v1/documents", json={"documents": [changed]}).json()["replaced"] == 1
    assert clients[1].get("/v1/documents", params={"id": "new-3"}).json()["documents"][0]["text"] == "changed"
    twice = [document(8) | {"text": "first"}, document(8) | {"text": "last"}]
    assert clients[0].post("/v1/documents", json={"documents": twice}).json()["added"] == 1
    assert clients[0].get("/v1/documents?id=new-8").json()["documents"][0]["text"] == "last"
    assert clients[0].post("/v1/documents", json={"documents": twice, "replace": False}).status_code == 409
    taken = clients[0].post("/v1/documents", json={"documents": [document(3)], "replace": False})
    assert taken.status_code == 409
    gone = clients[2].delete("/v1/documents", params={"id": ["new-3", "new-4"]})
    assert gone.json()["deleted"] == 2
    for client in clients:
        assert "new-3" not in answers(client, document(3)["vector"], candidates=100)
    unknown = clients[0].delete("/v1/documents", params={"id": ["new-0", "new-3"]})
    assert (unknown.status_code, "new-3" in unknown.text) == (404, True)
    assert clients[0].get("/v1/documents", params={"id": "new-0"}).json()["missing"] == []
    assert clients[0].delete("/v1/documents?id=new-3&missing_ok=true").json()["deleted"] == 0
    assert len({each["pid"] for each in server.events("request") if each["path"] == "/v1/search"}) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"documents": [{"id": ""}]},
        {"documents": [{"id": "a", "vector": [0.1] * 3}]},
        {"documents": [{"id": "a"}]},
        {"documents": [document(1) | {"extra": 1}]},
        {"documents": [document(1) | {"attributes": {"a": {"b": 1}}}]},
        {"documents": [document(1) | {"vector": [1e300] * 16}]},
        {"documents": [document(number) for number in range(4)]},
        {"documents": [document(1)], "replace": "yes"},
    ],
)
def test_documents_that_cannot_be_added(server, wrong):
    with server.client() as client:
        before = client.get("/v1/index").json()["documents"]
        assert client.post("/v1/documents", json=wrong).status_code == 422
        assert client.get("/v1/index").json()["documents"] == before


def test_a_slow_body_and_a_slow_head_are_cut(server):
    host, port = server.url.removeprefix("http://").split(":")
    head = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n"
    for sent, expected in ((head + b"\r\n{", b"408"), (head[:30], b"")):
        with socket.create_connection((host, int(port))) as slow:
            started = time.monotonic()
            slow.sendall(sent)
            slow.settimeout(60)
            found = b""
            while part := slow.recv(65_536):
                found += part
            assert expected in found[:20], found
            assert time.monotonic() - started < 30


def test_a_body_of_60_megabytes_takes_no_memory(server):
    before = sum(map(get_pss, server.workers()))
    with server.client() as client:
        found = client.post("/v1/search", content=bytes(60 << 20), headers={"content-type": "application/json"})
    assert (found.status_code, "200000 bytes" in found.text) == (413, True)
    assert sum(map(get_pss, server.workers())) - before < 8 << 20


def test_workers_share_the_codes(server):
    """The same memory is mapped by both, not a copy of it."""
    with server.client() as client:
        client.get("/readyz")
    mapped = [
        re.findall(r"[0-9a-f]+:[0-9a-f]+ (\d+) +(/dev/shm\S*codes\S*npy)", _maps(pid)) for pid in server.workers()
    ]
    assert mapped[0]
    assert {inode for inode, _ in mapped[0]} & {inode for inode, _ in mapped[1]}
    with server.client() as client:
        assert "bidr_worker_pss_bytes" in client.get("/metrics").text


def _maps(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


class Load:
    """Searches from several threads, all the time; counts what fails."""

    def __init__(self, server, threads: int = 3) -> None:
        self.server, self.stop, self.done, self.failed = server, threading.Event(), 0, []
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]

    def _run(self) -> None:
        with self.server.client() as client:
            while not self.stop.is_set():
                try:
                    found = client.post("/v1/search", json={"vectors": [vector(1)], "k": 5})
                    if found.status_code != 200:
                        self.failed.append(found.text)
                except httpx.HTTPError as error:
                    self.failed.append(repr(error))
                self.done += 1

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join()


def test_nothing_fails_while_the_index_and_the_workers_are_replaced(server):
    """A rebuild of the whole index while it is added to without a pause, then every worker drained and replaced."""
    with Load(server) as load, server.client() as client:
        generation = client.get("/readyz").json()["generation"]
        with AddJob(server) as adding:
            _until(lambda: adding.done > 5)
            made(server.index, seed=5)
            added = adding.done
            _until(lambda: adding.done > added)
        _until(lambda: client.get("/readyz").json()["generation"] > generation)
        assert client.get("/v1/documents?id=doc-1").json()["documents"][0]["text"].startswith("Text 1 of 5")
        assert client.post("/v1/documents", json={"documents": [document(40)]}).json()["added"] == 1
        before = server.workers()
        server.process.send_signal(signal.SIGHUP)
        _until(lambda: len(server.workers()) == 2 and not set(before) & set(server.workers()), 60)
        assert answers(client, document(40)["vector"], k=1, candidates=100) == ["new-40"]
    assert load.done > 50
    assert load.failed == adding.failed == []


class AddJob(Load):
    """Documents from several threads, all the time. While another program writes, they are refused for a while."""

    def _run(self) -> None:
        with self.server.client() as client:
            while not self.stop.is_set():
                found = client.post("/v1/documents", json={"documents": [document(50)]})
                if found.status_code != 200 and "retry-after" not in found.headers:
                    self.failed.append(found.text)
                self.done += found.status_code == 200


def _until(holds, seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_worker_or_writer_that_is_killed_comes_back(server):
    victim, writer = server.workers()[0], children(server.process.pid, "bidr.server.writer_process")[0]
    os.kill(victim, signal.SIGKILL)
    os.kill(writer, signal.SIGKILL)
    _until(lambda: len(server.workers()) == 2 and victim not in server.workers())
    with server.client() as client:
        assert answers(client, vector(1), k=1)
        _until(lambda: client.post("/v1/documents", json={"documents": [document(41)]}).status_code == 200)
        assert answers(client, document(41)["vector"], k=1, candidates=100) == ["new-41"]


def test_drain(tmp_path):
    """Told to stop under load, the server answers what has begun, closes connections in good order, and ends with 0."""
    flags = ["--limit.rate=0", "--workers=1"]
    with running(made(tmp_path / "index"), tmp_path / "log", *flags, keys=ApiKeys(read=READ)) as server:
        outcomes: list[object] = []
        headers = {"authorization": f"Bearer {READ}"}

        def ask() -> None:
            with server.client(headers=headers) as client:
                while True:
                    try:
                        found = client.post("/v1/search", json={"vectors": [vector(1)]})
                    except httpx.ConnectError:
                        return  # the door is closed
                    outcomes.append(found.status_code)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        _until(lambda: len(outcomes) > 20)
        assert server.stop() == 0
        for thread in threads:
            thread.join()
        assert set(outcomes) == {200}
        assert server.events("drained")
        assert READ not in server.log.read_text()


def test_a_folder_that_cannot_be_served_is_an_error_in_one_line(tmp_path):
    index = made(tmp_path / "index")
    with pytest.raises(ConfigError, match="no read key"):
        validate_config(ServerConfig(index=index, host="0.0.0.0"))
    with pytest.raises(ConfigError, match="needs a write key"):
        validate_config(ServerConfig(index=index, host="0.0.0.0", writable=True, keys=ApiKeys(read=READ)))
    validate_config(ServerConfig(index=index, host="::1", writable=True))
    with pytest.raises(ConfigError, match=r"limit\.queue: given 0, expected 1"):
        RequestLimits(queue=0)
    short = tmp_path / "keys"
    short.write_text("read short\n")
    with pytest.raises(ConfigError, match="16 or more"):
        load_api_keys(short)
    short.write_text("# ours\nread " + READ + "\n")
    assert load_api_keys(short).read == READ
