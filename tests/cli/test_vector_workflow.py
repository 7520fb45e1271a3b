"""The command line with vectors that already exist: the whole path, and one line for whatever is wrong with them."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from cli_data import Run, beir_folder

from bidr.cli import main

COUNT, DIM, ASKED = 320, 16, 320
QUICK = ["--bytes-per-doc", "2", "--candidates", "20", "--frozen.steps", "10", "--frozen.batch-size", "32"]


class Files:
    """Vectors for the small BEIR world: a question lies near its document."""

    def __init__(self, folder: Path) -> None:
        random = np.random.default_rng(0)
        self.folder = folder
        self.documents = random.normal(size=(COUNT, DIM)).astype(np.float32)
        self.questions = (self.documents + 0.3 * random.normal(size=(ASKED, DIM))).astype(np.float32)
        self.data = beir_folder(folder / "data")
        self.ids = self.text("ids.txt", [f"d{row}" for row in range(COUNT)])
        self.query_ids = self.text("query_ids.txt", [f"q{row}" for row in range(ASKED)])

    def text(self, name: str, lines: list[str]) -> Path:
        (self.folder / name).write_text("\n".join(lines) + "\n")
        return self.folder / name

    def save(self, name: str, array: np.ndarray) -> Path:
        np.save(self.folder / name, array)
        return self.folder / name


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.mark.parametrize("stored", ["fp16", "int8"])
def test_an_index_of_vectors_needs_no_training(files: Files, bidr: Run, tmp_path: Path, stored: str) -> None:
    documents, index = files.save("d.npy", files.documents), tmp_path / "index"
    plain = ["--bytes-per-doc", "4", "--codewords", "16", "--stored", stored]
    told = ["--json", tmp_path / "built.json"]
    built = bidr("build", "--vectors", documents, "--ids", files.ids, "--out", index, *plain, *told)
    assert built.code == 0, built.err
    assert re.search(r"built in [0-9.]+ s; CPU time [0-9.]+ s: ", built.err)
    steps = json.loads((tmp_path / "built.json").read_text())["build_seconds"]
    assert {"codebooks", "coding", "names", "vectors", "codes", "other"} == steps.keys()
    assert all(each["cpu"] >= 0 and each["clock"] >= 0 for each in steps.values())
    one = files.save("one.npy", files.questions[7:8])
    found = bidr("search", "--index", index, "--query-vectors", one, "--json", tmp_path / "found.json")
    assert found.code == 0, found.err
    assert json.loads((tmp_path / "found.json").read_text())["results"][0]["answers"][0]["id"] == "d7"
    added = tmp_path / "new.jsonl"
    added.write_text(json.dumps({"_id": "new", "title": "", "text": "words"}) + "\n")
    assert bidr("add", index, added, "--vectors", files.save("new.npy", 9 * files.questions[7:8])).code == 0
    assert bidr("search", "--index", index, "--query-vectors", one, "--json", tmp_path / "found.json").code == 0
    best = json.loads((tmp_path / "found.json").read_text())["results"][0]["answers"][0]
    assert (best["id"], best["score"]) == ("new", pytest.approx(1, abs=0.01)), "cosines, whatever the lengths given"


def test_how_widely_is_searched_can_be_set(files: Files, bidr: Run, tmp_path: Path) -> None:
    documents, index = files.save("d.npy", files.documents), tmp_path / "index"
    plain = ["--bytes-per-doc", "4", "--codewords", "16", "--engine", "lists"]
    assert bidr("build", "--vectors", documents, "--ids", files.ids, "--out", index, *plain).code == 0
    asked = ["search", "--index", index, "--query-vectors", files.save("one.npy", files.questions[7:8])]
    assert "expected a whole number of 1 or more" in bidr.refused(*asked, "--ef", "0")
    found = bidr(*asked, "--ef", "1", "--json", tmp_path / "found.json")
    assert found.code == 0, found.err
    assert json.loads((tmp_path / "found.json").read_text())["results"][0]["answers"][0]["id"] == "d7"


def test_the_cache_for_vectors_can_be_set_and_changes_no_answer(files: Files, bidr: Run, tmp_path: Path) -> None:
    documents, questions = files.save("d.npy", files.documents), files.save("q.npy", files.questions[:5])
    index, answers = tmp_path / "index", []
    assert bidr("build", "--vectors", documents, "--out", index, "--bytes-per-doc", "4").code == 0
    search = ["search", "--index", index, "--query-vectors", questions]
    for cache in ([], ["--cache", "0"], ["--cache", "1GiB"]):
        searched = bidr(*search, *cache, "--json", tmp_path / "found.json")
        assert searched.code == 0, searched.err
        results = json.loads((tmp_path / "found.json").read_text())["results"]
        answers.append([[(hit["id"], hit["score"]) for hit in result["answers"]] for result in results])
    assert answers[0]
    assert answers[0] == answers[1] == answers[2]
    assert "did you mean 20000GiB" in bidr.refused(*search, "--cache", "20000")
    for command in (search, ["evaluate", "--index", index, "--data", files.data], ["serve", index]):
        assert "cache: given 'much', expected a size such as 64GiB" in bidr.refused(*command, "--cache", "much")


def test_codes_of_no_bytes_and_texts_without_a_model_are_refused(files: Files, bidr: Run, tmp_path: Path) -> None:
    documents = files.save("d.npy", files.documents)
    out = ["--out", tmp_path / "index"]
    assert "expected 1 to 8" in bidr.refused("build", "--vectors", documents, "--bytes-per-doc", "0", *out)
    assert "expected 1 to 8" in bidr.refused("build", "--vectors", documents, "--bytes-per-doc", "9", *out)
    assert "expected one of them: --encoder for" in bidr.refused("build", "--data", files.data, *out)
    assert not (tmp_path / "index").exists()


def test_an_insufficient_budget_is_refused(files: Files, bidr: Run, tmp_path: Path) -> None:
    out = ["--out", tmp_path / "index", "--bytes-per-doc", "4"]
    documents = files.save("d.npy", files.documents)
    assert "MiB or more" in bidr.refused("build", "--vectors", documents, "--ram-budget", "10MB", *out)
    assert "expected a size" in bidr.refused("build", "--vectors", documents, "--ram-budget", "lots", *out)
    assert not (tmp_path / "index").exists()
    assert bidr("build", "--vectors", documents, "--ram-budget", "8GiB", *out).code == 0


def test_train_build_search_and_evaluate(files: Files, bidr: Run, tmp_path: Path) -> None:
    documents = files.save("d.npy", np.round(files.documents * 30).clip(-127, 127).astype(np.int8))
    questions = files.save("q.npy", files.questions.astype(np.float16))
    model, index = tmp_path / "model", tmp_path / "index"
    train = ["train", "--vectors", documents, "--query-vectors", questions, "--out", model, *QUICK]
    trained = bidr(
        *train, "--qrels", files.data / "qrels/train.tsv", "--ids", files.ids, "--query-ids", files.query_ids
    )
    assert trained.code == 0, trained.err
    assert "no text encoder" in trained.out
    assert "of the exact top 10 among 20 candidates" in trained.out
    assert bidr("inspect", model).code == 0
    built = bidr("build", "--vectors", documents, "--model", model, "--out", index, "--data", files.data)
    assert built.code == 0, built.err
    one = files.save("one.npy", files.questions[7:8])
    found = bidr("search", "--index", index, "--query-vectors", one, "--json", tmp_path / "found.json")
    assert found.code == 0, found.err
    assert "About" in found.out
    assert json.loads((tmp_path / "found.json").read_text())["results"][0]["answers"][0]["id"] == "d7"
    by_data = bidr("evaluate", "--index", index, "--data", files.data, "--query-vectors", questions)
    qrels = files.data / "qrels/test.tsv"
    given = ["--qrels", qrels, "--query-ids", files.query_ids]
    by_qrels = bidr("evaluate", "--index", index, "--query-vectors", questions, *given)
    assert (by_data.code, by_qrels.code) == (0, 0), by_data.err + by_qrels.err
    figures = [line for line in by_data.out.splitlines() if line.startswith(("R@", "RR@", "nDCG", "relevant"))]
    assert figures == [line for line in by_qrels.out.splitlines() if line.startswith(("R@", "RR@", "nDCG", "relevant"))]
    assert float(figures[0].split()[-1]) > 0.9
    scores = []
    for weight in ("0", "1"):
        fused = bidr(
            "search", "--index", index, "--query-vectors", one, "--fuse", weight, "--json", tmp_path / "f.json"
        )
        assert fused.code == 0, fused.err
        best = json.loads((tmp_path / "f.json").read_text())["results"][0]["answers"][0]
        scores.append((best["score"], best["candidate_score"]))
    assert scores[1][0] == pytest.approx(sum(scores[0]), rel=1e-4), "the codes' score is added to the vectors'"
    assert bidr("evaluate", "--index", index, "--query-vectors", questions, *given, "--fuse", "1").code == 0
    assert "has no text encoder" in bidr.refused("search", "--index", index, "some", "words")
    assert "has no text encoder" in bidr.refused("evaluate", "--index", index, "--data", files.data)
    assert "has no text encoder" in bidr.refused(
        "build", "--data", files.data, "--model", model, "--out", tmp_path / "i"
    )


def test_the_commands_of_the_model_card_work(
    files: Files, bidr: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("documents.npy", files.documents)
    np.save("questions.npy", files.questions[:4])
    Path("qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(f"{row}\t{row}\t1\n" for row in range(4)))
    trained = ["--vectors", "documents.npy", "--query-vectors", files.save("q.npy", files.questions), *QUICK]
    assert bidr("train", *trained, "--out", "RUN").code == 0
    card = Path("RUN/README.md").read_text()
    assert f"{len(files.documents):,}; training sample: " in card
    assert "kept_by" in card
    assert str(tmp_path) not in card, "a path of this machine"
    commands = [shlex.split(line)[1:] for line in re.findall(r"^    (bidr .*)$", card, re.MULTILINE)]
    assert [words[0] for words in commands] == ["build", "search", "evaluate"]
    for words in commands:
        done = bidr(*words)
        assert done.code == 0, done.err
    names: dict = {}
    exec(re.search(r"```python\n(.*?)```", card, re.DOTALL)[1], names)
    assert names["results"].rows[:, 0].tolist() == [0, 1, 2, 3]


def other_dimension(files: Files) -> tuple[list[object], list[str]]:
    return ["--query-vectors", files.save("q.npy", files.questions[:, 1:])], ["15 dimensions", "has 16"]


def not_finite(files: Files) -> tuple[list[object], list[str]]:
    files.documents[11, 3] = np.nan
    files.save("d.npy", files.documents)
    return [], ["d.npy: row 11 holds NaN or infinity"]


def infinite_question(files: Files) -> tuple[list[object], list[str]]:
    files.questions[5, 0] = np.inf
    return ["--query-vectors", files.save("q.npy", files.questions)], ["q.npy: row 5 holds NaN or infinity"]


def wrong_type(files: Files) -> tuple[list[object], list[str]]:
    files.save("d.npy", files.documents.astype(np.int64))
    return [], ["type int64", "expected one of float16, float32, float64, int8"]


def wrong_shape(files: Files) -> tuple[list[object], list[str]]:
    files.save("d.npy", files.documents.ravel())
    return [], ["shape (5120,)", "expected (rows, dimensions)"]


def not_an_array(files: Files) -> tuple[list[object], list[str]]:
    (files.folder / "d.npy").write_text("these are words")
    return [], ["d.npy cannot be read as .npy"]


def pickled(files: Files) -> tuple[list[object], list[str]]:
    np.save(files.folder / "d.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return [], ["d.npy cannot be read as .npy"]


def missing(files: Files) -> tuple[list[object], list[str]]:
    (files.folder / "d.npy").unlink()
    return [], ["d.npy does not exist"]


def too_few(files: Files) -> tuple[list[object], list[str]]:
    files.save("d.npy", files.documents[:200])
    return [], ["has 200 vectors, expected 256 or more"]


def too_many_bytes(files: Files) -> tuple[list[object], list[str]]:
    return ["--bytes-per-doc", 17], ["bytes_per_doc: given 17", "17 books for 16 dimensions"]


def too_many_small_books(files: Files) -> tuple[list[object], list[str]]:
    return ["--codewords", 16, "--bytes-per-doc", 9], ["given 9 with 16 codewords a book", "18 books for 16 dimensions"]


def unknown_document(files: Files) -> tuple[list[object], list[str]]:
    qrels = files.text("qrels.tsv", ["q1\td1\t1", "q2\tghost\t1"])
    names = ["--ids", files.ids, "--query-ids", files.query_ids]
    return ["--qrels", qrels, *names], ["document 'ghost' is not among the 320 ids"]


def unknown_query(files: Files) -> tuple[list[object], list[str]]:
    qrels = files.text("qrels.tsv", ["5\t1\t1", "320\t2\t1"])
    return ["--qrels", qrels], ["query '320' is not among the 320 row numbers"]


def other_ids(files: Files) -> tuple[list[object], list[str]]:
    ids = files.text("few.txt", ["d1", "d2"])
    return ["--qrels", files.data / "qrels/train.tsv", "--ids", ids], ["few.txt has 2 ids for 320 documents"]


def repeated_ids(files: Files) -> tuple[list[object], list[str]]:
    ids = files.text("same.txt", ["d0", *(f"d{row}" for row in range(COUNT - 1))])
    return ["--qrels", files.data / "qrels/train.tsv", "--ids", ids], ["id 'd0' is that of rows 0 and 1"]


def both(files: Files) -> tuple[list[object], list[str]]:
    return ["--data", files.data], ["give either --data", "or --vectors"]


@pytest.mark.parametrize(
    "spoil",
    [
        other_dimension, not_finite, infinite_question, wrong_type, wrong_shape, not_an_array, pickled, missing,
        too_few, too_many_bytes, too_many_small_books, unknown_document, unknown_query, other_ids, repeated_ids, both,
    ],
    ids=lambda one: one.__name__,
)  # fmt: skip
def test_bad_input_is_one_line_and_leaves_no_model(spoil, files: Files, bidr: Run, tmp_path: Path) -> None:
    documents, questions = files.save("d.npy", files.documents), files.save("q.npy", files.questions)
    flags, expected = spoil(files)
    named = [] if "--query-vectors" in flags else ["--query-vectors", questions]
    ran = bidr("train", "--vectors", documents, "--out", tmp_path / "model", *QUICK, *named, *flags)
    assert (ran.code, ran.out) == (2, ""), ran.err
    assert all(part in ran.err.splitlines()[-1] for part in ("bidr: ", *expected)), ran.err
    assert not (tmp_path / "model").exists()


def test_flags_of_vectors_need_vectors(files: Files, bidr: Run, tmp_path: Path) -> None:
    out = ["--out", tmp_path / "model"]
    assert "--qrels goes with --vectors" in bidr.refused("train", "--data", files.data, "--qrels", files.ids, *out)
    assert "give either --data" in bidr.refused("train", *out)
    assert main(["train", "--help"]) == 0


def test_resume_holds_for_vectors_too(files: Files, bidr: Run):
    given = ["train", "--vectors", files.save("d.npy", files.documents), "--out", files.folder / "run", *QUICK]
    assert "no run to resume" in bidr.refused(*given, "--resume", "must")
    assert bidr(*given).code == 0
    before = (files.folder / "run" / "model.json").stat().st_mtime_ns
    assert bidr(*given, "--resume", "must", "--checkpoint-minutes", "1").code == 0
    assert (files.folder / "run" / "model.json").stat().st_mtime_ns == before, "a finished run is not run again"
    assert "resume is 'never'" in bidr.refused(*given, "--resume", "never")
    (files.folder / "run" / "work" / "run.json").write_text("{")
    assert "run.json cannot be read" in bidr.refused(*given)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--recipe", "star-opq"], "--recipe goes with --data"),
        (["--seed", "-1"], "seed: given -1, expected 0 or more"),
        (["--device", "cuda:99x"], "device: given 'cuda:99x'"),
        (["--device", "cuda"], "no CUDA GPU is available"),
        (["--method", "conventional"], "method: goes with --data"),
        (["--batch-size", "64"], "use frozen.batch_size"),
        (["--dense.epochs", "5"], "dense.epochs: goes with --data"),
        (["--frozen.crops", "1"], "frozen.crops: goes with --data"),
        (["--ids", "ids.txt"], "ids: given without qrels"),
        (["--query-ids", "ids.txt"], "query_ids: given without qrels"),
        (["--qrels", "qrels.tsv"], "qrels: given without query vectors"),
    ],
)
def test_what_does_not_go_with_vectors_is_refused(files: Files, bidr: Run, more, told, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    documents = files.save("d.npy", files.documents)
    assert told in bidr.refused("train", "--vectors", documents, "--out", files.folder / "run", *QUICK, *more)
    assert not (files.folder / "run").exists()


def test_a_gpu_that_would_stand_idle_is_refused(files: Files, bidr: Run, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    given = ["--vectors", files.save("d.npy", files.documents), "--out", files.folder / "run", *QUICK]
    assert "are trained on the CPU" in bidr.refused("train", *given, "--device", "cuda")


def test_judgments_without_labels_are_reported(files: Files, bidr: Run):
    given = ["--vectors", files.save("d.npy", files.documents), "--query-vectors", files.save("q.npy", files.questions)]
    for score, told in ((0, True), (1, False)):
        qrels = files.text("qrels.tsv", [f"{row}\t{row}\t{score}" for row in range(9)])
        code, _, err = bidr("train", *given, "--qrels", qrels, "--out", files.folder / f"run{score}", *QUICK)
        assert code == 0, err
        assert ("no judgment is above 0" in err) == told


@pytest.mark.parametrize("metric", ["cosine", "ip"])
def test_the_cards_settings_and_command_train_the_same_model_again(files: Files, bidr: Run, monkeypatch, metric):
    monkeypatch.chdir(files.folder)
    np.save("documents.npy", files.documents)
    np.save("questions.npy", files.questions)
    files.text("qrels.tsv", [f"{row}\t{row}\t1" for row in range(9)])
    given = ["--vectors", "documents.npy", "--query-vectors", "questions.npy", "--qrels", "qrels.tsv"]
    given += ["--metric", metric, "--seed", "3", "--codewords", "16", "--frozen.finer", "1", *QUICK]
    assert bidr("train", *given, "--out", "first").code == 0
    card = Path("first/README.md").read_text()
    Path("FILE").write_text(re.search(r"```toml\n(.*?)```", card, re.DOTALL)[1])
    command = re.search(r"`bidr (train [^`]*)`", card)[1]
    assert ("--metric" in command) == (metric == "ip")
    done = bidr(*shlex.split(command))
    assert done.code == 0, done.err
    first, again = (json.loads(Path(folder, "model.json").read_text()) for folder in ("first", "RUN"))
    assert again["fingerprint"] == first["fingerprint"]
    assert again["training"]["config"] == first["training"]["config"]
    assert again["candidates"] == first["candidates"] == 20


def test_a_single_vector_is_refused_with_the_way_to_one_row(files: Files, bidr: Run):
    one = files.save("one.npy", files.documents[0])
    assert "vector[None]" in bidr.refused("train", "--vectors", one, "--out", files.folder / "run", *QUICK)


def test_several_processes_are_refused(files: Files, bidr: Run, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    documents = files.save("d.npy", files.documents)
    assert "without torchrun" in bidr.refused("train", "--vectors", documents, "--out", files.folder / "run", *QUICK)
