"""HTTP as hostile or odd clients speak it, over a socket: every answer is JSON, and nobody is shut out by others."""

import json
import random
import resource
import socket
import time
from contextlib import ExitStack, contextmanager

import httpx
import pytest
from sample_server import READ, WRITE, ask, document, made, opened, running, said_well, vector

from bidr.errors import ConfigError
from bidr.server.config import ApiKeys, ServerConfig, get_client_network, validate_config
from bidr.server.connections import ConnectionTable, raise_file_limit
from bidr.server.limits import RequestLimits
from bidr.server.uvicorn_protocol import MAX_HEAD_BYTES

OPEN_PATHS = ("/", "/readyz", "/livez", "/openapi.json", "/page/server.js", "/nothing", "/metrics", "/v1/index")
POST = b"POST /v1/search HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
LIVE = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return made(tmp_path_factory.mktemp("http") / "index")


@pytest.fixture(scope="module")
def patient(index, tmp_path_factory):
    """A server that cuts nobody off for being slow."""
    flags = ("--limit.body_seconds=60", "--limit.seconds=60", "--limit.rate=0", "--no-access-log")
    with running(index, tmp_path_factory.mktemp("patient") / "log", *flags) as server:
        yield server


@pytest.fixture(scope="module")
def keyless(index):
    return opened(index)


@pytest.fixture(scope="module")
def writing(index):
    """Only writing needs a key."""
    return opened(index, keys=ApiKeys(write=WRITE))


def address_of(server):
    host, port = server.url.removeprefix("http://").split(":")
    return host, int(port)


def exchange(server, *sent: bytes, half_close: bool = False) -> bytes:
    """All that the server says until it closes the connection, or says nothing for a while."""
    with socket.create_connection(address_of(server), timeout=20) as connection:
        for part in sent:
            connection.sendall(part)
            time.sleep(0.0005 if len(sent) > 9 else 0.01)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        found = b""
        while part := connection.recv(65_536):
            found += part
        return found


def answers(content: bytes) -> list[httpx.Response]:
    found = []
    while content:
        head, _, rest = content.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:])
        length = int(headers["content-length"])
        found.append(httpx.Response(int(lines[0].split()[1]), headers=headers, content=rest[:length]))
        content = rest[length:]
    return found


def one(content: bytes) -> httpx.Response:
    (found,) = answers(content)
    return found


def head_of(size: int) -> bytes:
    before = b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx: "
    return before + b"a" * (size - len(before) - 4) + b"\r\n\r\n"


def spaced(size: int) -> bytes:
    """The same, of spaces that belong to no value."""
    return head_of(size).replace(b"x: " + b"a" * (size - 100), b"x: " + b" " * (size - 100))


MALFORMED = {
    "no http": b"hello there\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(60),
    "header without a colon": b"GET / HTTP/1.1\r\nhost localhost\r\n\r\n",
    "header with a zero": b"GET / HTTP/1.1\r\nhost: local\x00host\r\n\r\n",
    "folded header": b"GET / HTTP/1.1\r\nhost: localhost\r\n folded\r\n\r\n",
    "bare line feed": b"GET / HTTP/1.1\rhost: localhost\r\r",
    "unknown version": b"GET / HTTP/7.3\r\nhost: localhost\r\n\r\n",
    "no path": b"GET  HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "tunnel": b"CONNECT localhost:80 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "negative length": b"POST /v1/search HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
    "two lengths": b"POST /v1/search HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    "length with a coding": b"POST /v1/search HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n"
    b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "gzip alone": b"POST /v1/search HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: gzip\r\n\r\n",
    "chunk without a size": POST + b"transfer-encoding: chunked\r\n\r\nxyz\r\n",
    "chunk extension without end": POST + b"transfer-encoding: chunked\r\n\r\n1;" + b"a" * 200_000,
    "trailer without end": POST + b"transfer-encoding: chunked\r\n\r\n0\r\nx: " + b"a" * 200_000,
}


@pytest.mark.parametrize("case", MALFORMED)
def test_bytes_that_are_not_http_get_a_json_error_and_a_log_line(server, case):
    before = len(server.events("malformed"))
    found = one(exchange(server, MALFORMED[case]))
    said_well(found)
    assert (found.status_code in (400, 431), found.headers["connection"]) == (True, "close")
    told = server.wait("malformed", before + 1)[-1]
    assert (told["status"], told["client"], told["level"]) == (found.status_code, "127.0.0.1", "warning")
    assert all(line.startswith("{") for line in server.log.read_text().splitlines() if "Invalid" in line)


