"""An index as plain files: what they hold, that the lines of README and docs read them, and that they appear whole."""

import json
import re
import shutil
from pathlib import Path

import faiss
import numpy as np
import pytest
from sample_index import clustered, fitted, random_codebooks
from sample_live_index import built, some, writer

import bidr
from bidr.cli import main
from bidr.errors import ConfigError, ModelError, StorageError
from bidr.export import plain_files
from bidr.export.plain_files import QueryEncoders
from bidr.index.builder.build import build_index
from bidr.index.faiss_conversion import import_faiss
from bidr.index.live.live_reader import LiveIndex
from bidr.index.live.view import LiveVectors
from bidr.pipeline.build import build_vectors
from bidr.pipeline.open import open_index
from bidr.quantization.opq_config import PlainCodes
from bidr.search.types import QueryVectors
from bidr.training.config import CodesOnlyConfig

COUNT, DIM = 1_500, 24
VECTORS, QUESTIONS = clustered(COUNT, DIM), clustered(5, DIM, seed=9)
DOCS = Path(__file__).parents[2] / "docs"


def python_in(page: str, **names: object) -> dict:
    """What the page's Python leaves."""
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, names)
    return names


def exact(vectors: np.ndarray, k: int = 10) -> list[int]:
    return np.argsort(-(vectors.astype(np.float16).astype(np.float32) @ QUESTIONS[0]))[:k].tolist()


def made(folder: Path, engine: str, words: int = 16, **options: object) -> Path:
    given = {"ids": [f"d{row}\n" for row in range(COUNT)], "plain": PlainCodes(6, words, "ip"), **options}
    return build_vectors(VECTORS, None, folder / "INDEX", engine=engine, **given)


def left_by(folder: Path) -> dict[str, np.ndarray]:
    return {path.stem: np.load(path) for path in folder.glob("*.npy")}


@pytest.mark.parametrize("words", [16, 256])
@pytest.mark.parametrize("engine", ["scan", "lists", "hnsw"])
def test_files_are_in_row_order_and_the_readme_code_reads_them(tmp_path, monkeypatch, engine, words):
    monkeypatch.setattr(plain_files, "NUMBERS_PER_BLOCK", 5_000)
    read, blocks = LiveVectors.read, []
    monkeypatch.setattr(LiveVectors, "read", lambda *given: blocks.append(len(given[1])) or read(*given))
    index, out = made(tmp_path, engine, words), tmp_path / "out"
    done = bidr.export_index(index, out, engine=engine)
    assert done.documents == COUNT
    assert max(blocks) <= 5_000 // DIM < sum(blocks) == COUNT, "in bounded memory, whatever the corpus"
    assert set(done.files) == {path.name for path in out.iterdir()}
    left = left_by(out)
    np.testing.assert_array_equal(left["vectors"], VECTORS.astype(np.float16))
    codebooks, codes = import_faiss(faiss.read_index(str(out / "codes.faiss")))
    np.testing.assert_array_equal(left["codes"], codebooks.encode(VECTORS))
    np.testing.assert_array_equal(left["codes"], codes)
    np.testing.assert_array_equal(left["codebooks"], codebooks.centroids)
    np.testing.assert_array_equal(left["rotation"], codebooks.rotation)
    monkeypatch.chdir(out)
    page = (out / "README.md").read_text()
    assert ("nprobe" in page) == (engine == "lists")
    names = python_in(page, questions=QUESTIONS, vector=VECTORS[7])
    assert names["best"].tolist() == exact(VECTORS)
    assert names["names"] == [f"d{row}\n" for row in names["best"]]
    assert names["code"].tolist() == codes[7].tolist()
    by_numpy = np.argsort(-names["scores"])[:200]
    assert np.isin(names["rows"], by_numpy).mean() > (0.7 if engine != "scan" else 0.99)


@pytest.mark.parametrize("engine", ["scan", "lists"])
def test_the_readme_code_of_distances_ranks_by_them(tmp_path, monkeypatch, engine):
    index = made(tmp_path, engine, plain=PlainCodes(6, 16, "l2"))
    bidr.export_index(index, tmp_path / "out", engine=engine)
    monkeypatch.chdir(tmp_path / "out")
    page = (tmp_path / "out" / "README.md").read_text()
    names = python_in(page, questions=QUESTIONS, vector=VECTORS[7])
    distances = np.square(VECTORS.astype(np.float16).astype(np.float32) - QUESTIONS[0]).sum(axis=1)
    assert names["best"].tolist() == np.argsort(distances)[:10].tolist()
    assert names["code"].tolist() == np.load("codes.npy")[7].tolist()


