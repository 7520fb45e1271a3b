"""The choice on dev: what takes part, what it measures, the rule, and what of it is saved."""

import json
import signal
from dataclasses import replace

import numpy as np
import pytest
from sample_training import CONFIG, DEV, dataset, files

import bidr
from bidr.data.dataset import Dataset
from bidr.errors import ConfigError, ModelError, StoppedError
from bidr.models.saved_model import Model, SearchSettings, parse_search_settings
from bidr.pipeline.build import build
from bidr.pipeline.open import open_index
from bidr.search.evaluation import evaluate
from bidr.training.config import ChoiceConfig, TrainConfig
from bidr.training.contenders import Contender, choose_contender
from bidr.training.engine.loop import StageTrainer
from bidr.training.fusion import Fusion, smooth
from bidr.training.presets import with_default_recipe
from bidr.training.train import open_run, train, train_model
from bidr.utils.files import write_signed_json

VECTORS = ("warmup", "conventional", "random-walk", "averaged", "unified")
SMALL = replace(CONFIG, method="auto", choice=ChoiceConfig(lexical=(5, 10), small_dev=0))
SMALL = replace(SMALL, frozen=replace(SMALL.frozen, steps=4, batch_size=8, measured=1, depth=8, own=4, others=20))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run, its model and its choice.json."""
    out = tmp_path_factory.mktemp("auto") / "run"
    model = train(dataset(), SMALL, out)
    return out, model, json.loads((out / "choice.json").read_text())


def find_chosen(choice):
    (row,) = [row for row in choice["rows"] if row["chosen"]]
    return row


def test_all_vectors_codes_and_fusions_take_part(trained):
    rows = trained[2]["rows"]
    pairs = {(row["vectors"], row["codes"]) for row in rows}
    fitted = {(vectors, codes) for vectors in VECTORS for codes in ("opq", "contrastive")} - {("unified", "opq")}
    (distilled,) = pairs - fitted
    assert fitted < pairs
    assert distilled[1] == "distilled"
    without = {(row["vectors"], row["codes"]) for row in rows if not row["lexical"]}
    assert without == pairs, "every pair is measured without BM25 too"
    largest = max(rows, key=lambda row: row["lexical_weight"])
    assert (largest["vectors"], largest["codes"], largest["lexical"]) == ("warmup", "opq", 10), "BM25 alone"
    assert trained[2]["dev_queries"] == DEV


def test_the_choice_is_the_best_of_its_table(trained):
    choice = trained[2]
    row = find_chosen(choice)
    assert row["criterion"] == max(other["criterion"] for other in choice["rows"])
    assert all(np.isclose(row["criterion"], (row["R@10"] + row["R@100"]) / 2) for row in choice["rows"])


def test_the_distilled_codes_are_of_the_best_vectors_before(trained):
    rows = [row for row in trained[2]["rows"] if row["vectors"] != "unified"]
    (vectors,) = {row["vectors"] for row in rows if row["codes"] == "distilled"}
    best = max(row["criterion"] for row in rows if row["codes"] != "distilled")
    assert best in [row["criterion"] for row in rows if row["vectors"] == vectors and row["codes"] != "distilled"]


def test_equal_ram_is_that_of_the_codes_and_of_postings(trained):
    for row in trained[2]["rows"]:
        assert row["bytes_per_doc"] == pytest.approx(CONFIG.bytes_per_doc + (0.28 if row["lexical"] else 0))


def make_run(tmp_path_factory, name, vectors, codes, lexical=()):
    choice = ChoiceConfig(vectors=vectors, codes=codes, lexical=lexical)
    return train(dataset(), replace(SMALL, choice=choice), tmp_path_factory.mktemp(name) / "run")


@pytest.mark.parametrize("number", range(8))
def test_measures_are_those_of_a_built_index(trained, tmp_path, number, monkeypatch):
    """Whatever is chosen: an index of the model gives the recall of its row on dev."""
    choice = trained[2]
    row = choice["rows"][number * len(choice["rows"]) // 8]
    run = open_run(dataset(), SMALL, trained[0])

    def choose(contenders, small_dev):
        picked = choose_contender(contenders, small_dev)
        if "distilled" not in [one.codes for one in contenders]:  # the choice of the vectors that are distilled
            return picked
        return picked._replace(contender=next(one for one in contenders if one.to_json().items() <= row.items()))

    monkeypatch.setattr("bidr.training.model_selection.choose_contender", choose)
    model = train_model(run, tmp_path / "model")
    assert model.unified == (row["query_encoders"] == 1)
    build(dataset(), model, tmp_path / "index")
    with open_index(tmp_path / "index", tmp_path / "model") as searcher:
        assert (searcher.lexical, searcher.lexical_weight) == (row["lexical"], row["lexical_weight"])
        report = evaluate(searcher, dataset().split("dev"), ("R@10", "R@100"))
    found = (*report.measures.values(), report.candidate_recall)
    assert found == pytest.approx((row["R@10"], row["R@100"], row["candidate_recall"]), abs=1e-9)


def test_the_model_recommends_the_fusion_and_keeps_the_table(trained):
    out, model, choice = trained
    row = find_chosen(choice)
    assert model.search == SearchSettings(row["lexical"], row["lexical_weight"])
    assert model.training["choice"] == choice
    assert choice["why"] in (out / "README.md").read_text()


def test_no_other_split_is_read(trained, tmp_path):
    """Queries of a test split, and how they are judged, change nothing."""
    whole = dataset()
    corpus, queries = list(whole.corpus), [query for name in ("train", "dev") for query in whole.split(name).queries]
    qrels = {name: dict(whole.split(name).qrels) for name in ("train", "dev")}
    for number, name in enumerate(("first", "second")):
        test = [bidr.Query(f"t{row}", corpus[row + 40 * number].text) for row in range(30)]
        judged = {query.id: {corpus[row].id: 1} for row, query in enumerate(test)}
        data = Dataset.from_records("made", corpus, [*queries, *test], {**qrels, "test": judged})
        train(data, SMALL, tmp_path / name)
        assert json.loads((tmp_path / name / "choice.json").read_text()) == trained[2]


def test_a_stopped_run_gives_the_same_bytes(trained, tmp_path, monkeypatch):
    real, taken, stops = StageTrainer.train_step, [], {3, 14, 27, 45, 60}

    def watched(self, *given):
        value = real(self, *given)
        taken.append(self.name)
        if len(taken) in stops:
            signal.raise_signal(signal.SIGTERM)
        return value

    monkeypatch.setattr(StageTrainer, "train_step", watched)
    stopped = 0
    for _ in range(8):
        try:
            train(dataset(), SMALL, tmp_path / "cut")
            break
        except StoppedError:
            stopped += 1
    assert stopped == len(stops)
    assert files(tmp_path / "cut") == files(trained[0])


def test_measured_contenders_are_not_measured_again(trained, monkeypatch):
    monkeypatch.setattr(
        "bidr.training.model_selection.collect_candidates", lambda *given: pytest.fail("measured again")
    )
    before = files(trained[0])
    train(dataset(), SMALL, trained[0])
    assert files(trained[0]) == before


def test_stages_are_those_of_the_recipes(trained):
    """In a folder of all recipes, nothing is trained twice."""
    run = open_run(dataset(), SMALL, trained[0])
    for method, stage in (("bidr", "sparse"), ("bidr", "dense-random-walk"), ("conventional", "conventional")):
        assert run.with_config(replace(SMALL, method=method)).get_stage_name(stage) == stage


def test_an_interrupted_run_from_before_the_choice_is_resumed(tmp_path):
    path = tmp_path / "run" / "work" / "run.json"
    open_run(dataset(), CONFIG, tmp_path / "run")
    saved = json.loads(path.read_text())
    del saved["config"]["choice"]
    path.write_text(json.dumps(saved))
    open_run(dataset(), CONFIG, tmp_path / "run")
    path.write_text(json.dumps(saved))
    with pytest.raises(ConfigError, match=r"config\.method \('bidr' there, 'auto' now\)"):
        open_run(dataset(), SMALL, tmp_path / "run")


# the rule


def contend(vectors, scores, *, codes="opq", lexical=0, two=False):
    return Contender(vectors, codes, Fusion(lexical, 0.1 * lexical), two, 0.0, 0.0, 0.0, 8.0, tuple(scores))


def test_the_simplest_of_equal_contenders_is_chosen():
    rows = [contend("random-walk", [1, 0, 1, 0]), contend("warmup", [0, 1, 1, 0]), contend("warmup", [0, 0, 1, 0])]
    assert choose_contender(rows, 0).contender is rows[1]
    fused = [contend("warmup", [1, 0], lexical=5), contend("warmup", [0, 1], codes="distilled")]
    assert choose_contender(fused, 0).contender is fused[1]


def test_few_dev_queries_choose_what_leads_elsewhere_within_a_standard_error():
    far, close, best = (
        contend("averaged", [0.0] * 20, codes="distilled", lexical=50),
        contend("random-walk", [1.0] * 10 + [0.0] * 10),
        contend("warmup", [1.0] * 10 + [0.0] * 8 + [1.0] + [0.0]),
    )
    rows = [best, far, close]
    assert choose_contender(rows, 20).contender is best, "20 queries are not fewer than 20"
    choice = choose_contender(rows, 21)
    assert choice.contender is close, "1 of 20 queries is one standard error; 11 are more"
    assert "20 dev queries are few" in choice.reason


def test_fusion_then_distilled_codes_then_averaged_vectors_take_precedence_among_equals():
    parts = [("warmup", "opq", 0), ("averaged", "distilled", 0), ("warmup", "opq", 50), ("averaged", "opq", 50)]
    parts += [("unified", "contrastive", 100), ("warmup", "distilled", 50), ("averaged", "distilled", 50)]
    rows = [contend(vectors, [0.5] * 20, codes=codes, lexical=lexical) for vectors, codes, lexical in parts]
    for count in range(1, len(rows) + 1):
        assert choose_contender(rows[:count], 21).contender is rows[count - 1]


def test_a_lone_peak_among_the_weights_does_not_count():
    values = [0.5, 0.5, 0.9, 0.4, 0.8, 0.8, 0.8]
    assert int(smooth(values).argmax()) == 5


# settings


def test_the_default_is_the_choice_unless_a_method_or_recipe_is_set():
    config, name = with_default_recipe(TrainConfig(), None)
    assert (config.method, name, config.frozen.borrowers) == ("auto", "auto", "all")
    assert with_default_recipe(TrainConfig(method="bidr"), None) == (TrainConfig(method="bidr"), None)
    config, name = with_default_recipe(TrainConfig(), "bidr")
    assert (config.method, name) == ("bidr", "bidr")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: ChoiceConfig(vectors=("star",)), r"choice\.vectors: given 'star', expected one of"),
        (lambda: ChoiceConfig(codes=("opqq",)), r"choice\.codes: given 'opqq', .* did you mean 'opq'\?"),
        (lambda: ChoiceConfig(lexical=(0,)), r"choice\.lexical: given \(0,\), expected numbers of 1 or more"),
        (lambda: ChoiceConfig(small_dev=-1), r"choice\.small_dev: given -1, expected 0 or more"),
        (lambda: ChoiceConfig(codes=("opq",)), r"choice\.vectors: given 'unified' without 'contrastive'"),
    ],
)
def test_settings_that_cannot_be_are_refused(make, told):
    with pytest.raises(ConfigError, match=told):
        TrainConfig(choice=make())


@pytest.mark.parametrize("search", [{"lexical": -1}, {"lexical": True}, {"lexical_weight": "1"}, {"lexical": 1.0}])
def test_damaged_recommendations_are_refused(search):
    with pytest.raises(ValueError, match="search"):
        parse_search_settings(search)


def test_a_model_folder_without_recommendation_opens(trained, tmp_path):
    out = trained[0]
    fields = json.loads((out / "model.json").read_text())
    folder = tmp_path / "older"
    folder.mkdir()
    for part in ("sparse", "dense", "query"):
        if (out / part).exists():
            (folder / part).symlink_to(out / part)
    for name in ("search", "check", "checksum", "xxh3"):
        fields.pop(name, None)
    write_signed_json(folder / "model.json", fields)
    assert Model(folder).search == SearchSettings()
    write_signed_json(folder / "model.json", fields | {"search": {"lexical": -3}})
    with pytest.raises(ModelError, match="search"):
        Model(folder)


def test_without_contenders_the_baseline_is_left(tmp_path_factory):
    model = make_run(tmp_path_factory, "baseline", (), ())
    rows = model.training["choice"]["rows"]
    assert [(row["vectors"], row["codes"], row["lexical"]) for row in rows] == [("warmup", "opq", 0)]
    assert model.search == SearchSettings()
