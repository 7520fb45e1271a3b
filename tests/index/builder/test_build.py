import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_index import clustered, documents, random_codebooks, small_index

from bidr.data.types import Document
from bidr.errors import ConfigError, DataError, IndexFolderError
from bidr.index.builder import coarse_clustering as clusters
from bidr.index.builder.build import build_index
from bidr.index.code_packing import unpack
from bidr.index.faiss_conversion import import_faiss
from bidr.index.reader import IndexReader
from bidr.index.vectors import VectorFile
from bidr.search.searcher import Searcher
from bidr.search.types import QueryVectors


def arrays(count: int = 30, dim: int = 16) -> dict:
    vectors, codebooks = clustered(count, dim), random_codebooks(dim, 4)
    return {"codebooks": codebooks, "codes": codebooks.encode(vectors), "vectors": vectors}


def test_what_went_in_comes_out(tmp_path):
    given_arrays = arrays()
    build_index(tmp_path / "i", documents=iter(documents(30)), **given_arrays)
    with IndexReader.open(tmp_path / "i") as reader:
        assert [reader.documents.document(row) for row in range(30)] == documents(30)
        rows = np.array([7, 3, 3, 29, 0])
        assert reader.documents.ids(rows) == [f"doc-{row}" for row in rows]
        halves = given_arrays["vectors"].astype(np.float16)
        np.testing.assert_array_equal(reader.vectors.read(rows), halves[rows].astype(np.float32))
        query = given_arrays["vectors"][0]
        np.testing.assert_allclose(
            reader.vectors.score(rows, query), halves[rows].astype(np.float32) @ query, atol=1e-6
        )
        np.testing.assert_array_equal(reader.codebooks.centroids, given_arrays["codebooks"].centroids)
        np.testing.assert_array_equal(np.load(tmp_path / "i" / "000001" / "vectors.npy"), halves)


@pytest.mark.parametrize("engine", ["scan", "lists", "hnsw"])
@pytest.mark.parametrize("words", [16, 256])
def test_codes_leave_as_faiss_and_numpy_in_the_order_of_rows(tmp_path, engine, words):
    vectors, codebooks = clustered(500, 24), random_codebooks(24, 3, words)
    codes = codebooks.encode(vectors)
    build_index(tmp_path / "i", codebooks=codebooks, codes=codes, vectors=vectors, engine=engine)
    with IndexReader.open(tmp_path / "i") as reader:
        again, stored = import_faiss(reader.to_faiss())
        np.testing.assert_array_equal(stored, codes)
        np.testing.assert_array_equal(again.centroids, codebooks.centroids)
        order = np.arange(500) if reader.order is None else np.asarray(reader.order)
        halves = vectors.astype(np.float16)
        np.testing.assert_array_equal(reader.vectors.read(np.arange(500)), halves[order].astype(np.float32))
        assert (engine != "scan") == (reader.order is not None)
        assert sorted(order) == list(range(500))
    packed = np.load(tmp_path / "i" / "000001" / "codes.npy")
    np.testing.assert_array_equal(unpack(packed, 3, codebooks.bits), codes[order])


@pytest.mark.parametrize("engine", ["scan", "lists", "hnsw"])
def test_documents_that_stand_in_another_order_are_named_right(tmp_path, monkeypatch, engine):
    monkeypatch.setattr(clusters, "MIN_ORDERED_DOCUMENTS", 10)
    vectors, codebooks = clustered(700, 24), random_codebooks(24, 4)
    names = [f"x{row}" for row in range(700)]
    codes = codebooks.encode(vectors)
    build_index(tmp_path / "i", codebooks=codebooks, codes=codes, vectors=vectors, ids=names, engine=engine)
    with IndexReader.open(tmp_path / "i") as reader:
        assert (np.diff(reader.order) < 0).any()
        ranking = Searcher(reader).search_vectors(QueryVectors(vectors[:50], vectors[:50]), 1, 700)
        assert reader.documents.ids(ranking.rows[:, 0]) == names[:50]