def test_nothing_but_json_is_in_the_log(server):
    """Not what libraries warn of either: of an upgrade, or of a head."""
    exchange(server, LIVE.replace(b"host:", b"connection: upgrade\r\nupgrade: h2c\r\nhost:") + b"hello\r\n\r\n")
    lines = server.log.read_text().splitlines()
    begun = next(number for number, line in enumerate(lines) if '"event":"ready"' in line)
    for line in lines[begun:]:
        assert json.loads(line)["event"]


def test_a_head_up_to_the_limit_is_accepted_and_a_longer_one_refused(server):
    for make in (head_of, spaced):
        assert one(exchange(server, make(MAX_HEAD_BYTES))).status_code == 200
        for size in (MAX_HEAD_BYTES + 1, 100_000, 300_000):
            found = one(exchange(server, make(size)))
            said_well(found)
            assert found.status_code == 431, size
    assert one(exchange(server, head_of(MAX_HEAD_BYTES)[:999], head_of(MAX_HEAD_BYTES)[999:])).status_code == 200
    assert (
        one(exchange(server, head_of(MAX_HEAD_BYTES + 1)[:999], head_of(MAX_HEAD_BYTES + 1)[999:])).status_code == 431
    )
    target = b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n"
    assert one(exchange(server, target)).status_code == 431
    lines = b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"".join(b"x%d:\r\n" % number for number in range(20_000))
    assert one(exchange(server, lines)).status_code == 431


def test_a_long_head_after_another_request_is_refused_after_its_answer(server):
    for long in (head_of(100_000), spaced(100_000)):
        found = answers(exchange(server, LIVE + long))
        assert [each.status_code for each in found] == [200, 431]
        found = answers(exchange(server, LIVE, long))
        assert [each.status_code for each in found] == [200, 431]


def test_answers_come_in_the_order_of_the_requests(server):
    """Whatever is wrong with a later one."""
    body = json.dumps({"vectors": [vector(1)]}).encode()
    search = POST + b"content-length: %d\r\n\r\n" % len(body) + body
    found = answers(exchange(server, search + LIVE + search + b"nonsense\r\n\r\n" + LIVE))
    assert [each.status_code for each in found] == [200, 200, 200, 400]
    assert "results" in found[0].json()
    assert found[1].json() == {"status": "live"}


def test_the_way_a_request_is_cut_into_packets_changes_nothing(patient):
    body = json.dumps({"vectors": [vector(1)], "k": 1}).encode()
    head = POST + b"connection: close\r\n"
    upgrade = b"connection: upgrade\r\nupgrade: h2c\r\n"
    sized = head + b"content-length: %d\r\n\r\n" % len(body) + body
    chunked = head + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\nhost: x\r\n\r\n" % (len(body), body)
    for whole, status in ((sized, 200), (chunked, 200), (LIVE.replace(b"host:", upgrade + b"host:") + sized, 200)):
        for size in (1, 7, len(whole) - 1, len(whole)):
            found = answers(exchange(patient, *(whole[at : at + size] for at in range(0, len(whole), size))))
            assert [each.status_code for each in found][-1] == status, (whole[:200], size, found[-1].text)
            assert "results" in found[-1].json()


def test_large_bodies_arrive_complete(server):
    """Beyond the bytes that are parsed at a time."""
    filler = " " * 150_000
    body = json.dumps({"vectors": [vector(1)], "k": 1})
    with server.client() as client:
        found = client.post("/v1/search", content=body + filler, headers={"content-type": "application/json"})
    assert found.status_code == 200
    assert found.json()["results"][0]["answers"]


@pytest.mark.parametrize("path", OPEN_PATHS)
def test_no_path_answers_to_a_foreign_name(server, keyless, writing, path):
    for host in ("evil.example", "evil.example:8000", "localhost.evil.example", "10.0.0.7", ""):
        request = b"GET %s HTTP/1.1\r\nhost: %s\r\nconnection: close\r\n\r\n" % (path.encode(), host.encode())
        found = one(exchange(server, request))
        said_well(found)
        assert found.status_code == 403
    for host in ("localhost", "LOCALHOST:9", "127.0.0.1:80", "[::1]"):
        assert ask(keyless, "GET", path, headers={"host": host}).status_code in (200, 404)
    assert ask(writing, "GET", path, headers={"host": "evil.example"}).status_code == 403
    known = {"host": "evil.example", "authorization": f"Bearer {WRITE}"}
    assert ask(writing, "GET", path, headers=known).status_code in (200, 404)


