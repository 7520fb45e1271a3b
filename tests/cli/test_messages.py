"""Nothing that was typed is ignored in silence, and a refusal says what to do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cli_data import Run, beir_folder

from bidr.data.record_sources import DroppedFieldCounter
from bidr.errors import ConfigError
from bidr.pipeline.build import build_vectors
from bidr.quantization.opq_config import PlainCodes

COUNT, DIM = 64, 16
VECTORS = np.random.default_rng(0).standard_normal((COUNT, DIM)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors, and an index of them with texts and their words."""
    made = tmp_path_factory.mktemp("told")
    np.save(made / "v.npy", VECTORS)
    from bidr.data.dataset import load

    data = load(beir_folder(made / "data", COUNT))
    build_vectors(VECTORS, None, made / "index", data=data, lexical=True, plain=PlainCodes(2))
    return made


def lines(path: Path, *documents: dict) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in documents))
    return path


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (
            ["--bytes-per-doc", "4", "--codewords", "16", "--metric", "ip"],
            "--bytes-per-doc, --codewords, --metric given",
        ),
        (["--codewords", "16"], "--codewords given with --model"),
        (["--metric", "cosine"], "leave it out"),
    ],
)
@pytest.mark.parametrize("source", ["--data", "--vectors"])
def test_flags_that_the_model_determines_are_refused(bidr: Run, tmp_path: Path, source, flags, told) -> None:
    given = ("build", source, "any", "--model", "model", "--out", tmp_path / "i", *flags)
    assert told in bidr.refused(*given)
    assert not (tmp_path / "i").exists()
    assert told not in bidr.refused(*given[: -len(flags)]), "defaults are nobody's wish"
    with pytest.raises(ConfigError, match="plain: given with a model"):
        build_vectors(VECTORS, tmp_path / "model", tmp_path / "i", plain=PlainCodes(2))


def test_ids_are_for_vectors_without_texts(bidr: Run, folder: Path, tmp_path: Path) -> None:
    for source in (("--model", "m"), ("--vectors", folder / "v.npy")):
        told = bidr.refused("build", "--data", folder / "data", *source, "--ids", "ids.txt", "--out", tmp_path / "i")
        assert "--ids given with --data, whose documents have ids of their own" in told
    assert "give --data" in bidr.refused("build", "--model", "m", "--out", tmp_path / "i")


def test_text_without_a_model_needs_a_query_vector(bidr: Run, folder: Path, tmp_path: Path) -> None:
    index, one, out = folder / "index", tmp_path / "one.npy", tmp_path / "found.json"
    np.save(one, VECTORS[7:8])
    word = json.loads((folder / "data" / "corpus.jsonl").read_text().splitlines()[50])["text"].split()[0]
    asked = ("search", "--index", index, "--query-vectors", one, "--candidates", 2, "--k", 9, "--json", out)
    assert bidr(*asked, "--lexical", 20, "--lexical-weight", 10, word).code == 0
    (found,) = json.loads(out.read_text())["results"]
    assert any(answer["word_rank"] for answer in found["answers"])
    assert bidr(*asked).code == 0
    (codes,) = json.loads(out.read_text())["results"]
    assert [answer["id"] for answer in codes["answers"]] != [answer["id"] for answer in found["answers"]]
    for words in (["--lexical", 10, word], [word]):
        assert "give its vector" in bidr.refused("search", "--index", index, *words)
        assert "--query-vectors" in bidr.refused("search", "--index", index, *words)
    assert "expected the text of the query too" in bidr.refused(*asked, "--lexical", 10)
    assert "with --lexical N" in bidr.refused(*asked, word)
    np.save(one, VECTORS[:2])
    assert "2 vectors for one query text" in bidr.refused(*asked, "--lexical", 10, word)


