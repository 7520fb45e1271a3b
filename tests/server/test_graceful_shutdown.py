"""A socket that is closed in good order resets nobody."""

import asyncio
import http.client
import os
import signal
import socket
import threading
import time
from types import SimpleNamespace

import pytest
from sample_server import made, running

from bidr.server.graceful_shutdown import accept_pending, reject_connections, stop_accepting
from bidr.server.worker import drain

REQUEST = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0), backlog=64) as made:
        yield made


def test_whoever_has_connected_is_answered_and_nobody_else_can(listening):
    clients = [socket.create_connection(listening.getsockname()) for _ in range(20)]
    for client in clients[:15]:  # some have not said yet what they want
        client.sendall(REQUEST)
    stop_accepting(listening)
    with pytest.raises(TimeoutError):
        socket.create_connection(listening.getsockname(), timeout=0.3)
    waiting = accept_pending(listening)
    assert len(waiting) == 20
    address = listening.getsockname()
    listening.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=5)
    away = threading.Thread(target=reject_connections, args=(waiting,))
    away.start()
    for client in clients:
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert (answer.status, answer.getheader("retry-after")) == (503, "1")
        assert b"stopping" in answer.read()
        client.close()
    away.join()


def test_a_client_that_never_reads_is_not_waited_for(listening):
    client = socket.create_connection(listening.getsockname())
    started = time.monotonic()
    reject_connections(accept_pending(listening), 0.2)
    assert time.monotonic() - started < 20
    client.close()


def test_stopped_while_its_only_worker_is_starting_a_server_resets_nobody(tmp_path):
    """The worker is killed, so that clients wait for the next one, which is told to end before it has begun."""
    with running(made(tmp_path / "index"), tmp_path / "log") as server:
        os.kill(server.workers()[0], signal.SIGKILL)
        server.wait("ended")
        host, port = server.url.removeprefix("http://").split(":")
        clients = [socket.create_connection((host, int(port))) for _ in range(5)]
        for client in clients:
            client.sendall(REQUEST)
        assert server.stop() == 0
        for client in clients:
            answer = http.client.HTTPResponse(client)
            answer.begin()
            assert answer.status == 503
            client.close()


def test_sigterm_during_startup_ends_a_worker():
    """The HTTP server has nothing to close before it has started."""
    service = SimpleNamespace(draining=False)
    server = SimpleNamespace(started=False, should_exit=False, server_state=SimpleNamespace(connections=set()))

    async def go():
        deadline_scope = asyncio.create_task(drain(service, server))
        await asyncio.sleep(0.03)
        server.servers, server.started = [SimpleNamespace(close=lambda: None)], True
        await asyncio.wait_for(deadline_scope, 60)

    asyncio.run(go())
    assert service.draining
    assert server.should_exit
