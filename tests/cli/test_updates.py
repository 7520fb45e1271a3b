import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from cli_data import Made, Run

import bidr as package
from bidr.cli import add
from bidr.data.readers import beir
from bidr.data.types import Document
from bidr.index.cost_model.sizes import Shape, estimate_ram
from bidr.index.ram_usage import RamUsage, select_index_parts

WORDS = "zanzibar quixotic"


@pytest.fixture
def index(made: Made, tmp_path: Path) -> Path:
    return shutil.copytree(made.index, tmp_path / "index")


def documents(path: Path, *records: dict) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_add_search_delete_compact_snapshot(bidr: Run, index: Path, tmp_path: Path) -> None:
    texts = [{"_id": f"new{n}", "title": WORDS, "text": f"{WORDS} {n}", "metadata": {"n": n}} for n in range(3)]
    added = bidr("add", index, documents(tmp_path / "new.jsonl", *texts, {"_id": "d1", "text": WORDS}))
    assert added.code == 0, added.err
    assert "3 added, 1 replaced; 323 documents" in added.out
    out = tmp_path / "found.json"
    assert bidr("search", "--index", index, "--json", out, "--filter", '{"n": {"gte": 1}}', WORDS).code == 0
    found = json.loads(out.read_text())["answers"]
    assert {answer["id"] for answer in found} == {"new1", "new2"}
    assert found[0]["attributes"]["n"] in (1, 2)
    assert "1 deleted; 322 documents" in bidr("delete", index, "new1").out
    assert bidr("snapshot", index, tmp_path / "copy").code == 0
    shown = bidr("inspect", index).out
    assert "320 documents, 1 deleted" in shown
    assert "log" in shown
    assert bidr("verify", index).code == 0
    assert bidr("compact", index).code == 0
    for folder in (index, tmp_path / "copy"):
        assert bidr("verify", folder).code == 0
        assert bidr("search", "--index", folder, "--json", out, "--k", 400, WORDS).code == 0
        found = {answer["id"] for answer in json.loads(out.read_text())["answers"]}
        assert len(found) == 322
        assert "new1" not in found


def test_folders_are_accepted_by_name_and_by_position(bidr: Run, index: Path, tmp_path: Path) -> None:
    """`--index`, as `bidr search` has it, also for the verbs whose first argument is the folder."""
    new = documents(tmp_path / "new.jsonl", {"_id": "new", "text": WORDS})
    assert "1 added" in bidr("add", "--index", index, new).out
    assert "1 deleted" in bidr("delete", "new", f"--index={index}").out
    assert bidr("snapshot", index, "--out", tmp_path / "copy").code == 0
    assert bidr("inspect", "--index", tmp_path / "copy").out == bidr("inspect", tmp_path / "copy").out
    assert bidr("delete", index, "--", "--index").code == 2, "an id"
    assert "--index: given nothing, expected a value" in bidr.refused("verify", "--index")


def test_an_added_text_is_encoded_as_in_a_build(bidr: Run, made: Made, index: Path, tmp_path: Path) -> None:
    """The same documents added to an index are where a build puts them: same scores."""
    with package.open_index(made.index) as built, package.open_index(index) as live:
        query = built.reader.documents.document(7).text
        before = [(answer.id, answer.score) for answer in built.search(query, 5)]
        with package.open_writer(index) as writer:
            writer.add([Document(*built.reader.documents.document(row)) for row in range(40)])
        live.reader.refresh_now()
        after = [(answer.id, answer.score) for answer in live.search(query, 5)]
    assert [name for name, _ in before] == [name for name, _ in after]
    np.testing.assert_allclose([score for _, score in before], [score for _, score in after], atol=2e-3)


def test_invalid_updates_are_errors_and_change_nothing(bidr: Run, index: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in index.rglob("*") if path.is_file()}
    good = {"_id": "x", "text": "words"}
    assert "occurs twice" in bidr.refused("add", index, documents(tmp_path / "a", good, good))
    assert "line 2" in bidr.refused("add", index, documents(tmp_path / "b", good, {"_id": "y"}))
    assert "metadata" in bidr.refused("add", index, documents(tmp_path / "c", {**good, "metadata": 3}))
    assert '"not"' in bidr.refused("add", index, documents(tmp_path / "d", {**good, "metadata": {"not": 3}}))
    assert "no documents" in bidr.refused("add", index, documents(tmp_path / "e"))
    np.save(tmp_path / "v.npy", np.ones((1, 8), dtype=np.float32))
    given = documents(tmp_path / "v", good)
    assert "encodes texts itself" in bidr.refused("add", index, given, "--vectors", tmp_path / "v.npy")
    assert "does not exist" in bidr.refused("add", index, tmp_path / "nothing")
    assert "no index here" in bidr.refused("add", tmp_path / "no", documents(tmp_path / "f", good))
    assert "no document 'ghost'" in bidr.refused("delete", index, "ghost")
    assert "no ids given" in bidr.refused("delete", index)
    assert "exists already" in bidr.refused("snapshot", index, tmp_path)
    assert "not JSON" in bidr.refused("search", "--index", index, "--filter", "{", "words")
    assert "filter" in bidr.refused("search", "--index", index, "--filter", '{"a": null}', "words")
    after = {path: path.read_bytes() for path in index.rglob("*") if path.is_file() and path.name != ".lock"}
    assert {path: content for path, content in after.items() if path in before} == {
        path: content for path, content in before.items() if path.name not in ("CURRENT", ".lock")
    } | {index / "CURRENT": after[index / "CURRENT"]}
    assert bidr("verify", index).code == 0


