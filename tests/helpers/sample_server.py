"""A server of a small index for tests: in this process by ASGI, or as its own processes."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import numpy as np
from sample_index import clustered, random_codebooks

from bidr.data.types import Document
from bidr.index.builder.build import build_index
from bidr.server.app import SearchService, make_app
from bidr.server.config import ApiKeys, ServerConfig
from bidr.server.limits import RequestLimits
from bidr.server.worker import open_service

DIM = 16
BOOKS = random_codebooks(DIM, 4)
READ, WRITE = "a-read-key-of-some-length", "a-write-key-of-some-length"


def made(folder: Path, count: int = 60, seed: int = 0, **options: object) -> Path:
    """An index of unit vectors, documents with texts and attributes."""
    vectors = clustered(count, DIM, seed)
    documents = [
        Document(f"doc-{row}", f"Title {row}", f"Text {row} of {seed}, öäü 漢", {"n": row, "even": row % 2 == 0})
        for row in range(count)
    ]
    codes = BOOKS.encode(vectors)
    options = {"documents": documents, "engine": "scan", "unit": True, **options}
    build_index(folder, codebooks=BOOKS, codes=codes, vectors=vectors, **options)
    return folder


def opened(index: Path, **options: object) -> SearchService:
    """The service of one worker, in this process."""
    service = open_service(ServerConfig(index=index, access_log=False, **{"limits": RequestLimits(), **options}))
    service.started = True
    return service


def asking(service: SearchService, **options: object) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(make_app(service), client=("127.0.0.1", 1))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", **options)


class Server:
    """`bidr serve` as its own processes."""

    def __init__(self, process: subprocess.Popen, log: Path) -> None:
        self.process, self.log = process, log
        self.url = ""

    def events(self, name: str) -> list[dict]:
        lines = self.log.read_text().splitlines()
        return [found for line in lines if line.startswith("{") and (found := json.loads(line))["event"] == name]

    def wait(self, name: str, count: int = 1, seconds: float = 180) -> list[dict]:
        """Wait until an event was logged so many times."""
        until = time.monotonic() + seconds
        while len(found := self.events(name)) < count:
            assert time.monotonic() < until, f"no {name}: {self.log.read_text()[-3000:]}"
            assert self.process.poll() is None or name in ("drained", "stopping"), self.log.read_text()[-3000:]
            time.sleep(0.02)
        return found

    def client(self, **options: object) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=120, **options)

    def workers(self) -> list[int]:
        return children(self.process.pid, "bidr.server.worker")

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)


def children(pid: int, what: str) -> list[int]:
    """Processes that another started, by what they run."""
    found = []
    for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(OSError):  # it ended meanwhile
            if what in Path(f"/proc/{each}/cmdline").read_text():
                found.append(int(each))
    return found


@contextmanager
def running(index: Path, log: Path, *flags: str, keys: ApiKeys | None = None) -> Iterator[Server]:
    """A server that is ready; stopped in the end."""
    known = {"BIDR_READ_KEY": keys.read, "BIDR_WRITE_KEY": keys.write} if keys else {}
    source = str(Path(__file__).parents[2] / "src")
    environment = {**os.environ, "PYTHONPATH": source, **{name: key for name, key in known.items() if key}}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "bidr", "serve", str(index), "--port", "0", "--limit.seconds=120", *flags],
            stderr=out,
            stdout=out,
            env=environment,
        )
    server = Server(process, log)
    try:
        server.url = server.wait("ready")[0]["url"]
        yield server
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(120)


def vector(seed: int) -> list[float]:
    return clustered(1, DIM, 10_000 + seed)[0].tolist()


def document(number: int) -> dict:
    found = vector(number)
    return {
        "id": f"new-{number}",
        "title": f"New {number}",
        "text": "text",
        "attributes": {"n": number},
        "vector": found,
    }


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def ask(service, method, path, **given):
    async def go():
        async with asking(service) as client:
            return await client.request(method, path, **given)

    return asyncio.run(go())


def search(service, **body):
    return ask(service, "POST", "/v1/search", json=body)


WORDS = re.compile(r"None|True|False|<class|dtype|\bNoneType\b|array\(|(^|[\s\[{(,:])'")


def said_well(found):
    if found.status_code == 200:
        return
    assert 400 <= found.status_code < 500 or found.status_code == 501, found.text
    error = found.json()["error"]
    assert all(error.values()), error
    assert len(error["message"].split()) > 2, error
    assert not any(WORDS.search(part.replace("it's", "")) for part in error.values()), error
