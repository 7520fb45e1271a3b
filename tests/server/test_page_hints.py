"""What GET /v1/index says to people: attributes with sample values, and titles as example queries."""

import pytest
from sample_encoder_index import make_encoder
from sample_server import ask, opened

import bidr
from bidr.data.types import Document


@pytest.fixture
def index(tmp_path):
    documents = [
        Document(
            f"d{row}",
            f"Title number {row}" if row % 2 else "",
            "oysters by night " * 20,
            {"year": 2000 + row % 3, "open": row % 2 == 0, "tags": ["b", "a"], "note": "x" * 500},
        )
        for row in range(40)
    ]
    data = bidr.Dataset.from_records("made", documents)
    encoder = make_encoder(tmp_path / "static")
    return bidr.build(data, encoder=encoder, out=tmp_path / "index", plain=bidr.PlainCodes(bytes_per_doc=4))


def describe(index):
    return ask(opened(index), "GET", "/v1/index").json()


def test_attributes_have_kinds_and_sample_values_in_order(index):
    assert describe(index)["attributes"] == [
        {"name": "note", "kind": "string", "values": []},  # too long to choose from
        {"name": "open", "kind": "boolean", "values": [False, True]},
        {"name": "tags", "kind": "string", "values": ["a", "b"]},
        {"name": "year", "kind": "number", "values": [2000, 2001, 2002]},
    ]


def test_examples_are_titles_or_the_beginning_of_a_text_cut_at_a_word(index):
    examples = describe(index)["examples"]
    assert 1 <= len(examples) <= 4
    for example in examples:
        assert example.startswith(("Title number", "oysters by night"))
        assert len(example) <= 70
        assert example.split()[-1].isdigit() or example.split()[-1] in ("oysters", "by", "night")


def test_attributes_of_added_documents_are_listed_and_deleted_ones_give_no_values(index):
    with bidr.open_writer(index) as writer:
        writer.add([Document("new", "", "pearl", {"place": "Oslo"})])
        writer.delete([f"d{row}" for row in range(40) if row % 3 == 0])
    attributes = {entry["name"]: entry["values"] for entry in describe(index)["attributes"]}
    assert attributes["place"] == ["Oslo"]
    assert attributes["year"] == [2001, 2002]


def test_the_encoder_is_named_without_its_folders(index):
    assert describe(index)["encoder"] == "static"