def test_inspect_describes_documents_of_the_log(bidr: Run, index: Path, tmp_path: Path) -> None:
    assert "only_here" not in bidr("inspect", index).out
    assert bidr(
        "add", index, documents(tmp_path / "n.jsonl", {"_id": "n", "text": WORDS, "metadata": {"only_here": 1}})
    )
    told = tmp_path / "told.json"
    shown = bidr("inspect", index, "--json", told).out
    assert "only_here" in next(line for line in shown.splitlines() if line.startswith("attributes"))
    assert bidr("delete", index, "n").code == 0
    assert "only_here" not in bidr("inspect", index).out


def test_inspect_and_verify_count_the_same_files_and_bytes(bidr: Run, index: Path, tmp_path: Path) -> None:
    assert bidr("add", index, documents(tmp_path / "n.jsonl", {"_id": "d1", "text": WORDS})).code == 0
    told = [tmp_path / "inspect.json", tmp_path / "verify.json"]
    for verb, path in zip(("inspect", "verify"), told, strict=True):
        assert bidr(verb, index, "--json", path).code == 0
    inspected, verified = (json.loads(path.read_text()) for path in told)
    there = [path for path in index.rglob("*") if path.is_file() and path.parent != index]
    assert inspected["files"] == verified["files"] == len(there)
    assert sum(inspected["disk_bytes"].values()) == verified["bytes"] == sum(path.stat().st_size for path in there)
    assert f"{len(there)} files" in bidr("inspect", index).out


