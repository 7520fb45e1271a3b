"""What Python programs give: the obvious is converted, the rest is an error that names the value; never a traceback."""

import decimal
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from sample_index import clustered
from sample_server import DIM
from sample_text_index import words_index

import bidr
from bidr.client import Client
from bidr.data.dataset import Dataset
from bidr.data.types import Document, Query
from bidr.errors import BidrError, ConfigError, DataError

VECTORS = clustered(30, DIM, 0)
PLAIN = bidr.PlainCodes(4, codewords=16)


class NAType:
    """As `pandas.NA` is called, and behaves."""

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")


NOTHING = ""
IDS: dict[str, tuple[Any, str | None]] = {
    "a string": ("a", "a"),
    "a string of numpy": (np.str_("a"), "a"),
    "an int": (7, "7"),
    "an int of numpy": (np.int64(-7), "-7"),
    "an unsigned int of numpy": (np.uint64(2**64 - 1), str(2**64 - 1)),
    "a truth value": (True, None),
    "a truth value of numpy": (np.True_, None),
    "a float": (1.0, None),
    "NaN": (float("nan"), None),
    "NA": (NAType(), None),
    "None": (None, None),
    "bytes": (b"a", None),
    "bytes of numpy": (np.bytes_(b"a"), None),
    "a path": (Path("a"), None),
    "a list": (["a"], None),
    "an array": (np.arange(3), None),
    "a date": (date(2020, 1, 1), None),
    "nothing": (NOTHING, None),
}
TITLES = {
    "None": (None, ""),
    "NaN": (float("nan"), ""),
    "NaN of numpy": (np.float32("nan"), ""),
    "NA": (NAType(), ""),
    "nothing": ("", ""),
    "a string of numpy": (np.str_("a"), "a"),
    "bytes": (b"a", None),
    "an int": (7, None),
    "a float": (1.5, None),
    "a path": (Path("a"), None),
    "a list": (["a"], None),
    "an array": (np.arange(3), None),
}
TEXTS = {**TITLES, **{name: (TITLES[name][0], None) for name in ("None", "NaN", "NaN of numpy", "NA")}}
ATTRIBUTES: dict[str, tuple[Any, Any]] = {
    "numbers of numpy": ({"a": np.int64(3), "b": np.float32(0.5), "c": np.True_}, {"a": 3, "b": 0.5, "c": True}),
    "strings of numpy": ({"a": np.str_("x"), "b": [np.str_("y")]}, {"a": "x", "b": ["y"]}),
    "arrays of strings": ({"a": np.array(["x", "y"])}, {"a": ["x", "y"]}),
    "none": ({}, None),
    "None": ({"a": None}, AttributeError),
    "NaN": ({"a": float("nan")}, AttributeError),
    "NaN of numpy": ({"a": np.float64("nan")}, AttributeError),
    "NA": ({"a": NAType()}, AttributeError),
    "infinity": ({"a": float("inf")}, AttributeError),
    "a large int": ({"a": 2**64}, AttributeError),
    "bytes": ({"a": b"x"}, AttributeError),
    "an array": ({"a": np.arange(3)}, AttributeError),
    "a path": ({"a": Path("x")}, AttributeError),
    "a decimal": ({"a": decimal.Decimal(1)}, AttributeError),
    "a date": ({"a": np.datetime64("2020-01-01")}, {"a": "2020-01-01"}),
    "an int for a name": ({7: "x"}, AttributeError),
    "bytes for a name": ({b"a": "x"}, AttributeError),
    "no mapping": ([("a", 1)], AttributeError),
    "a string": ("abc", AttributeError),
    "NaN for all": (float("nan"), AttributeError),
}


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> Path:
    return words_index(tmp_path_factory.mktemp("inputs"), 60, lexical="prepend")


def sent(document: Document) -> Document:
    """What a server is sent of a document by the client."""
    bodies: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"limits": {"documents": 9, "body": 10_000}})
        bodies.append(json.loads(request.content))
        return httpx.Response(200, json={"added": 1, "replaced": 0})

    with Client("http://made", transport=httpx.MockTransport(answer)) as client:
        client.add([document])
    (row,) = bodies[0]["documents"]
    return Document(row["id"], row["title"], row["text"], row.get("attributes"))


def held(document: Document) -> Document:
    return next(iter(Dataset.from_records("made", [document]).corpus))


