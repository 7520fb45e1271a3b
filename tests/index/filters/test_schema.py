"""The schema counts what alive documents hold, in segments and in the log alike."""

from sample_live_index import built, some, writer

from bidr.data.types import Document
from bidr.index.live.live_reader import LiveIndex

ATTRIBUTES = [
    {"lang": "en", "n": 3, "open": True, "tags": ["a", "b"], "day": "2024-03-01"},
    {"lang": "en", "n": 1.5, "open": False, "tags": [], "day": "2024-02-28T23:00:00-02:00"},
    {"lang": 7, "tags": ["b"], "day": "2024-02-29"},
    {"lang": "never seen", "n": 99},
    None,
]
EXPECTED = [
    {"name": "day", "type": "time", "documents": 3, "lists": False, "min": "2024-02-29", "max": "2024-03-01"},
    {"name": "lang", "type": "number", "documents": 1, "min": 7, "max": 7},
    {"name": "lang", "type": "string", "documents": 2, "examples": ["en"], "lists": False},
    {"name": "n", "type": "number", "documents": 2, "min": 1.5, "max": 3},
    {"name": "open", "type": "boolean", "documents": 2, "true": 1, "false": 1},
    {"name": "tags", "type": "string", "documents": 2, "examples": ["b", "a"], "lists": True},
]


def describe(index) -> list[dict]:
    return [
        {name: value for name, value in field.items() if name != "examples" or field["type"] != "time"}
        for field in LiveIndex.open(index).latest().describe_attributes()
    ]


def test_the_schema_is_that_of_the_alive_documents(tmp_path):
    documents = [Document(f"doc-{row}", "", "", attributes) for row, attributes in enumerate(ATTRIBUTES)]
    whole = built(tmp_path / "whole", len(documents), documents)
    with writer(whole) as live:
        live.delete(["doc-3"])
        assert describe(whole) == EXPECTED
        live.compact()
    assert describe(whole) == EXPECTED
    parts = built(tmp_path / "parts", 1, documents[:1])
    with writer(parts) as live:
        live.add(documents[1:], some(range(1, len(documents)))[1])
        live.delete(["doc-3"])
        assert describe(parts) == EXPECTED
        live.flush()
    assert describe(parts) == EXPECTED