def test_inspect_counts_the_ram_that_a_plan_counts(bidr: Run, tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((3_000, 32)).astype(np.float32)
    np.save(tmp_path / "v.npy", vectors)
    index, told = tmp_path / "i", tmp_path / "told.json"
    flags = ["--vectors", tmp_path / "v.npy", "--out", index, "--engine", "lists", "--bytes-per-doc", 8]
    assert bidr("build", *flags).code == 0
    shown = bidr("inspect", index, "--json", told).out
    assert "ivf over the codes, cosine" in shown
    value = json.loads(told.read_text())
    found, each = value["ram_bytes"], value["ram_bytes_per_document"]
    planned = estimate_ram(Shape(3_000, 32, "lists", 4, 8))
    for part in ("codes", "lists", "seen blocks", "checksums", "codebooks"):
        assert found[part] == pytest.approx(planned[part], rel=0.1), part
    assert each["total"] == pytest.approx(sum(found.values()) / 3_000, abs=0.01)
    whole = RamUsage(select_index_parts(estimate_ram(Shape(3_000, 32, "lists", 4, 8, live=False))), 3_000)
    assert whole.parts.keys() == found.keys()
    assert each["total"] == pytest.approx(whole.per_document, rel=0.1)
    assert bidr("build", *flags, "--metric", "ip").code == 0
    assert "ivf over the codes, inner product" in bidr("inspect", index).out


def test_an_empty_index_is_described(bidr: Run, tmp_path: Path) -> None:
    vectors, index = np.random.default_rng(0).standard_normal((40, 16)).astype(np.float32), tmp_path / "index"
    np.save(tmp_path / "vectors.npy", vectors)
    assert bidr("build", "--vectors", tmp_path / "vectors.npy", "--out", index).code == 0
    assert "merged 1 segment and the log; 40 documents" in bidr("compact", index).out
    assert bidr("delete", index, *map(str, range(40))).code == 0
    assert "no documents are left" in bidr("compact", index).out
    shown = {line.split("  ")[0]: line for line in bidr("inspect", index).out.splitlines()}
    assert " 0 bytes in all" not in shown["in RAM"]


@pytest.mark.parametrize("stranger", [False, True])
def test_inspect_tells_drift_with_a_verdict(bidr: Run, tmp_path: Path, stranger: bool) -> None:
    random = np.random.default_rng(0)
    np.save(tmp_path / "v.npy", random.standard_normal((2_000, 32)) * np.linspace(1, 3, 32))
    index, new = tmp_path / "i", random.standard_normal((400, 32)) * np.linspace(1, 3, 32)[:: -1 if stranger else 1]
    assert bidr("build", "--vectors", tmp_path / "v.npy", "--out", index, "--bytes-per-doc", 8)
    new = new if not stranger else np.where(np.arange(32) == 0, 9.0, 0.01 * new)
    with package.open_writer(index, warn=lambda told: None) as writer:
        writer.add([Document(f"n{row}", "", "") for row in range(400)], new.astype(np.float32))
        writer.compact()
    lines = {line[:18].strip(): line for line in bidr("inspect", index).out.splitlines()}
    assert "bits, against" in lines["codeword entropy"]
    assert "against" in lines["code error"]
    assert ("fit the codebooks badly" in lines["verdict"]) == stranger
    assert ("they fit the codebooks" in lines["verdict"]) != stranger


@pytest.mark.parametrize("metric", ["cosine", "ip"])
def test_bad_vectors_are_found_before_any_is_added(bidr: Run, tmp_path: Path, metric: str) -> None:
    vectors = np.random.default_rng(0).standard_normal((1_500, 8)).astype(np.float32)
    package.build_vectors(vectors[:64], None, tmp_path / "i", plain=package.PlainCodes(2, metric=metric))
    given = documents(tmp_path / "d.jsonl", *({"_id": f"n{row}", "text": "x"} for row in range(1_500)))
    refusals = [(np.nan, "row 1,400 holds NaN"), (7e4, "70000 in size within rows 1,024 to 1,499")]
    for value, message in refusals[: 1 if metric == "cosine" else 2]:
        vectors[1_400, 3] = value
        np.save(tmp_path / "v.npy", vectors)
        assert message in bidr.refused("add", tmp_path / "i", given, "--vectors", tmp_path / "v.npy")
    np.save(tmp_path / "v.npy", vectors[:, :4])
    assert "v.npy has 4 dim" in bidr.refused("add", tmp_path / "i", given, "--vectors", tmp_path / "v.npy")
    with package.open_index(tmp_path / "i") as index:
        assert index.reader.count == 64


def test_large_texts_are_committed_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(add, "AT_ONCE", 3)
    monkeypatch.setattr(add, "LETTERS_AT_ONCE", 10)
    texts = [1, 2, 3, 4, 9, 30, 1, 1, 1, 1]
    given = documents(tmp_path / "d.jsonl", *({"_id": f"n{row}", "text": "x" * own} for row, own in enumerate(texts)))
    sizes = [[len(document.text) for document in batch] for batch in add._read_batches(beir.read_documents(given))]
    assert sizes == [[1, 2, 3], [4], [9], [30], [1, 1, 1], [1]]


def test_list_count_get_update_delete_by_filter(bidr: Run, index: Path, tmp_path: Path) -> None:
    texts = [{"_id": f"new{n}", "title": WORDS, "text": WORDS, "metadata": {"n": n}} for n in range(4)]
    assert bidr("add", index, documents(tmp_path / "new.jsonl", *texts)).code == 0
    newer = '{"n": {"gte": 1}}'
    assert bidr("count", index, "--filter", newer).out.strip() == "3"
    assert "324" in bidr("count", index).out
    changes = documents(tmp_path / "changes.jsonl", {"_id": "new1", "metadata": {"price": 2, "n": None}})
    assert "1 document changed" in bidr("update", index, changes).out
    assert "2 documents changed" in bidr("update", index, "--filter", newer, "--set", '{"price": 5}').out
    shown = json.loads(bidr("get", index, "new1").out)
    assert shown == {"_id": "new1", "title": WORDS, "text": WORDS, "metadata": {"price": 2}}
    listed = tmp_path / "listed.jsonl"
    assert bidr("list", index, "--filter", '{"price": 5}', "--out", listed).code == 0
    lines = [json.loads(line) for line in listed.read_text().splitlines()]
    assert {line["_id"]: line["metadata"] for line in lines} == {f"new{n}": {"n": n, "price": 5} for n in (2, 3)}
    page = tmp_path / "page.json"
    assert bidr("list", index, "--limit", 1, "--filter", '{"price": 5}', "--json", page).code == 0
    cursor = json.loads(page.read_text())["cursor"]
    assert cursor in {"new2", "new3"}
    assert bidr("list", index, "--cursor", cursor, "--filter", '{"price": 5}').out.startswith("new")
    assert "2 deleted; 322 documents" in bidr("delete", index, "--filter", '{"price": 5}').out
    for wrong in (
        ("get", index, "nobody"),
        ("update", index, changes, "--set", "{}"),
        ("update", index, "--filter", newer),
        ("update", index, "--filter", '{"price": 2}', "--set", "{}"),
        ("update", index, "--filter", '{"nowhere": 2}', "--set", '{"a": 1}'),
        ("update", index, documents(tmp_path / "bad.jsonl", {"_id": "new1", "metadata": {"price": [2]}})),
        ("delete", index, "new1", "--filter", newer),
        ("count", index, "--filter", "{"),
        ("list", index, "--limit", 0),
    ):
        assert bidr(*wrong).code == 2