def test_a_filter_on_unknown_attributes_is_refused(bidr: Run, folder: Path, tmp_path: Path) -> None:
    index, one = tmp_path / "copy", tmp_path / "one.npy"
    np.save(one, VECTORS[:1])
    assert bidr("snapshot", folder / "index", index).code == 0
    search = ("search", "--index", index, "--query-vectors", one, "--filter")
    assert "--filter: given 'year', expected attributes of this index; it has none" in bidr.refused(
        *search, '{"year": 2020}'
    )
    new = lines(tmp_path / "new.jsonl", {"_id": "new", "text": "words", "metadata": {"lang": "en", "year": 2020}})
    assert bidr("add", index, new, "--vectors", one).code == 0
    told = bidr.refused(*search, '{"or": [{"language": "en"}, {"not": {"yaer": 2020}}]}')
    assert "--filter: given 'language', 'yaer', expected attributes of this index; it has lang, year" in told
    assert bidr(*search, '{"lang": "de"}').code == 0
    assert bidr("compact", index).code == 0
    assert bidr(*search, '{"lang": "en"}').code == 0


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("build --vectors v.npy --outt i", "unknown flag --outt; did you mean --out?; see bidr build --help"),
        ("build --vector v.npy --out i", "unknown flag --vector; did you mean --vectors?; see bidr build --help"),
        ("search x --qqqqqq", "unknown flag --qqqqqq; see bidr search --help"),
        ("inspect a b", "unexpected argument 'b'"),
        ("build --vectors v.npy", "missing: --out FOLDER; see"),
        ("build --vectors v.npy --out", "--out: given nothing, expected a value after it"),
        ("build --vectors v.npy --out i --metric dot", "--metric: given 'dot', expected cosine, ip or l2; see"),
        ("build --vectors v.npy --out i --codewords 17", "--codewords: given '17', expected 16 or 256; see"),
        ("search x --k ten", "--k: given 'ten', expected a whole number; see"),
        ("search x --fuse a", "--fuse: given 'a', expected a number; see"),
    ],
)
def test_flags_that_cannot_be_parsed_are_explained(bidr: Run, flags: str, told: str) -> None:
    assert told in bidr.refused(*flags.split())


def test_codes_of_no_bytes_are_refused(bidr: Run, folder: Path, tmp_path: Path) -> None:
    build = ("build", "--vectors", folder / "v.npy", "--out", tmp_path / "i", "--bytes-per-doc", 0)
    assert bidr.refused(*build).endswith(
        "bytes_per_doc: given 0, expected 1 to 8: a codebook of 16 codewords for each of the 16 dimensions at most"
    )


def test_numbers_are_checked_before_kernels_compile(
    bidr: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "one.npy", VECTORS[:1])
    search = ("search", "--index", folder / "index", "--query-vectors", tmp_path / "one.npy")
    monkeypatch.setattr("bidr.utils.jit.call_on_compilation", lambda callback: pytest.fail("searched"))
    for flags in (["--k", 0], ["--candidates", 0], ["--filter", '{"year": 1}']):
        assert "given" in bidr.refused(*search, *flags)