def test_code_in_the_docs_equals_exact_search(tmp_path, monkeypatch):
    made(tmp_path, "lists", ids=[f"d{row}" for row in range(COUNT)])
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "how-to" / "export.md").read_text()
    page = page[re.search(r"^## .*Faiss and numpy.*$", page, re.MULTILINE).start() :]
    for line in re.findall(r"^    bidr (export .*)$", page, re.MULTILINE):
        assert main(line.split()) == 0

    class SentenceTransformer:
        def __init__(self, folder: str) -> None: ...

        def encode(self, text: str) -> np.ndarray:
            return VECTORS[3]

    names = python_in(page, questions=QUESTIONS, SentenceTransformer=SentenceTransformer)
    assert names["best"].tolist() == exact(VECTORS)
    assert names["names"] == [f"d{row}" for row in exact(VECTORS)]
    assert set(exact(VECTORS)) <= set(names["rows"].tolist()), "the candidates that numpy finds"
    assert names["code"].tolist() == names["codes"][3].tolist()
    assert faiss.extract_index_ivf(faiss.read_index("PLAIN_LISTS/codes.faiss")).nlist > 10


def test_no_id_file_without_ids(tmp_path, monkeypatch):
    bidr.export_index(made(tmp_path, "lists", ids=None), tmp_path / "out")
    monkeypatch.chdir(tmp_path / "out")
    assert not (tmp_path / "out" / "ids.jsonl").exists()
    names = python_in((tmp_path / "out" / "README.md").read_text(), questions=QUESTIONS, vector=VECTORS[0])
    assert names["names"].tolist() == exact(VECTORS)


@pytest.mark.parametrize("how", [{"stored": "int8"}, {"dims": 16}])
def test_exported_vectors_equal_the_stored_ones(tmp_path, monkeypatch, how):
    index, out = made(tmp_path, "lists", **how), tmp_path / "out"
    bidr.export_index(index, out)
    with open_index(index) as searcher:
        view = searcher.reader.latest()
        places = np.argsort(view.rows_of(np.arange(COUNT)))
        np.testing.assert_array_equal(np.load(out / "vectors.npy"), view.vectors.read(places))
        wanted = searcher.search_vectors(QUESTIONS, 10, COUNT).rows[0].tolist()
    monkeypatch.chdir(out)
    page = (out / "README.md").read_text()
    assert python_in(page, questions=QUESTIONS, vector=VECTORS[0])["best"].tolist() == wanted


def test_additions_and_deletions_are_exported(tmp_path):
    index, out = built(tmp_path / "i", 30, engine="lists"), tmp_path / "out"
    with writer(index) as changing:
        changing.add(*some(range(25, 40), version=1))
        changing.flush()
        changing.delete(["doc-3", "doc-38"])
        changing.add(*some([50, 51]))
    done = plain_files.write_export(LiveIndex.open(index).latest(), out)
    ids = [json.loads(line) for line in (out / "ids.jsonl").read_text().splitlines()]
    numbers = {f"doc-{number}": some([number])[1][0] for number in [*range(25), 50, 51]}
    numbers |= {f"doc-{number}": some([number], 1)[1][0] for number in range(25, 40)}
    del numbers["doc-3"], numbers["doc-38"]
    assert sorted(ids) == sorted(numbers)
    assert done.documents == len(ids)
    left = left_by(out)
    np.testing.assert_array_equal(left["vectors"], np.array([numbers[name] for name in ids], dtype=np.float16))
    expected = random_codebooks(16, 4).encode(np.array([numbers[name] for name in ids]))
    np.testing.assert_array_equal(left["codes"], expected)
    np.testing.assert_array_equal(import_faiss(faiss.read_index(str(out / "codes.faiss")))[1], expected)
    with pytest.raises(ConfigError, match=r"cannot be exported as lists; compact it first: bidr compact"):
        plain_files.write_export(LiveIndex.open(index).latest(), tmp_path / "other", "lists")
    assert not (tmp_path / "other").exists()


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    quick = {"candidates": 20, "bytes_per_doc": 2, "device": "cpu", "frozen": CodesOnlyConfig(steps=3, batch_size=32)}
    folder = tmp_path_factory.mktemp("model") / "RUN"
    return bidr.train_vectors(VECTORS, QUESTIONS.repeat(20, axis=0), folder, **quick).folder


