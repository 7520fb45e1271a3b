"""The command line from texts and a pretrained encoder: build, search, add, evaluate, inspect, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from cli_data import Run, beir_folder
from sample_encoder_index import make_documents, make_encoder, write_beir

from bidr.data.types import Document
from bidr.pipeline.index_encoder import open_index_encoder

CODES = ("--bytes-per-doc", "4")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_beir(tmp_path / "data", make_documents())


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    return make_encoder(tmp_path / "encoder")


def search(bidr: Run, index: Path, out: Path, *flags: object) -> list[str]:
    result = bidr("search", "--index", index, "--json", out, "--k", "3", *flags)
    assert result.code == 0, result.err
    return [answer["id"] for answer in json.loads(out.read_text())["answers"]]


def test_texts_are_built_searched_added_and_inspected_in_words(bidr: Run, data, encoder, tmp_path) -> None:
    index, out = tmp_path / "index", tmp_path / "out.json"
    built = bidr("build", "--data", data, "--encoder", encoder, "--out", index, "--lexical", *CODES)
    assert built.code == 0, built.err
    assert f"bidr search --index {index} WORDS ..." in built.out
    assert len(search(bidr, index, out, "pearl earring", "--lexical", "20", "--lexical-weight", ".3")) == 3
    new = tmp_path / "new.jsonl"
    new.write_text(json.dumps({"_id": "new", "title": "", "text": "oysters pearl oysters"}) + "\n")
    assert bidr("add", index, new).code == 0
    assert search(bidr, index, out, "oysters pearl oysters")[0] == "new"
    inspected = bidr("inspect", index)
    assert f"{encoder.resolve()} (" in inspected.out, inspected.err


def test_an_encoder_is_attached_where_vectors_were_given(bidr: Run, data, encoder, tmp_path) -> None:
    vectors = open_index_encoder(encoder).encode_documents(make_documents())
    np.save(tmp_path / "vectors.npy", vectors)
    index, out, other = tmp_path / "index", tmp_path / "out.json", make_encoder(tmp_path / "other", seed=4)
    given = ("--vectors", tmp_path / "vectors.npy", "--data", data, *CODES)
    assert bidr("build", *given, "--out", index).code == 0
    assert search(bidr, index, out, "pearl", "--encoder", encoder)
    refused = bidr("search", "--index", index, "--encoder", other, "pearl")
    assert refused.code == 2
    assert "did not make the vectors" in refused.err
    new = tmp_path / "new.jsonl"
    new.write_text(json.dumps({"_id": "new", "title": "", "text": "oysters pearl oysters"}) + "\n")
    assert bidr("add", index, new, "--encoder", other).code == 2
    assert bidr("add", index, new).code == 2
    assert bidr("add", index, new, "--encoder", encoder).code == 0
    assert search(bidr, index, out, "oysters pearl oysters", "--encoder", encoder)[0] == "new"
    recorded = bidr("build", *given, "--encoder", encoder, "--out", tmp_path / "recorded")
    assert recorded.code == 0, recorded.err
    assert search(bidr, tmp_path / "recorded", out, "pearl")


def test_an_index_with_an_encoder_is_evaluated_in_words(bidr: Run, encoder, tmp_path) -> None:
    data, index = beir_folder(tmp_path / "judged"), tmp_path / "index"
    built = bidr("build", "--data", data, "--encoder", encoder, "--out", index, *CODES)
    assert built.code == 0, built.err
    assert bidr("evaluate", "--index", index, "--data", data).code == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "--data given without --encoder, --model or --vectors"),
        (("--encoder", "ENCODER", "--model", "m"), "--encoder and --model given, expected one of them"),
        (("--model", "m", "--learn"), "--learn given without --data and --encoder"),
        (("--model", "m", "--query-prompt", "q"), "--query-prompt given without --encoder"),
        (("--encoder", "/nowhere/e"), "no such folder"),
        (("--encoder", "ENCODER", "--bytes-per-doc", "0"), "bytes_per_doc: given 0"),
        (("--encoder", "ENCODER", "--dims", "99"), "dims: given 99"),
    ],
)
def test_what_cannot_be_built_is_one_error_and_leaves_nothing(bidr: Run, data, encoder, tmp_path, flags, message):
    given = [str(encoder) if flag == "ENCODER" else flag for flag in flags]
    result = bidr("build", "--data", data, "--out", tmp_path / "index", *given)
    assert (result.code, len(result.err.strip().splitlines())) == (2, 1), result.err
    assert message in result.err
    assert not (tmp_path / "index").exists()


def test_a_model_of_texts_takes_no_encoder(bidr: Run, encoder, tmp_path) -> None:
    from sample_text_index import words_index

    index = words_index(tmp_path / "texts", 100)
    for verb in (("search", "--index", index, "clock"), ("add", index, tmp_path / "new.jsonl")):
        (tmp_path / "new.jsonl").write_text('{"_id": "a", "text": "clock"}\n')
        refused = bidr(*verb, "--encoder", encoder)
        assert refused.code == 2
        assert "has a model with text encoders of its own" in refused.err


def test_a_document_without_text_is_encoded_as_such(bidr: Run, encoder, tmp_path) -> None:
    documents = [*make_documents(60), Document("empty", "", "")]
    index, data = tmp_path / "index", write_beir(tmp_path / "data", documents)
    assert bidr("build", "--data", data, "--encoder", encoder, "--out", index, *CODES).code == 0
    assert search(bidr, index, tmp_path / "out.json", "pearl")