def test_compilation_is_announced_only_without_a_cache(folder: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", VECTORS[:1])
    command = [sys.executable, "-m", "bidr", "search", "--index", folder / "index"]
    command += ["--query-vectors", tmp_path / "one.npy"]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    for expected in (1, 0):
        process = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert process.stderr.count("compiling search kernels") == expected


def test_vectors_of_zeros_are_counted_under_cosine(bidr: Run, tmp_path: Path) -> None:
    vectors = VECTORS.copy()
    vectors[[3, 60]] = 0
    np.save(tmp_path / "v.npy", vectors)
    build = ("build", "--vectors", tmp_path / "v.npy", "--bytes-per-doc", 2)
    told = f"{tmp_path / 'v.npy'}: 2 of {COUNT} vectors are all zeros"
    assert told in bidr(*build, "--out", tmp_path / "i").err
    assert "zeros" not in bidr(*build, "--out", tmp_path / "ip", "--metric", "ip").err
    np.save(tmp_path / "v.npy", 0 * vectors)
    assert f"all {COUNT} vectors are zeros" in bidr.refused(*build, "--out", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_dropped_metadata_is_counted(bidr: Run, folder: Path, tmp_path: Path) -> None:
    index = tmp_path / "copy"
    np.save(tmp_path / "two.npy", VECTORS[:2])
    assert bidr("snapshot", folder / "index", index).code == 0
    metadata = {"lang": "en", "score": float("nan"), "nested": {"a": 1}, "empty": [], "none": None, "mixed": [1, "a"]}
    new = lines(tmp_path / "n.jsonl", {"_id": "a", "text": ""}, {"_id": "b", "text": "", "metadata": metadata})
    done = bidr("add", index, new, "--vectors", tmp_path / "two.npy", "--json", tmp_path / "a.json")
    assert done.code == 0, done.err
    fields = "'score' (1), 'nested' (1), 'mixed' (1)"
    told = f"{new}: 3 values of metadata were left out, of {fields}, the first 'score' of {new} line 2"
    assert told in done.err
    value = json.loads((tmp_path / "a.json").read_text())
    assert value["left_out"] == 3
    assert value["left_out_fields"] == {"score": 1, "nested": 1, "mixed": 1}
    plain = lines(tmp_path / "p.jsonl", {"_id": "a", "text": ""}, {"_id": "b", "text": "", "metadata": {"lang": "en"}})
    assert "left out" not in bidr("add", index, plain, "--vectors", tmp_path / "two.npy").err


def test_a_build_counts_the_metadata_that_it_leaves_out_once(bidr: Run, tmp_path: Path) -> None:
    corpus, told = tmp_path / "data" / "corpus.jsonl", tmp_path / "b.json"
    corpus.parent.mkdir()
    nested = {"lang": "en", "author": {"name": "A"}, "refs": [1, 2], "none": None}
    rows = [{"_id": f"{row}", "text": "", "metadata": nested if row % 10 == 3 else {"lang": "de"}} for row in range(40)]
    lines(corpus, *rows)
    np.save(tmp_path / "v.npy", VECTORS[:40])
    build = ("build", "--vectors", tmp_path / "v.npy", "--out", tmp_path / "i", "--json", told, "--data", corpus.parent)
    done = bidr(*build)
    assert done.code == 0, done.err
    said = f"{corpus}: 8 values of metadata were left out, of 'author' (4), 'refs' (4), the first 'author' of {corpus}"
    assert done.err.count("left out") == done.err.count(said) == 1
    value = json.loads(told.read_text())
    assert (value["left_out"], value["left_out_fields"]) == (8, {"author": 4, "refs": 4})
    assert value["attributes"] == ["lang"]
    lines(corpus, *({**row, "metadata": {"lang": "en"}} for row in rows))
    done = bidr(*build)
    assert "left out" not in done.err
    assert json.loads(told.read_text())["left_out"] == 0


def test_of_many_fields_the_most_frequent_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    left_out = DroppedFieldCounter()
    for row in range(3_000):
        left_out.count_dropped(f"line {row}", f"field {row}")
        left_out.count_dropped(f"line {row}", "often")
    left_out.report("corpus")
    told = capsys.readouterr().err
    assert told.startswith("corpus: 6,000 values of metadata were left out, of 'often' (3,000), 'field 0' (1), ")
    assert "and 995 more fields, the first 'field 0' of line 0; attributes are" in told
    assert len(left_out.fields) == 1_000, "no more is held"


def test_an_error_has_a_remedy(bidr: Run, folder: Path, tmp_path: Path) -> None:
    index = folder / "index"
    told = bidr.refused("snapshot", index, "/proc/x")
    assert "cannot make a folder in /proc" in told
    assert "choose another folder" in told
    assert ".new" not in told
    assert "--missing-ok" in bidr.refused("delete", index, "nobody")
    np.save(tmp_path / "few.npy", VECTORS[:3])
    assert "given 3; give more" in bidr.refused("build", "--vectors", tmp_path / "few.npy", "--out", tmp_path / "i")
    assert not (tmp_path / "i").exists()
    new = lines(tmp_path / "new.jsonl", {"_id": "new", "text": "words"})
    told = bidr.refused("add", index, new, "--vectors", tmp_path / "few.npy")
    assert "3 vectors for 1 document" in told
    assert "expected one for each" in told
