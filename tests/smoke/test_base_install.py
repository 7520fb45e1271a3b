"""What the base install does: vectors, updates, planning, words by the built-in encoder; and what it says it lacks."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

import bidr

WORDS = ("red", "green", "blue", "cat", "dog", "fish", "sings", "sleeps", "runs", "far", "old", "night", "watch")


def run_python(code: str, *args: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_bidr(*args: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "bidr", *map(str, args)], capture_output=True, text=True, check=False, timeout=600
    )


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((500, 32)).astype(np.float32)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, vectors: np.ndarray) -> Path:
    folder = tmp_path_factory.mktemp("smoke") / "index"
    bidr.build_vectors(vectors, None, folder)
    return folder


def save_text_model(folder: Path) -> Path:
    """Save a model of random token vectors, as training leaves one."""
    from bidr.models.saved_model import ModelParts, TextSettings, save_model
    from bidr.quantization.pq_training import fit_pq

    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, **{word: row for row, word in enumerate(WORDS, 1)}}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    table = np.random.default_rng(1).standard_normal((len(WORDS) + 1, 32)).astype(np.float32)
    encoder = folder / "encoder"
    (encoder / "0_StaticEmbedding").mkdir(parents=True)
    modules = [
        {"idx": 0, "name": "0", "path": "0_StaticEmbedding", "type": "sentence_transformers.models.StaticEmbedding"}
    ]
    (encoder / "modules.json").write_text(json.dumps(modules))
    tokenizer.save(str(encoder / "0_StaticEmbedding" / "tokenizer.json"))
    save_file({"embedding.weight": table}, encoder / "0_StaticEmbedding" / "model.safetensors")
    codebooks = fit_pq(np.repeat(table, 20, axis=0), 8, 16)
    parts = ModelParts(sparse=encoder, dense=encoder, query=None, codebooks=codebooks)
    text = TextSettings(titles="prepend", query_length=16, document_length=16)
    (folder / "model").mkdir()
    save_model(folder / "model", parts, text, candidates=20, training={})
    return folder / "model"


def test_the_client_loads_neither_torch_nor_numba() -> None:
    code = "import bidr, sys; bidr.Client; assert not {'torch', 'numba', 'faiss'} & set(sys.modules); print(dir(bidr))"
    assert "open_index" in run_python(code)


def test_searching_vectors_loads_neither_torch_nor_faiss(index: Path) -> None:
    code = """
import bidr, numpy, sys
with bidr.open_index(sys.argv[1]) as searcher:
    print(len(searcher.load_results(searcher.search_vectors(numpy.ones((1, 32), dtype='f4'), 5))[0]))
assert not {'torch', 'faiss', 'transformers'} & set(sys.modules)
"""
    assert run_python(code, index).split()[-1] == "5"


def test_an_index_of_vectors_is_built_searched_updated_and_verified(tmp_path: Path, vectors: np.ndarray) -> None:
    folder = bidr.build_vectors(vectors, None, tmp_path / "index") or tmp_path / "index"
    with bidr.open_index(tmp_path / "index") as searcher:
        best = searcher.load_results(searcher.search_vectors(vectors[:3], 1, 100))
    assert [hits[0].id for hits in best] == ["0", "1", "2"]
    with bidr.open_writer(tmp_path / "index") as writer:
        writer.add([bidr.Document("new", "", "")], vectors[:1] * 2)
        writer.delete(["0"])
    with bidr.open_index(tmp_path / "index") as searcher:
        assert searcher.load_results(searcher.search_vectors(vectors[:1], 1, 100))[0][0].id == "new"
    bidr.compact(tmp_path / "index")
    done = run_bidr("verify", tmp_path / "index")
    assert done.returncode == 0, (folder, done.stderr)


def test_words_are_searched_by_the_built_in_encoder_and_by_bm25(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "qrels").mkdir(parents=True)
    texts = ["red cat sleeps", "blue dog runs far", "old dog night watch", "green fish sings"] * 10
    lines = [json.dumps({"_id": f"d{row}", "title": "", "text": text}) for row, text in enumerate(texts)]
    (data / "corpus.jsonl").write_text("\n".join(lines))
    (data / "queries.jsonl").write_text('{"_id": "q", "text": "night watch"}\n')
    (data / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td2\t1\n")
    bidr.build(bidr.load(data), save_text_model(tmp_path), tmp_path / "index", device="cpu", lexical=True)
    code = """
import bidr, sys
with bidr.open_index(sys.argv[1]) as searcher:
    hit = searcher.search("night watch old", k=1, lexical=5)[0]
    print(hit.word_rank, hit.document.text)
with bidr.open_writer(sys.argv[1], device="cpu") as writer:
    writer.add([bidr.Document("new", "", "old dog sings")])
assert "torch" not in sys.modules
"""
    assert run_python(code, tmp_path / "index").strip().endswith("1 old dog night watch")


def test_a_plan_is_computed() -> None:
    done = run_bidr("plan", "--docs", "10M", "--dim", "384", "--ram", "8GiB")
    assert done.returncode == 0, done.stderr
    assert "RAM a document" in done.stdout


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
@pytest.mark.parametrize(("name", "extra"), [("train", "train"), ("train_vectors", "train"), ("export_onnx", "train")])
def test_a_name_of_an_extra_that_is_not_installed_names_it(name: str, extra: str) -> None:
    with pytest.raises(ImportError, match=rf"pip install '\.\[{extra}\]'"):
        getattr(bidr, name)


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
@pytest.mark.parametrize("args", [("train", "--data", "x", "--out", "y"), ("demo",), ("serve", "x"), ("compare",)])
def test_a_verb_of_an_extra_that_is_not_installed_names_it_in_one_line(args: tuple[str, ...], tmp_path: Path) -> None:
    done = run_bidr(*args)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_an_open_index_keeps_the_number_of_candidates_that_it_is_given(index: Path, vectors: np.ndarray) -> None:
    with bidr.open_index(index, candidates=37) as searcher:
        assert searcher.search_vectors(vectors[:1], 1).candidate_positions.shape == (1, 37)
