"""Half of a surrogate pair has no form in UTF-8: no way in lets one through, and none answers with a traceback."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes

import httpx
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from sample_index import clustered
from sample_server import BOOKS, DIM, asking, opened
from sample_text_index import words_index

import bidr
from bidr.cli import main
from bidr.client import Client
from bidr.data.dataset import Dataset
from bidr.data.types import Document, Query
from bidr.data.vector_ids import read_ids
from bidr.errors import BidrError, ConfigError, DataError
from bidr.index.builder.build import build_index
from bidr.index.live.writer import LiveWriter
from bidr.search.searcher import Searcher

VECTORS = clustered(30, DIM, 0)
DOCUMENT = Document("a", "Title", "Text", {"lang": "en"})
JSON, RAW = {"content-type": "application/json"}, {"content-type": "application/octet-stream"}
Call = Callable[[str], Any]

surrogates = st.builds(
    "{}{}{}".format,
    st.text(max_size=3),
    st.integers(0xD800, 0xDFFF).map(chr),
    st.text(st.characters(categories=("L", "Cs")), max_size=3),
)


def is_unicode(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> Path:
    return words_index(tmp_path_factory.mktemp("surrogates"), 60, lexical="prepend")


@pytest.fixture(scope="module")
def searcher(index):
    with bidr.open_index(index) as searcher:
        yield searcher


@pytest.fixture(scope="module")
def writer(index):
    with bidr.open_writer(index) as writer:
        yield writer


def client() -> Client:
    def answer(request: httpx.Request) -> httpx.Response:
        raise AssertionError(f"sent {request.url} {request.content[:100]!r}")

    return Client("http://made", transport=httpx.MockTransport(answer))


def records(**fields: Any) -> Dataset:
    qrels = {"test": {fields.get("judging", "q"): {fields.get("judged", "a"): 1}}}
    queries = [Query(fields.get("query_id", "q"), fields.get("query", "words"))]
    return Dataset.from_records("made", [DOCUMENT], queries, qrels)


DOCUMENTS: dict[str, Callable[[str], Document]] = {
    "id": lambda bad: DOCUMENT._replace(id=bad),
    "title": lambda bad: DOCUMENT._replace(title=bad),
    "text": lambda bad: DOCUMENT._replace(text=bad),
    "attribute name": lambda bad: DOCUMENT._replace(attributes={bad: 1}),
    "attribute": lambda bad: DOCUMENT._replace(attributes={"lang": bad}),
    "attribute in a list": lambda bad: DOCUMENT._replace(attributes={"lang": ["en", bad]}),
}
FILTERS: dict[str, Call] = {
    "name": lambda bad: {bad: 1},
    "value": lambda bad: {"lang": bad},
    "any": lambda bad: {"lang": {"any": ["en", bad]}},
    "bound": lambda bad: {"not": {"lang": {"gte": bad}}},
}
FIELDS = ("judging", "judged", "query_id", "query")
IN_PYTHON: dict[str, Call] = {
    **{f"from_records {name}": (lambda bad, name=name: records(**{name: bad})) for name in FIELDS},
    **{
        f"from_records {name}": (lambda bad, change=change: Dataset.from_records("made", [DOCUMENT, change(bad)]))
        for name, change in DOCUMENTS.items()
    },
    "ids": lambda bad: read_ids([bad], 1, "documents"),
    **{
        f"client.add {name}": (lambda bad, change=change: client().add([change(bad)]))
        for name, change in DOCUMENTS.items()
    },
    "client.search": lambda bad: client().search(bad),
    "client.search many": lambda bad: client().search(["words", bad]),
    "client.delete": lambda bad: client().delete([bad]),
    "client.get": lambda bad: client().get([bad]),
    **{f"client filter {name}": (lambda bad, f=f: client().search("x", filter=f(bad))) for name, f in FILTERS.items()},
    **{
        f"client filter {name}, vectors": (lambda bad, f=f: client().search_vectors([[1, 2]], filter=f(bad)))
        for name, f in FILTERS.items()
    },
}


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(BidrError) as caught:
        call()
    assert isinstance(caught.value, DataError | ConfigError)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


@pytest.mark.parametrize("way", IN_PYTHON)
@given(bad=surrogates)
@settings(max_examples=10, deadline=None)
def test_python_refuses_it_before_anything_is_stored_or_sent(way: str, bad: str) -> None:
    assert "surrogate" in refused(lambda: IN_PYTHON[way](bad))


@pytest.mark.parametrize("field", DOCUMENTS)
@given(bad=surrogates)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_writer_refuses_it(writer: LiveWriter, field: str, bad: str) -> None:
    before = writer.view.count
    assert "surrogate" in refused(lambda: writer.add([DOCUMENT._replace(id="b"), DOCUMENTS[field](bad)]))
    assert writer.view.count == before


@given(bad=surrogates)
@settings(max_examples=10, deadline=None)
def test_a_searcher_refuses_it(searcher: Searcher, bad: str) -> None:
    rows = np.ones((1, 32), np.float32)
    for call in (
        lambda: searcher.search(bad),
        lambda: searcher.search(["words", bad], lexical=5),
        lambda: searcher.encode([bad]),
        lambda: searcher.search_vectors(rows, words=[bad], lexical=5),
        *(lambda f=f: searcher.search("words", filter=f(bad)) for f in FILTERS.values()),
    ):
        assert "surrogate" in refused(call)


@given(bad=surrogates)
@settings(max_examples=10, deadline=None)
def test_a_corpus_file_names_the_line_or_is_repaired_and_that_is_counted(tmp_path_factory, bad: str) -> None:
    """Ids and questions are refused, texts repaired, attributes left out: a corpus of millions may hold one."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\t1\t1\n")
    read = json.loads(json.dumps(bad))  # two halves that fit are one character in JSON

    def corpus(*rows: dict[str, Any], query: str = "words") -> Dataset:
        (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": query}) + "\n")
        return bidr.load(folder)

    whole = {"_id": "1", "text": "x"}
    data = corpus(whole, {"_id": "2", "title": bad, "text": bad, "metadata": {"a": bad, f"n{bad}": 1, "b": ["c", bad]}})
    _, found = data.corpus
    assert is_unicode(found.title + found.text)
    if is_unicode(read):
        assert (found.title, found.text, found.attributes) == (read, read, {"a": read, f"n{read}": 1, "b": ["c", read]})
        return
    assert "\ufffd" in found.text
    assert found.attributes is None
    assert data.corpus.dropped_fields is not None
    assert (data.corpus.dropped_fields.repaired, data.corpus.dropped_fields.count) == (2, 3)
    assert "corpus.jsonl line 2: field '_id'" in refused(lambda: list(corpus(whole, {"_id": bad, "text": ""}).corpus))
    assert "queries.jsonl line 1: text" in refused(lambda: corpus(whole, query=bad).split("test"))


def test_repaired_surrogates_are_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "corpus.jsonl").write_text("".join(f'{{"_id": "{row}", "text": "\\ud800"}}\n' for row in range(20)))
    data = bidr.load(tmp_path)
    bidr.build_vectors(VECTORS[:20], None, tmp_path / "index", data=data, plain=bidr.PlainCodes(4, codewords=16))
    told = capsys.readouterr().err
    assert told.count("20 titles and texts are not valid Unicode") == told.count("U+FFFD") == 1
    assert f"the first 'text' of {tmp_path}/corpus.jsonl line 1" in told
    with bidr.open_index(tmp_path / "index") as searcher:
        assert searcher.search_vectors(VECTORS[:1], 1).view.documents.document(0).text == "\ufffd"