@pytest.mark.parametrize("engine", ["scan", "lists"])
def test_exported_codes_include_the_query_adapter(tmp_path, monkeypatch, learned, engine):
    """Of a model that was learned from vectors: what leaves takes questions as users have them."""
    shutil.copytree(learned, tmp_path / "RUN")
    build_vectors(VECTORS, tmp_path / "RUN", tmp_path / "INDEX", engine=engine)
    bidr.export_index(tmp_path / "INDEX", tmp_path / "out", engine=engine)
    index = faiss.read_index(str(tmp_path / "out" / "codes.faiss"))
    if engine == "lists":
        faiss.extract_index_ivf(index).nprobe = faiss.extract_index_ivf(index).nlist
    with open_index(tmp_path / "INDEX", ef=10_000) as searcher:
        found = searcher.search_vectors(QUESTIONS, 20, codes_only=True)
    np.testing.assert_allclose(index.search(QUESTIONS, 20)[0], found.scores, atol=1e-3)
    assert {"centre", "document", "choosing"} <= set(left_by(tmp_path / "out"))
    monkeypatch.chdir(tmp_path / "out")
    names = python_in((tmp_path / "out" / "README.md").read_text(), questions=QUESTIONS)
    np.testing.assert_allclose(np.sort(names["scores"])[::-1][:20], found.scores[0], atol=1e-3)
    (tmp_path / "RUN").rename(tmp_path / "MOVED")
    with pytest.raises(ModelError, match="say where it is now"):
        bidr.export_index(tmp_path / "INDEX", tmp_path / "other")
    bidr.export_index(tmp_path / "INDEX", tmp_path / "other", model=tmp_path / "MOVED")


def test_export_is_atomic(tmp_path, monkeypatch):
    index, out = made(tmp_path, "scan"), tmp_path / "out"

    def full(*given: object) -> None:
        raise RuntimeError("Error: No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(faiss, "write_index", full)
        with pytest.raises(StorageError, match="cannot write"):
            bidr.export_index(index, out)
    assert [path.name for path in tmp_path.iterdir()] == ["INDEX"]
    (tmp_path / ".out.new").mkdir()  # as a killed export leaves it
    out.mkdir()
    bidr.export_index(index, out)
    assert not (tmp_path / ".out.new").exists()
    before = sorted(out.iterdir())
    with pytest.raises(ConfigError, match="holds something already"):
        bidr.export_index(index, out)
    assert sorted(out.iterdir()) == before
    with pytest.raises(ConfigError, match="expected one of scan, lists, hnsw"):
        bidr.export_index(index, tmp_path / "other", engine="tree")
    with pytest.raises(ConfigError, match="engine is 'scan', expected 'lists'"):
        bidr.export_index(index, tmp_path / "other", engine="lists")


def test_export_takes_either_a_model_or_an_index(tmp_path, capfd):
    index, out = str(made(tmp_path, "scan")), str(tmp_path / "out")
    for given, told in (
        ([], "neither --model"),
        (["--index", index, "--model", index], "--model and --index given"),
        (["--index", index, "--onnx-int8"], "--onnx-int8 is for --model"),
        (["--model", index, "--engine", "scan"], "--engine is for --index"),
    ):
        assert main(["export", "--out", out, *given]) == 2
        assert told in capfd.readouterr().err
    assert main(["export", "--index", index, "--out", out, "--json", str(tmp_path / "e.json")]) == 0
    assert json.loads((tmp_path / "e.json").read_text())["documents"] == COUNT
    assert f"{COUNT:,} documents" in capfd.readouterr().out


def test_document_codebooks_are_exported(tmp_path, monkeypatch):
    codebooks = fitted(VECTORS, 4, 16)
    moved = codebooks._replace(centroids=codebooks.centroids + 0.1, choosing=codebooks.centroids)
    build_index(tmp_path / "i", codebooks=moved, codes=codebooks.encode(VECTORS), vectors=VECTORS)
    bidr.export_index(tmp_path / "i", tmp_path / "out")
    monkeypatch.chdir(tmp_path / "out")
    names = python_in((tmp_path / "out" / "README.md").read_text(), questions=QUESTIONS, vector=VECTORS[5])
    assert names["code"].tolist() == codebooks.encode(VECTORS[5:6])[0].tolist()


def test_the_readme_names_the_encoder_of_each_side(tmp_path, monkeypatch):
    index, turned = made(tmp_path, "scan"), np.roll(QUESTIONS, 1, axis=1)
    encoders = QueryEncoders("the model's `sparse/`", "the model's `dense/`")
    plain_files.write_export(LiveIndex.open(index).latest(), tmp_path / "out", encoders=encoders)
    monkeypatch.chdir(tmp_path / "out")
    page = (tmp_path / "out" / "README.md").read_text()
    assert "`code_questions` from the model's `sparse/`" in page
    names = python_in(page, questions=QUESTIONS, code_questions=turned, vector=VECTORS[0])
    with open_index(index) as searcher:
        wanted = searcher.search_vectors(QueryVectors(turned, QUESTIONS), 10, 200).rows[0]
    assert names["best"].tolist() == wanted.tolist()
