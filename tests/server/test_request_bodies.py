"""Bodies of many connections at once: memory is bounded by their sum, and what goes beyond is told to come again."""

import asyncio
import tracemalloc

import pytest
from sample_server import made, opened

from bidr.errors import ConfigError
from bidr.server.app import make_app
from bidr.server.limits import RequestLimits

BODY, BODIES, PART = 1 << 20, 4 << 20, 1 << 16


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    return opened(made(tmp_path_factory.mktemp("bodies") / "index"), limits=RequestLimits(body=BODY, bodies=BODIES))


async def sending(app, size: int, last: asyncio.Event) -> tuple[int, dict[bytes, bytes]]:
    """Send a body, but for its last byte until `last`; status and headers of the answer."""
    sent, found = 0, []

    async def receive():
        nonlocal sent
        if sent >= size:
            await last.wait()
            return {"type": "http.request", "body": b" ", "more_body": False}
        sent += PART
        await asyncio.sleep(0)
        return {"type": "http.request", "body": bytes(PART), "more_body": True}

    async def send(message):
        found.append(message)

    headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
    scope = {"type": "http", "method": "POST", "path": "/v1/search", "query_string": b"", "headers": headers}
    await app(scope | {"client": ("127.0.0.1", 1)}, receive, send)
    return found[0]["status"], dict(found[0]["headers"])


def test_many_bodies_at_once_take_bounded_memory(service):
    app = make_app(service)

    async def go():
        last = asyncio.Event()
        tracemalloc.start()
        calls = [asyncio.create_task(sending(app, BODY - PART, last)) for _ in range(40)]
        for _ in range(10 * BODY // PART):
            await asyncio.sleep(0)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        last.set()
        return most, await asyncio.gather(*calls), await sending(app, BODY - PART, last)

    most, found, after = asyncio.run(go())
    statuses = [status for status, _ in found]
    assert most < 2 * BODIES, f"{most:,} bytes are kept of bodies of 40 MB"
    assert set(statuses) == {400, 503}  # zeros are no JSON
    assert 0 < statuses.count(400) <= 4
    assert all(headers[b"retry-after"] == b"1" for status, headers in found if status == 503)
    assert after[0] == 400, "what was answered makes room"
    assert service.body_budget.used == 0


def test_a_body_that_may_be_sent_must_fit():
    with pytest.raises(ConfigError, match=r"limit\.bodies: given 1000, expected limit\.body"):
        RequestLimits(bodies=1_000)