def test_parquet_and_npy_are_held_to_the_same(tmp_path: Path) -> None:
    column = pa.Array.from_buffers(pa.string(), 1, pa.array([b"a\xed\xa0\x80"]).buffers())
    parquet.write_table(pa.table({"_id": ["1"], "title": column, "text": column}), tmp_path / "corpus.parquet")
    corpus = bidr.load(tmp_path).corpus
    (found,) = corpus
    assert found.title == found.text == "a\ufffd\ufffd\ufffd"
    assert corpus.dropped_fields is not None
    assert corpus.dropped_fields.repaired == 2
    parquet.write_table(pa.table({"_id": column, "text": ["x"]}), tmp_path / "corpus.parquet")
    assert "corpus.parquet row 1: id is b'a" in refused(lambda: list(bidr.load(tmp_path).corpus))
    np.save(tmp_path / "ids.npy", np.array(["a", "\ud800"]))
    assert "ids.npy: row 1: id '\\ud800'" in refused(lambda: read_ids(tmp_path / "ids.npy", 2, "documents"))


@pytest.mark.parametrize("verb", ["search", "add", "delete", "build", "evaluate", "serve", "no verb"])
@given(byte=st.integers(0xDC80, 0xDCFF))
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_command_line_refuses_bytes_that_are_no_text(capfd, verb: str, byte: int) -> None:
    """What Python makes of such arguments are halves of surrogate pairs."""
    assert main([verb, "--index", "INDEX", f"caf{chr(byte)}"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("bidr: argument 4: given 'caf\\udc")
    assert err.count("\n") == 1


@pytest.fixture(scope="module")
def old(tmp_path_factory) -> Path:
    """An index of the time when such documents were taken."""
    folder = tmp_path_factory.mktemp("old") / "index"
    documents = [Document(f"doc-{row}", "Title", "Text") for row in range(len(VECTORS))]
    documents[3] = Document("\ud8003", "\udfff title", "text \ud800", {"\ud800": "\udfff", "tags": ["\ud800"]})
    build_index(folder, codebooks=BOOKS, codes=BOOKS.encode(VECTORS), vectors=VECTORS, documents=documents, unit=True)
    return folder


def ask(index: Path, *requests: tuple[str, str, dict[str, Any]]) -> list[httpx.Response]:
    service = opened(index)

    async def go() -> list[httpx.Response]:
        async with asking(service) as client:
            return [await client.request(method, path, **options) for method, path, options in requests]

    return asyncio.run(go())


@given(bad=surrogates.filter(lambda bad: not is_unicode(json.loads(json.dumps(bad)))))
@settings(max_examples=10, deadline=None)
def test_http_answers_400_or_422(old: Path, bad: str) -> None:
    vector = VECTORS[0].tolist()
    bodies = [
        {"texts": [bad]},
        *({"vectors": [vector], "filter": change(bad)} for change in FILTERS.values()),
        {"vectors": [vector], "model": bad},
        {"vectors": [vector], bad: 1},
    ]
    requests = [("POST", "/v1/search", {"content": json.dumps(body), "headers": JSON}) for body in bodies]
    raw = bad.encode("utf-8", "surrogatepass")
    name = quote_from_bytes(raw, safe="")
    by_bytes = {"content": VECTORS[:1].tobytes(), "headers": RAW}
    requests += [
        ("GET", f"/v1/documents?id={name}", {}),
        ("POST", f"/v1/search?filter=%7B%22lang%22%3A%22{name}%22%7D", by_bytes),
        ("POST", "/v1/search", {"content": b'{"texts": ["%b"]}' % raw, "headers": JSON}),
    ]
    for response in ask(old, *requests):
        assert response.status_code in (400, 422), response.text
        assert set(response.json()["error"]) == {"type", "message", "given", "expected", "hint"}


def test_what_an_index_holds_of_old_is_answered_merged_and_deleted(old: Path, tmp_path: Path) -> None:
    """It was a 500 for every search that found the document."""
    bidr.snapshot(old, tmp_path / "copy", copy=True)
    asked = {"json": {"vectors": [VECTORS[3].tolist()], "k": 1}}
    for _ in range(2):
        (response,) = ask(tmp_path / "copy", ("POST", "/v1/search", asked))
        (found,) = response.json()["results"][0]["answers"]
        assert (found["id"], found["title"], found["text"]) == ("\ufffd3", "\ufffd title", "text \ufffd")
        assert found["attributes"] == {"\ufffd": "\ufffd", "tags": ["\ufffd"]}
        with bidr.open_writer(tmp_path / "copy") as writer:
            writer.add([Document("new", "", "")], VECTORS[:1])
            writer.compact()
    with bidr.open_writer(tmp_path / "copy") as writer:
        assert writer.delete(["\ud8003"]) == 1
