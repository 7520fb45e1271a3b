"""Codes learned with 16 codewords a book: the whole way of an index over them is that of the others."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sample_vectors import CONFIG, QUICK, made_vectors

import bidr
from bidr.data.types import Document
from bidr.index.reader import IndexReader
from bidr.models.codes_only_model import CodesOnlyModel
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.exact_search import search_vectors
from bidr.training.codes_only.candidate_recall import compute_found_share

TRAIN, DEPTH, KEPT = 300, 15, 1_000
SMALL = replace(CONFIG, bytes_per_doc=4, codewords=16)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CodesOnlyModel:
    documents, questions = made_vectors()
    out = tmp_path_factory.mktemp("small") / "model"
    return bidr.train_vectors(documents, questions[:TRAIN], out, SMALL, metric="ip")


def built(model: CodesOnlyModel, folder: Path, engine: str, count: int = KEPT) -> Path:
    documents, _ = made_vectors()
    names = [f"d{row}" for row in range(count)]
    return bidr.build_vectors(documents[:count], model, folder / engine, ids=names, engine=engine)


def ids(index: Path, questions: np.ndarray, candidates: int) -> list[list[str]]:
    with bidr.open_index(index) as searcher:
        ranking = searcher.search_vectors(questions, 10, candidates)
        return [[answer.id for answer in answers] for answers in searcher.load_results(ranking)]


def test_they_take_the_same_bytes_and_learn(model: CodesOnlyModel, tmp_path: Path) -> None:
    documents, questions = made_vectors()
    assert (model.codebooks.books, model.codebooks.words, model.codebooks.bytes_per_doc) == (8, 16, 4)
    assert model.training["config"]["codewords"] == 16
    begun = replace(SMALL, frozen=replace(QUICK, steps=0))
    start = bidr.train_vectors(documents, questions[:TRAIN], tmp_path / "begun", begun, metric="ip")
    best = search_vectors(questions[TRAIN:], documents, 10).rows

    def share(of: CodesOnlyModel) -> float:
        scores = of.queries(questions[TRAIN:])[0] @ _said(of, documents).T
        return compute_found_share(np.argsort(-scores, axis=1)[:, :DEPTH], best)

    assert share(model) > share(start) + 0.03


def _said(model: CodesOnlyModel, documents: np.ndarray) -> np.ndarray:
    codes = model.additive.encode(model.documents(documents))
    assert codes.max() == 15
    return model.additive.codewords[np.arange(codes.shape[1]), codes].sum(axis=1)


@pytest.mark.parametrize("engine", ["scan", "lists", "hnsw"])
def test_an_index_of_them_is_searched_added_to_compacted_and_verified(
    model: CodesOnlyModel, tmp_path: Path, engine: str
) -> None:
    documents, questions = made_vectors()
    index = built(model, tmp_path, engine)
    with bidr.open_writer(index) as writer:
        more = [Document(f"d{row}", "", "") for row in range(KEPT, len(documents))]
        writer.add(more, documents[KEPT:])
        added = ids(index, questions[TRAIN:], len(documents))
        writer.compact()
    whole = built(model, tmp_path / "whole", engine, len(documents))
    expected = ids(whole, questions[TRAIN:], len(documents))
    assert added == expected
    assert ids(index, questions[TRAIN:], len(documents)) == expected
    with bidr.open_index(index) as searcher:
        searcher.reader.verify()


def test_faiss_finds_with_what_was_exported_what_the_scan_finds(model: CodesOnlyModel, tmp_path: Path) -> None:
    _, questions = made_vectors()
    asked = model.queries(questions[TRAIN:])[0]
    with IndexReader.open(built(model, tmp_path, "scan")) as reader:
        scores, places = reader.candidates.search(asked, DEPTH)
        found, rows = reader.to_faiss().search(asked, DEPTH)
        np.testing.assert_allclose(found, scores, rtol=1e-4)
        assert (rows == reader.rows_of(places)).mean() > 0.99


def test_searching_holds_one_table_of_codewords_and_no_other_copy(model: CodesOnlyModel, tmp_path: Path) -> None:
    index = built(model, tmp_path, "scan")
    with IndexReader.open(index) as reader:
        held = reader.candidates.store._tables.nbytes  # type: ignore[attr-defined]
        assert held == model.codebooks.centroids.nbytes
        assert all(isinstance(array, np.memmap) for array in reader.codebooks if array is not None)
        for given, kept in zip(model.codebooks, reader.codebooks, strict=True):
            assert (given is None) == (kept is None)
            assert given is None or np.array_equal(given, kept)
    model = CodesOnlyModel(model.folder)
    model.queries(made_vectors()[1][:1])
    assert not {"additive", "codebooks"} & set(vars(model)), "a search loads what turns queries alone"


def test_a_run_begun_before_there_was_a_choice_goes_on(tmp_path: Path) -> None:
    """Its folder says nothing of codewords."""
    documents, questions = made_vectors()
    first = bidr.train_vectors(documents, questions[:TRAIN], tmp_path / "m", CONFIG, metric="ip")
    assert "codewords" not in (tmp_path / "m" / "work" / "run.json").read_text()
    again = bidr.train_vectors(documents, questions[:TRAIN], tmp_path / "m", CONFIG, metric="ip")
    assert again.fingerprint == first.fingerprint
    assert isinstance(again.codebooks, Codebooks)