def test_with_a_read_key_allowed_hosts_restrict_names_but_not_addresses(index):
    """A probe of an orchestrator asks by address."""
    keyed = opened(index, keys=ApiKeys(read=READ))
    named = opened(index, keys=ApiKeys(read=READ), allowed_hosts=("search.example",))
    proxied = opened(index, allowed_hosts=("search.example",))
    for host, expected in (
        ("evil.example", (200, 403, 403)),
        ("search.example:443", (200, 200, 200)),
        ("10.0.0.7:8000", (200, 200, 403)),
        ("[fe80::1]", (200, 200, 403)),
        ("localhost", (200, 200, 200)),
    ):
        for path in ("/readyz", "/"):
            found = [
                ask(service, "GET", path, headers={"host": host}).status_code for service in (keyed, named, proxied)
            ]
            assert tuple(found) == expected, (host, path)
    for wrong in ("http://a.example", "a.example:80", "A.example", ""):
        with pytest.raises(ConfigError, match="allowed-hosts"):
            validate_config(ServerConfig(index=index, allowed_hosts=(wrong,)))
    settings = ServerConfig(index=index, allowed_hosts=("search.example", "::1"))
    assert ServerConfig.from_bytes(validate_config(settings).to_bytes()) == settings


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"host: localhost\r\nhost: localhost\r\n", 400),
        (b"host: localhost\r\nHost: evil.example\r\n", 400),
        (b"host: evil.example\r\nhost: localhost\r\n", 400),
        (b"", 400),
        (b"host: local host\r\n", 400),
        (b"host: localhost@evil.example\r\n", 400),
        (b"host: [::1]evil.example\r\n", 400),
        (b"host: localhost\r\ncontent-type: application/json\r\ncontent-type: text/plain\r\n", 400),
        (b"host: localhost\r\nauthorization: Bearer a\r\nauthorization: Bearer b\r\n", 400),
        (b"host: localhost\r\ntransfer-encoding: gzip, chunked\r\n", 501),
        (b"host: localhost\r\ntransfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n", 400),
        (b"host: localhost\r\ntransfer-encoding: chunked, identity\r\n", 400),
        (b"host: localhost\r\ntransfer-encoding: xchunked\r\n", 400),
        (b"host: localhost\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n", 400),
        (b"host: localhost\r\ncontent-length: 5\r\ntransfer-encoding: gzip, chunked\r\n", 400),
    ],
)
def test_heads_that_two_servers_may_read_differently_are_refused(server, headers, status):
    for path in (b"/v1/search", b"/v1/documents", b"/readyz", b"/"):
        head = b"POST %s HTTP/1.1\r\n%s\r\n" % (path, headers)
        smuggled = b"0\r\n\r\n" + LIVE
        found = answers(exchange(server, head + smuggled))
        assert [each.status_code for each in found] == [status]
        said_well(found[0])
        assert found[0].headers["connection"] == "close"


def test_a_chunked_body_of_http_1_0_is_refused(server):
    head = b"POST /v1/search HTTP/1.0\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    assert one(exchange(server, head)).status_code == 400


def test_a_page_of_another_site_does_not_write(server):
    """By a form or a script: a browser sends both without asking whether it may."""
    with server.client() as client:
        own = server.url
        count = client.get("/v1/index").json()["documents"]
        for origin in ("https://evil.example", "http://127.0.0.1:1", "null", f"{own}.example", f"ftp{own[4:]}", ""):
            for method in ("POST", "DELETE"):
                found = client.request(
                    method,
                    "/v1/documents",
                    json={"documents": [document(77)]},
                    params={"id": "doc-1"} if method == "DELETE" else {},
                    headers={"origin": origin},
                )
                said_well(found)
                assert found.status_code == 403
        assert client.get("/v1/index").json()["documents"] == count
        added = client.post("/v1/documents", json={"documents": [document(77)]}, headers={"origin": own})
        assert added.json()["added"] == 1
        gone = client.delete("/v1/documents", params={"id": "new-77"}, headers={"origin": own})
        assert gone.json()["deleted"] == 1


def test_pages_behind_a_proxy_write_under_an_allowed_name(index):
    service = opened(index, keys=ApiKeys(read=READ, write=WRITE), allowed_hosts=("search.example",))
    for origin, status in (("https://search.example", 415), ("https://evil.example", 403)):
        headers = {"origin": origin, "authorization": f"Bearer {WRITE}"}
        service.documents.writer = object()
        assert ask(service, "POST", "/v1/documents", headers=headers).status_code == status


