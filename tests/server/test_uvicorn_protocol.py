"""What goes over a connection: answers in one piece, and all of them."""

import asyncio
import socket

import httpx
from sample_server import made, opened

from bidr.server.limits import RequestLimits
from bidr.server.uvicorn_protocol import CoalescingTransport
from bidr.server.worker import make_uvicorn_server


class Sent:
    """A transport that remembers what it was told."""

    def __init__(self):
        self.told = []

    def write(self, data):
        self.told.append(data)

    def close(self):
        self.told.append("closed")

    def is_closing(self):
        return "closed" in self.told


def told(*turns):
    """What a transport is told when each of the functions has a turn of the event loop."""
    sent = Sent()

    async def go():
        together = CoalescingTransport(sent, asyncio.get_running_loop())
        for turn in turns:
            turn(together)
            await asyncio.sleep(0)

    asyncio.run(go())
    return sent.told


def head_and_body(together):
    together.write(b"head ")
    together.write(b"body")


def test_head_and_body_go_together():
    assert told(head_and_body, head_and_body) == [b"head body", b"head body"]


def test_a_response_without_body_is_flushed():
    assert told(lambda together: together.write(b"head")) == [b"head"]


def test_nothing_is_lost_when_it_is_closed():
    def answered(together):
        together.write(b"head")
        together.close()
        assert together.is_closing()

    assert told(answered) == [b"head", "closed"]


def test_connections_above_the_limit_get_503_with_retry_after(tmp_path):
    """While requests are answered on all of them; afterwards an idle one is closed for a new one."""
    service = opened(made(tmp_path / "index"), limits=RequestLimits(connections=2))
    real, go_on, at_work = service.get_index, asyncio.Event(), []

    async def slow(call):
        at_work.append(call)
        await go_on.wait()
        return await real(call)

    service.get_index = slow

    async def go():
        listening = socket.create_server(("127.0.0.1", 0))
        server = make_uvicorn_server(service)
        snapshot = asyncio.create_task(server.serve(sockets=[listening]))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1/index"
        clients = [httpx.AsyncClient() for _ in range(4)]
        working = [asyncio.create_task(client.get(url)) for client in clients[:2]]
        while len(at_work) < 2:
            await asyncio.sleep(0.01)
        refused = await clients[2].get(url)
        go_on.set()
        first = [*[await each for each in working], refused]
        while service.connections.open > 2:
            await asyncio.sleep(0.01)
        after = await clients[3].get(url)
        assert (service.connections.open, service.connections.evicted) == (2, 1)
        for client in clients:
            await client.aclose()
        while service.connections.open:
            await asyncio.sleep(0.01)
        server.should_exit = True
        await snapshot
        return first, after

    first, after = asyncio.run(asyncio.wait_for(go(), 120))
    assert [found.status_code for found in first] == [200, 200, 503]
    assert (first[2].headers["retry-after"], first[2].headers["connection"]) == ("1", "close")
    assert after.status_code == 200