def test_ids_alone_and_no_ids(tmp_path):
    build_index(tmp_path / "ids", ids=(f"x{row}" for row in range(30)), **arrays())
    with IndexReader.open(tmp_path / "ids") as reader:
        assert reader.documents.ids([2, 1]) == ["x2", "x1"]
        assert reader.documents.document(1) is None
    build_index(tmp_path / "rows", **arrays())
    with IndexReader.open(tmp_path / "rows") as reader:
        assert reader.documents.ids(np.array([2, 29])) == ["2", "29"]
        with pytest.raises(DataError, match="allowed: 0 to 29"):
            reader.documents.id(30)


@given(st.lists(st.tuples(st.text(min_size=1), st.text(), st.text()), min_size=1, max_size=8, unique_by=lambda d: d[0]))
@settings(max_examples=40, deadline=None)
def test_any_text_survives(tmp_path_factory, texts):
    given_documents = [Document(*fields) for fields in texts]
    folder = tmp_path_factory.mktemp("any") / "i"
    build_index(folder, documents=given_documents, **arrays(len(texts)))
    with IndexReader.open(folder) as reader:
        assert [reader.documents.document(row) for row in range(len(texts))] == given_documents


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 70_000.0, -1e30])
def test_values_that_fp16_cannot_hold_are_refused_with_their_row(tmp_path, value):
    given_arrays = arrays()
    given_arrays["vectors"][17, 3] = value
    with pytest.raises(DataError, match="row 17 holds"):
        build_index(tmp_path / "i", **given_arrays)
    assert [entry.name for entry in (tmp_path / "i").iterdir()] == [".lock", ".next"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vectors": clustered(29, 16)}, "30 codes but 29 vectors"),
        ({"vectors": np.zeros((30, 16), dtype=np.int8)}, "expected floats"),
        ({"vectors": np.zeros(30, dtype=np.float32)}, "expected floats"),
        ({"documents": documents(29)}, "29 given, but codes for 30"),
        ({"documents": documents(31)}, "more than the 30"),
        ({"ids": ["a"] * 30}, "rows 0 and 1 have the same id"),
        ({"ids": [""] * 30}, "row 0 has the id ''"),
    ],
)
def test_parts_that_do_not_fit_are_refused(tmp_path, change, message):
    with pytest.raises(DataError, match=message):
        build_index(tmp_path / "i", **{**arrays(), **change})
    with pytest.raises(IndexFolderError, match="no index here"):
        IndexReader.open(tmp_path / "i")


def test_options_that_cannot_work_are_refused(tmp_path):
    for options in ({"engine": "x"}, {"ef_construction": 0}, {"ids": ["a"], "documents": documents(1)}, {"keep": -1}):
        with pytest.raises(ConfigError, match="given"):
            build_index(tmp_path / "i", **arrays(), **options)


def test_describe_counts_every_byte(tmp_path):
    small_index(tmp_path / "i", engine="hnsw")
    with IndexReader.open(tmp_path / "i") as reader:
        facts = reader.describe()
    assert facts["model"] == {"fingerprint": "fp-a", "folder": "runs/a"}
    assert facts["engine"] == "hnsw"
    assert facts["documents"] == 60
    assert facts["ram_bytes_per_document"]["codes"] == 2
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "i" / "000001").iterdir()}
    del sizes["manifest.json"]
    assert facts["disk_bytes"] == sizes


def test_rows_that_are_not_there_are_refused(tmp_path):
    small_index(tmp_path / "i")
    with VectorFile.open(tmp_path / "i" / "000001" / "vectors.npy") as vectors:
        for rows in ([0, 60], [-1]):
            with pytest.raises(DataError, match="expected 0 to 59"):
                vectors.read(np.array(rows))
        assert vectors.read(np.array([], dtype=np.int64)).shape == (0, 16)


def test_a_file_size_limit_leaves_the_old_index(tmp_path):
    """The real refusal of a real kernel, in a process of its own."""
    small_index(tmp_path / "i")
    script = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parents[2] / "helpers")!r})
from sample_index import small_index
from bidr.errors import StorageError
for limit in (100, 1000, 3000, 20000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        small_index({str(tmp_path / "i")!r}, count=400, engine="hnsw")
    except StorageError as error:
        print("refused", error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.count("refused cannot write") == 4, done.stdout
    with IndexReader.open(tmp_path / "i") as reader:
        reader.verify()
        assert reader.count == 60
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 100
    assert sorted(entry.name for entry in (tmp_path / "i").iterdir()) == [".lock", ".next", "000001", "CURRENT"]