@pytest.mark.parametrize("path", OPEN_PATHS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
def test_every_path_counts_for_the_rate(index, path, method):
    for keys in (ApiKeys(), ApiKeys(read=READ)):
        service = opened(index, keys=keys, limits=RequestLimits(rate=0.1))
        found = [ask(service, method, path).status_code for _ in range(3)]
        assert found[0] != 429
        assert found[1:] == [429, 429]


def test_probes_are_counted_apart_from_other_requests(index):
    service = opened(index, limits=RequestLimits(rate=0.1))
    assert [ask(service, "GET", path).status_code for path in ("/", "/", "/livez", "/livez")] == [200, 429, 200, 429]


def test_what_is_no_http_counts_for_the_rate(index, tmp_path):
    with running(index, tmp_path / "log", "--limit.rate=0.1", "--threads=0") as server:
        found = [one(exchange(server, MALFORMED["no http"])) for _ in range(2)]
        assert [each.status_code for each in found] == [400, 429]
        request = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        assert one(exchange(server, request)).status_code == 429


@contextmanager
def many_files(count: int):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count and (hard == resource.RLIM_INFINITY or hard >= count):
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    elif soft < count:
        pytest.skip(f"the system allows {hard} open files, expected {count}")
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connect(server, source: str) -> socket.socket:
    return socket.create_connection(address_of(server), timeout=20, source_address=(source, 0))


def is_live(connection: socket.socket) -> bool:
    connection.sendall(LIVE)
    return connection.recv(65_536).startswith(b"HTTP/1.1 200")


SILENT = {
    "silent": b"",
    "part of a head": b"GET / HTT",
    "kept alive": LIVE,
    "part of a body": POST + b"content-length: 99\r\n\r\n{",
}


@pytest.mark.parametrize("kind", SILENT)
def test_1100_connections_of_one_address_shut_nobody_out(patient, kind):
    """Neither who is there already nor who comes, nor the same address."""
    with many_files(1_400), ExitStack() as open_ones:
        early = open_ones.enter_context(connect(patient, "127.0.0.3"))
        assert is_live(early)
        for _ in range(1_100):
            open_ones.enter_context(connect(patient, "127.0.0.2")).sendall(SILENT[kind])
        for source in ("127.0.0.1", "127.0.0.2"):
            with connect(patient, source) as late:
                for _ in range(3):
                    assert is_live(late)
        assert is_live(early)


def test_a_server_that_may_open_few_files_takes_fewer_connections(monkeypatch):
    limits = {"now": (1_024, 4_096)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.update(now=new))
    assert raise_file_limit(500) == 500
    assert limits["now"] == (1_024, 4_096)
    assert raise_file_limit(1_024) == 1_024
    assert limits["now"][0] >= 1_024 + 256
    assert raise_file_limit(100_000) == 4_096 - 256
    limits["now"] = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert raise_file_limit(100_000) == 100_000


class Made:
    """A connection of a table."""

    def __init__(self, network):
        self.network, self.closed = network, False

    def evict(self):
        self.closed = True


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("local", "local"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::9", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
    ],
)
def test_limits_count_ipv6_clients_by_their_network(address, network):
    assert get_client_network(address) == network


def test_the_longest_idle_connection_of_the_address_with_most_gives_way():
    table = ConnectionTable(4)
    a, b, c = Made("one"), Made("two"), Made("two")
    d = Made("two")
    for each in (a, b, c, d):
        table.add(each)
    table.mark_busy(b)
    table.mark_busy(c)
    table.mark_idle(c)  # after d
    table.add(Made("one"))
    assert [each.closed for each in (a, b, c, d)] == [False, False, False, True]
    table.remove(d)  # as it is closed in the end
    assert (table.open, table.is_over_limit) == (4, False)
    table.mark_busy(c)
    table.mark_busy(a)
    table.add(Made("three"))  # the other of "one" is the only idle one
    assert (table.open, table.evicted) == (4, 2)


def test_a_table_never_forgets_how_many_are_open():
    """Whatever happens in whichever order, and only idle ones are closed."""
    choose = random.Random(0)
    table, known, busy = ConnectionTable(8), [], set()
    for _ in range(5_000):
        what = choose.choice(("add", "add", "idle", "busy", "remove"))
        if what == "add":
            known.append(Made(str(choose.randrange(3))))
            table.add(known[-1])
        elif known:
            each = choose.choice(known)
            {"idle": table.mark_idle, "busy": table.mark_busy, "remove": table.remove}[what](each)
            (busy.add if what == "busy" else busy.discard)(each)
            if what == "remove":
                known.remove(each)
        assert not any(each.closed for each in busy & set(known))
        known = [each for each in known if not each.closed]
        assert table.open == len(known)
        assert table.open <= max(8, len(busy & set(known)) + 1)