def stored(index: Path, document: Document) -> Document:
    """What an index holds of a document that was added to it, in its log and in a segment."""
    with bidr.open_writer(index) as writer:
        before = writer.view.count
        try:
            writer.add([document])
        except BidrError:
            assert writer.view.count == before
            raise
        found = writer.view.memtable.documents[-1]
        writer.flush()
        part = writer.view.segments[-1]
        assert part.get_record(part.count - 1) == found
        writer.delete([found.id])
    return found


def ways(index: Path) -> dict[str, Callable[[Document], Document]]:
    return {"from_records": held, "client.add": sent, "writer.add": lambda document: stored(index, document)}


def check(call: Callable[[], Any], expected: Any, *named: str) -> None:
    if expected is not None:
        found = call()
        assert found == expected
        assert type(found) is type(expected)
        return
    with pytest.raises(DataError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    assert all(word in message for word in named), message


@pytest.mark.parametrize("field", ["id", "title", "text"])
def test_fields_of_documents(index: Path, field: str) -> None:
    values = {"id": IDS, "title": TITLES, "text": TEXTS}[field]
    for value, expected in values.values():
        document = Document("d", "t", "x")._replace(**{field: value})
        for call in ways(index).values():
            check(lambda call=call, document=document: getattr(call(document), field), expected, field, *kind(value))


def kind(value: Any) -> tuple[str, ...]:
    """What an error says of a value: its type, where it is not plain without."""
    return ("None",) if value is None else () if value is NOTHING else (type(value).__name__,)


def test_attributes_of_documents(index: Path) -> None:
    for given, expected in ATTRIBUTES.values():
        document = Document("d", "t", "x", given)
        for name, call in ways(index).items():
            if name == "from_records":  # checked when they are written
                continue
            if expected is AttributeError:
                with pytest.raises(DataError, match="attribute"):
                    call(document)
            else:
                found = call(document).attributes or None
                assert found == expected
                assert not found or {type(each) for each in found.values()} <= {int, float, bool, str, list}


def test_builds_refuse_the_same_attributes(tmp_path: Path) -> None:
    for number, (given, expected) in enumerate(ATTRIBUTES.values()):
        documents = [Document(str(row), None, "x", given if row == 3 else None) for row in range(30)]

        def build(out: Path, documents: list[Document] = documents) -> Path:
            data = Dataset.from_records("made", documents)
            return bidr.build_vectors(VECTORS, None, out, data=data, plain=PLAIN, lexical=True)

        if expected is AttributeError:
            with pytest.raises(DataError, match="attribute"):
                build(tmp_path / f"{number}")
        elif number < 2:
            with bidr.open_index(build(tmp_path / f"{number}")) as searcher:
                documents = searcher.reader.latest().documents
                assert documents.document(3) == Document("3", "", "x", expected)


def test_ids_of_rows(tmp_path: Path) -> None:
    for number, (value, expected) in enumerate(IDS.values()):
        ids = [*(f"row-{row}" for row in range(29)), value]

        def build(out: Path, ids: list[Any] = ids) -> str:
            bidr.build_vectors(VECTORS, None, out, ids=ids, plain=PLAIN)
            with bidr.open_index(out) as searcher:
                return searcher.reader.latest().documents.id(29)

        if number < 4 or expected is None:
            check(lambda build=build, number=number: build(tmp_path / f"{number}"), expected, "ids: row 29", "id")
    for ids in (7, b"abc", object()):
        check(
            lambda ids=ids: bidr.build_vectors(VECTORS, None, tmp_path / "x", ids=ids, plain=PLAIN), None, "ids: given"
        )


def test_ids_to_delete_and_to_get(index: Path) -> None:
    with bidr.open_writer(index) as writer, Client("http://made") as client:
        writer.add([Document(7, "", "seven"), Document(np.int64(8), "", "eight")])
        assert writer.find_existing([7, "8", np.int64(9)]) == {"7", "8"}
        assert writer.delete([7, np.uint8(8)]) == 2
        for value, expected in IDS.values():
            if expected is None and value is not NOTHING:
                for call in (writer.delete, writer.find_existing, client.delete, client.get):
                    check(lambda call=call, value=value: call([value]), None, "ids: number 0")
        for ids in (b"78", 7, None, object()):
            for call in (writer.delete, writer.find_existing, client.delete, client.get):
                check(lambda call=call, ids=ids: call(ids), None, "ids: given")


def test_records_that_are_no_lists_of_them() -> None:
    documents, queries = [Document("d", "", "x")], [Query(1, "x")]
    data = Dataset.from_records(
        "made", documents, queries, {"test": {1: {"d": np.int64(1)}, "1": {np.str_("d"): True}}}
    )
    assert data.split("test").queries == [Query("1", "x")]
    assert data.split("test").qrels == {"1": {"d": 1}}
    for wrong in (None, 7, "abc", b"abc", [None], [("d", "", "x")], [{"id": "d"}], documents[0]):
        check(lambda wrong=wrong: Dataset.from_records("made", wrong), None, "made documents")
    for wrong in (
        None,
        7,
        "abc",
        b"abc",
        [None],
        [("q", "x")],
        [Query("q", None)],
        [Query(None, "x")],
        [Query("q", b"x")],
    ):
        check(lambda wrong=wrong: Dataset.from_records("made", documents, wrong), None, "made queries")
    for wrong in (
        7,
        [1],
        "abc",
        {"test": None},
        {"test": {"q": ["d"]}},
        {"test": {"q": {None: 1}}},
        {"test": {"q": {"d": None}}},
    ):
        check(lambda wrong=wrong: Dataset.from_records("made", documents, queries, wrong), None, "made qrels")


def test_paths_of_data_sets(tmp_path: Path) -> None:
    for wrong in (None, 7, b"folder", ["folder"], float("nan")):
        check(
            lambda wrong=wrong: bidr.load(wrong),
            None,
            "data: given",
            type(wrong).__name__ if wrong is not None else "None",
        )
    for wrong in ("no\0name", tmp_path / "nothing", np.str_("nothing")):
        check(lambda wrong=wrong: bidr.load(wrong), None, "does not exist")


def test_questions(index: Path) -> None:
    with bidr.open_index(index) as searcher, Client("http://made") as client:
        assert len(searcher.search(np.str_("boat"), 3)) == 3
        assert [len(found) for found in searcher.search(np.array(["boat", "river"]), np.int64(3))] == [3, 3]
        assert searcher.search([]) == []
        for wrong in (
            None,
            7,
            1.5,
            b"boat",
            Path("boat"),
            [None],
            ["boat", b"river"],
            [["boat"]],
            np.arange(3),
            NAType(),
        ):
            check(lambda wrong=wrong: searcher.search(wrong), None, "queries")
            check(lambda wrong=wrong: client.search(wrong), None, "queries")
            if wrong is not None:
                rows = np.ones((1, 32), np.float32)
                call = lambda wrong=wrong, rows=rows: searcher.search_vectors(rows, words=wrong, lexical=3)  # noqa: E731
                with pytest.raises((DataError, ConfigError)):
                    call()


def test_numbers_and_vectors_of_searches(index: Path) -> None:
    with bidr.open_index(index) as searcher:
        for name in ("k", "candidates", "lexical", "lexical_weight"):
            for wrong in ("3", b"3", [3], float("nan"), np.arange(3), 10**400 if name == "lexical_weight" else -1.5):
                with pytest.raises(ConfigError, match=f"{name}: given"):
                    searcher.search("boat", **{name: wrong})
        for wrong in (None, "abc", [["a"]], [[None] * 32], np.array([[object()] * 32]), b"abc", {"a": 1}):
            with pytest.raises(DataError):
                searcher.search_vectors(bidr.search.types.QueryVectors(wrong, wrong))
    for name in ("ef", "candidates", "fuse", "lexical", "lexical_weight"):
        with pytest.raises(ConfigError, match=f"{name}: given"):
            bidr.open_index(index, **{name: "3"})


def test_filters(index: Path) -> None:
    passing = [
        {"n": np.int64(3)},
        {"n": {"gte": np.float32(0.5), "lt": 10**400}},
        {"n": 10**400},
        {"n": {"any": [2**64, -(2**64)]}},
        {np.str_("lang"): np.str_("en")},
        {"lang": {"any": ("en", "de")}},
        {"lang": None},
    ]
    odd = [
        float("nan"),
        b"en",
        object(),
        Path("en"),
        [1],
        {"gte": None},
        {"any": "en"},
        {"any": []},
        NAType(),
        np.arange(2),
    ]
    with bidr.open_index(index) as searcher, bidr.open_writer(index) as writer:
        writer.add([Document("n", "", "boat", {"n": 3, "lang": "en", "f": 0.5, "t": True})])
        for asked in passing:
            searcher.search("boat", filter=asked)
        for name in ("n", "lang", "f", "t"):
            for value in odd:
                with pytest.raises(ConfigError, match="filter"):
                    searcher.search("boat", filter={name: value})
        for asked in (
            7,
            "lang",
            b"lang",
            [],
            {},
            [("lang", "en")],
            {7: 1},
            {b"a": 1},
            {None: 1},
            {("a",): 1},
            {"or": 7},
        ):
            with pytest.raises(ConfigError, match="filter"):
                searcher.search("boat", filter=asked)
        writer.delete(["n"])


def test_vectors_to_add(index: Path, tmp_path: Path) -> None:
    bidr.build_vectors(VECTORS, None, tmp_path / "plain", plain=PLAIN)
    document = Document("d", None, "x")
    with bidr.open_writer(tmp_path / "plain") as writer, Client("http://made") as client:
        assert writer.add([document], VECTORS[:1].tolist()) == 1
        for wrong in ("abc", [["a"] * DIM], 7, [1.0], {"a": 1}, [[None] * DIM], VECTORS[0], [VECTORS[0][:3]]):
            check(lambda wrong=wrong: writer.add([document], wrong), None, "vectors")
        for wrong in ("abc", [["a"] * DIM], 7, {"a": 1}, [[None] * DIM]):
            check(lambda wrong=wrong: client.add([document], wrong), None, "vectors")


def test_parquet_columns_of_pandas(tmp_path: Path) -> None:
    def documents(**columns: Any) -> list[Document]:
        parquet.write_table(pa.table(columns), tmp_path / "corpus.parquet")
        return list(bidr.load(tmp_path).corpus)

    nothing = pa.array([float("nan"), None], pa.float64())  # a column of missing strings, as pandas writes it
    assert documents(_id=[1, 2], title=nothing, text=["x", None]) == [Document("1", "", "x"), Document("2", "", "")]
    check(lambda: documents(_id=[1.0, 2.0], text=["x", "y"]), None, "corpus.parquet row 1", "id is 1.0")
    check(lambda: documents(_id=["1", "2"], text=[b"x", b"y"]), None, "row 1", "text is b'x' (bytes)")
    check(lambda: documents(_id=["1", "2"], title=[1.5, 2.5], text=["x", "y"]), None, "row 1", "title is 1.5 (float)")


class Answering(BaseHTTPRequestHandler):
    """Keeps connections open, as `bidr serve` does."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps({"results": [{"answers": [], "timings": {}}], "generation": 1}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


FORGOTTEN = """
import asyncio, logging, sys
logging.getLogger("asyncio").setLevel("ERROR")  # with -X dev it tells of all that takes 0.1 s
import bidr
index, url, how = sys.argv[1:]
searcher = bidr.open_index(index)
searcher.search(["boat", "river"], 5, lexical=5, filter={"not": {"n": 1}})
writer = bidr.open_writer(index)
writer.add([bidr.Document("forgotten", None, "text")])
searcher.search("boat")
client = bidr.Client(url)
client.search("boat")
several = bidr.AsyncClient(url)
async def ask():
    await several.search("boat")
    await several.search("boat")
for _ in range(2):
    asyncio.run(ask())
if how == "cycle":
    searcher.itself, writer.itself, client.itself = searcher, writer, client
if how == "error":
    raise SystemExit(7)
if how == "refused":
    try:
        writer.add([bidr.Document(None, None, None)])
    except bidr.errors.BidrError as error:
        kept = error
"""


@pytest.mark.parametrize(
    "how", ["cycle", *(pytest.param(how, marks=pytest.mark.slow) for how in ("plain", "error", "refused"))]
)
def test_what_is_not_closed_is_let_go_in_silence(index: Path, url: str, how: str) -> None:
    flags = ("-X", "dev", "-W", "error")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(
        [sys.executable, *flags, "-c", FORGOTTEN, str(index), url, how],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (7 if how == "error" else 0, "", "")
    with bidr.open_writer(index) as writer:
        assert writer.delete(["forgotten"]) == 1
