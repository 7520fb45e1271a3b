"""Recipes: all run, all equally long; what makes each what it is."""

import json
import re
import signal
from dataclasses import is_dataclass, replace
from itertools import chain, count
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
from sample_training import CONFIG, DOCUMENTS, TRAIN, dataset, files, with_settings

from bidr.errors import ConfigError, StoppedError
from bidr.index.reader import IndexReader
from bidr.models.auto import open_encoder
from bidr.models.corpus_encoding import encode_rows, hash_weights
from bidr.pipeline.build import build
from bidr.quantization.learned_ivf import ProbeStats
from bidr.training import config_validation, ivf_lists, mining, stages
from bidr.training import run_context as training_run
from bidr.training.config import CodesOnlyConfig, DenseConfig, EncoderConfig, SparseConfig, TrainConfig, UnifyConfig
from bidr.training.engine import loop
from bidr.training.engine.loop import StageTrainer
from bidr.training.presets import RECIPES, list_contradictions, with_recipe
from bidr.training.run_context import TrainingRun, save_stage
from bidr.training.stage_cache import name_stage
from bidr.training.train import open_run, train, train_model

STEPS = -(-TRAIN // CONFIG.batch_size)
ALL_STEPS = 8 * STEPS


def hash_saved(run: TrainingRun, stage: str) -> str:
    """Hash a stage's encoder as a model opens it: the built-in one hashes otherwise while it trains."""
    return hash_weights(open_encoder(run.folder / run.get_stage_name(stage) / "encoder"))


@pytest.fixture(scope="module")
def scores_file(tmp_path_factory):
    """A teacher's scores as a file: a made one, which likes long ids."""
    path = tmp_path_factory.mktemp("teacher") / "scores.tsv"
    data = dataset()
    random = np.random.default_rng(3)
    lines = ["query-id\tcorpus-id\tscore"]
    for query, judged in data.split("train").qrels.items():
        others = [f"d{row}" for row in random.choice(DOCUMENTS, 12, replace=False)]
        lines += [f"{query}\t{each}\t{2.0 + (each in judged)}" for each in sorted({*others, *judged})]
    path.write_text("\n".join(lines) + "\n")
    return path


# Codes that are sums need 256 codewords, more than there are documents here: see test_additive_stage.py.
SUMS = ("star-distilled", "star-distilled-unasked", "star-tuned", "star-taught")
# These would do nothing to vectors of 16 dimensions and codes of 16 codewords: they have a test of their own.
WIDE = ("bidr-4bit", "bidr-matryoshka")
# These choose among several models: see test_model_selection.py.
CHOOSING = [name for name, recipe in RECIPES.items() if recipe.settings["method"] == "auto"]
SMALL = [name for name in RECIPES if name not in (*SUMS, *WIDE, *CHOOSING)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory, scores_file):
    """One folder for all recipes; nothing is given that would have its way over one of them."""
    base = with_settings(
        distil={"teacher": str(scores_file), "depth": 8}, warmup={"negatives": None}, sparse={"negatives": None}
    )
    told = [line for name in SMALL for line in list_contradictions(base, name)]
    assert all(re.search("(unify.epochs|method) is .* as the recipe has it", line) for line in told)
    return open_run(dataset(), base, tmp_path_factory.mktemp("shared") / "run")


@pytest.mark.parametrize("name", SMALL)
def test_every_recipe_leaves_a_model_after_as_many_steps_as_the_method(shared, tmp_path, name):
    run = shared.with_config(with_recipe(shared.base, name))
    model = train_model(run, tmp_path / "model")
    taken = sum(epochs[-1]["epoch"] for epochs in model.training["stages"].values()) * STEPS
    two_encoders = run.config.method == "bidr" and run.config.unify.epochs == 0
    expected = ALL_STEPS - two_encoders * CONFIG.unify.epochs * STEPS
    assert taken == (CONFIG.warmup.epochs * STEPS if name == "warmup-opq" else expected)
    queries = model.encode_queries(["bal bel", "gan"])
    assert all(np.isfinite(side).all() for side in queries)
    assert model.codebooks.bytes_per_doc == CONFIG.bytes_per_doc


def test_recipes_in_one_folder_are_those_in_folders_of_their_own(shared, tmp_path):
    """Also after all others have been there: no stage is taken for another's."""
    for name in ("star-dpq", "bidr-ann-first"):
        alone = train(dataset(), with_recipe(shared.base, name), tmp_path / name)
        beside = train_model(shared.with_config(with_recipe(shared.base, name)), tmp_path / f"{name}-beside")
        assert alone.fingerprint == beside.fingerprint
    models = {}
    for name in SMALL:
        model = train_model(shared.with_config(with_recipe(shared.base, name)), tmp_path / f"again-{name}")
        # Stages of different settings may both keep their initial weights, and so give one fingerprint.
        models[name] = (*model.training["stages"], model.fingerprint)
    same = {frozenset(other for other in models if models[other] == models[name]) for name in models}
    assert {group for group in same if len(group) > 1} == {
        frozenset({"conventional", "star-opq"}),
        frozenset({"bidr", "bidr-unified"}),
    }


def test_every_stage_of_every_recipe_keeps_its_initial_weights_if_no_epoch_is_better_on_dev(
    tmp_path, monkeypatch, scores_file
):
    """Dev falls from measurement to measurement, so that no trained epoch is ever better."""
    values, starts = count(0, -1), {}

    def measure(trainer, validate):
        if not trainer.history:
            starts[trainer.name] = {name: value.clone() for name, value in trainer.objective.state_dict().items()}
        return {trainer.measure: float(next(values))}

    def save(trainer, folder):
        assert trainer.best_epoch == 0
        state = trainer.objective.state_dict()
        assert all(torch.equal(state[name], value) for name, value in starts[trainer.name].items()), trainer.name
        save_stage(trainer, folder)

    monkeypatch.setattr(loop, "_measure", measure)
    monkeypatch.setattr(training_run, "save_stage", save)
    base = with_settings(
        distil={"teacher": str(scores_file), "depth": 8}, sparse={"epochs": 1}, dense={"epochs": 1}, unify={"epochs": 1}
    )
    run = open_run(dataset(), base, tmp_path / "run")
    for name in SMALL:
        train_model(run.with_config(with_recipe(base, name)), tmp_path / name)
    records = {path.parent.name: json.loads(path.read_text()) for path in run.folder.glob("*/done.json")}
    assert {name.partition("+")[0].partition("-")[0] for name in records} == {
        *("warmup", "sparse", "dense", "unify", "conventional", "jpq")
    }
    assert all(record["best_epoch"] == 0 and record["history"][0]["epoch"] == 0 for record in records.values())
    assert all(record["history"][-1]["epoch"] > 0 for record in records.values())
    assert records.keys() == starts.keys() == {path.parent.name for path in run.folder.glob("*/encoder")}


def test_warmup_opq_is_the_encoder_of_the_warmup_with_codes_fitted_to_its_vectors(shared, tmp_path):
    run = shared.with_config(with_recipe(shared.base, "warmup-opq"))
    model = train_model(run, tmp_path / "model")
    encoders = {hash_weights(side) for side in (model.sparse, model.dense, model.query)}
    assert encoders == {hash_saved(run, "warmup")}
    expected = run.fit_codebooks(stages.train_warmup(run))
    assert np.array_equal(model.codebooks.centroids, expected.centroids)


def test_small_codewords_and_vectors_to_cut_off_make_models_of_their_own(tmp_path):
    base = replace(with_settings(encoder={"dim": 144}, unify={"epochs": 1}), codewords=256)
    run = open_run(dataset(documents=300), base, tmp_path / "run")
    plain, small, cut = (
        train_model(run.with_config(with_recipe(base, name)), tmp_path / name) for name in ("bidr-random-walk", *WIDE)
    )
    assert len({model.fingerprint for model in (plain, small, cut)}) == 3
    assert [(model.codebooks.books, model.codebooks.words) for model in (plain, small)] == [(2, 256), (4, 16)]
    assert hash_weights(cut.sparse) == hash_weights(plain.sparse), "prefixes are the dense side's"
    assert hash_weights(cut.dense) != hash_weights(plain.dense)


def test_an_unknown_recipe_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"'star-opqq'; did you mean 'star-opq'\?"):
        with_recipe(CONFIG, "star-opqq")


def test_a_judge_without_a_margin_is_refused():
    with pytest.raises(ConfigError, match=r"negatives\.judge: given 'teacher' without negatives\.margin"):
        with_settings(negatives={"judge": "teacher"})


def test_a_stage_is_named_after_what_sets_it_apart():
    other = with_settings(sparse={"loss": "dpq"}, dense={"sampler": "snowball", "prefixes": (4, 8)})
    assert name_stage("warmup", other, CONFIG) == "warmup"
    assert name_stage("sparse", other, CONFIG) == "sparse+loss=dpq"
    assert name_stage("dense-snowball", other, CONFIG) == "dense-snowball+prefixes=4,8+sparse.loss=dpq"
    assert name_stage("conventional", other, CONFIG) == "conventional"
    assert name_stage("sparse", other, other) == "sparse"
    filtered = with_settings(negatives={"margin": 0.1}, warmup={"negatives": None})
    assert name_stage("warmup", filtered, CONFIG) == "warmup", "in-batch is what None means here"
    assert name_stage("sparse", filtered, CONFIG) == "sparse", "nothing mined, nothing filtered"
    assert name_stage("dense-snowball", filtered, CONFIG) == "dense-snowball+negatives.margin=0.1"
    longer = with_settings(warmup={"epochs": 5})
    assert name_stage("conventional", longer, CONFIG) == "conventional+warmup.epochs=5"
    path = replace(CONFIG, distil=replace(CONFIG.distil, source="teacher", teacher="/some/where/" + "x" * 200))
    assert re.fullmatch(r"sparse\+[0-9a-f]{16}", name_stage("sparse", path, CONFIG))


def transformer(**settings):
    return TrainConfig(encoder=EncoderConfig(backbone="a/b", **settings))


def test_what_each_kind_of_encoder_takes_is_taken():
    transformer(pooling="cls", normalise=True, projection=64, dropout=0.1, query_prompt="q: ", document_prompt="")
    transformer(dim=EncoderConfig.dim)  # as if it was not given
    with_settings(encoder={"scale": 10.0, "dim": 32, "vocabulary": 300})


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: TrainConfig(method="bdir"),
            r"method: given 'bdir', expected one of 'auto', .*; did you",
        ),
        (lambda: TrainConfig(sparse=SparseConfig(loss="jont")), r"sparse\.loss: given 'jont'.*'joint'"),
        (lambda: TrainConfig(codewords=17), r"codewords: given 17, expected one of 256, 16"),
        (lambda: with_settings(encoder={"pooling": "median"}), r"encoder\.pooling: given 'median'"),
        (lambda: with_settings(encoder={"projection": 8}), r"encoder\.projection: given 8 with the built-in.*\.dim"),
        (lambda: with_settings(encoder={"dropout": 0.1}), r"encoder\.dropout: given 0.1 with the built-in encoder"),
        (lambda: with_settings(encoder={"pooling": "cls"}), r"encoder\.pooling: given 'cls' with the built-in.*leave"),
        (lambda: with_settings(encoder={"normalise": False}), r"encoder\.normalise: given False with the.* length 1"),
        (lambda: with_settings(encoder={"query_prompt": "q: "}), r"encoder\.query_prompt: given 'q: ' with the built"),
        (lambda: with_settings(encoder={"document_prompt": ""}), r"encoder\.document_prompt: given '' with the built"),
        (lambda: transformer(dim=64), r"encoder\.dim: given 64 with the transformer 'a/b'.*encoder\.projection"),
        (lambda: transformer(vocabulary=99), r"encoder\.vocabulary: given 99 with the transformer 'a/b'.*leave it"),
        (lambda: with_settings(text={"titles": None}), r"text\.titles: given None"),
    ],
)
def test_a_value_that_is_none_of_the_choices_is_refused_in_python_too(make, told):
    with pytest.raises(ConfigError, match=told):
        make()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"learning_rate": 0.0}, "more than 0"),
        ({"learning_rate": -1e-3}, "more than 0"),
        ({"clip": 0.0}, "more than 0"),
        ({"warmup_share": 1.5}, "0 to 1"),
        ({"warmup_share": -0.1}, "0 to 1"),
        ({"checkpoint_minutes": -1.0}, "0 or more"),
        ({"weight_decay": float("nan")}, "a finite number"),
        ({"sparse.crops": -1.0}, "0 or more"),
        ({"sparse.codebook_rate": -1.0}, "0 or more"),
        ({"frozen.borrowed": -1.0}, "0 or more"),
        ({"frozen.finer": -3.0}, "0 to 3"),
        ({"frozen.finer": 50.0}, "0 to 3"),
        ({"frozen.rate": 0.0}, "more than 0"),
        ({"frozen.crops": float("inf")}, "a finite number"),
        ({"negatives.live_margin": float("-inf")}, "a finite number"),
        ({"encoder.dropout": 1.0}, "a share from 0 to below 1"),
        ({"encoder.dropout": -0.1}, "a share from 0 to below 1"),
        ({"batch_size": 1}, "2 or more"),
        ({"frozen.temperature": 0.0}, "more than 0"),
    ],
)
def test_a_number_that_cannot_work_is_refused(given, expected):
    [(name, value)] = given.items()
    part, _, below = name.rpartition(".")
    with pytest.raises(ConfigError, match=f"^{re.escape(f'{name}: given {value}, expected {expected}')}$"):
        with_settings(**{part: {below: value}}) if part else replace(CONFIG, **{name: value})


def test_every_bound_is_of_a_setting():
    """A name that is misspelt would bound nothing."""
    known = set(types_of(TrainConfig()))
    assert {
        *chain(*config_validation.MINIMUM.values()),
        *config_validation.POSITIVE,
        *config_validation.RANGES,
    } <= known
    numbers = {name for name, kind in types_of(TrainConfig()).items() if kind & {int, float}}
    free = {
        "negatives.margin",
        "negatives.live_margin",
        "codewords",
        "encoder.dropout",
        "dense.prefixes",
        "choice.lexical",
    }
    assert (
        numbers - {*chain(*config_validation.MINIMUM.values()), *config_validation.POSITIVE, *config_validation.RANGES}
        <= free
    )


def types_of(config, prefix=""):
    """The types of every setting, by its flag."""
    found = {}
    for name, hint in get_type_hints(type(config)).items():
        value = getattr(config, name)
        below = types_of(value, f"{prefix}{name}.") if is_dataclass(value) else {prefix + name: {hint, *get_args(hint)}}
        found |= below
    return found


def test_a_teacher_that_is_needed_and_not_named_is_asked_for(tmp_path):
    with pytest.raises(ConfigError, match=r"distil\.teacher"):
        train(dataset(), with_recipe(CONFIG, "bidr-taught"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_file_in_place_of_the_folder_is_called_one(tmp_path):
    (tmp_path / "run").write_text("words")
    with pytest.raises(ConfigError, match=r"run is a file, expected a folder"):
        train(dataset(), CONFIG, tmp_path / "run")
    assert (tmp_path / "run").read_text() == "words"


def test_jpq_without_steps_to_learn_in_is_refused():
    with pytest.raises(ConfigError, match=r"unify\.epochs: given 0, expected 1"):
        with_recipe(with_settings(unify={"epochs": 0}), "star-jpq")
    with pytest.raises(ConfigError, match=r"unify\.lists: given 8"):
        with_recipe(with_settings(unify={"lists": 8}), "star-tuned")


def test_what_was_given_has_its_way_over_a_recipe():
    given = TrainConfig(
        frozen=CodesOnlyConfig(steps=50), dense=DenseConfig(prefixes=(8, 16)), unify=UnifyConfig(epochs=3)
    )
    sums = with_recipe(given, "star-distilled")
    assert (sums.frozen.steps, sums.frozen.questions, sums.conventional.codes) == (50, 20_000, "distilled")
    assert list_contradictions(given, "star-distilled") == [
        "recipe 'star-distilled': frozen.steps is 50 as given, not 1200"
    ]
    cut = with_recipe(given, "bidr-matryoshka")
    assert (cut.dense.prefixes, cut.unify.epochs) == ((8, 16), 0), "which stages there are is the recipe's own"
    assert list_contradictions(given, "bidr-matryoshka") == [
        "recipe 'bidr-matryoshka': unify.epochs is 0 as the recipe has it, not 3",
        "recipe 'bidr-matryoshka': dense.prefixes is (8, 16) as given, not (64, 128)",
    ]
    assert with_recipe(replace(given, method="conventional"), "bidr").method == "bidr"
    assert with_recipe(TrainConfig(), "star-distilled").frozen.steps == 1_200


def test_pseudo_queries_are_drawn_for_all_documents_unless_the_recipe_says_otherwise():
    """On acl and debian the documents without a train question are exactly the answers of dev and test."""
    for name in SUMS:
        expected = "unasked" if name == "star-distilled-unasked" else "all"
        assert with_recipe(TrainConfig(), name).frozen.borrowers == expected
    assert "only for documents without a train query" in RECIPES["star-distilled-unasked"].description


def test_a_renamed_recipe_works_with_a_warning():
    with pytest.warns(FutureWarning, match="recipe 'star-distilled-evenly' is now 'star-distilled'"):
        config = with_recipe(TrainConfig(), "star-distilled-evenly")
    assert config == with_recipe(TrainConfig(), "star-distilled")


def test_in_python_settings_override_the_configuration_and_both_the_recipe(tmp_path, monkeypatch):
    import bidr.pipeline.train

    asked = []
    monkeypatch.setattr(bidr.pipeline.train, "train_run", lambda data, config, *_: asked.append(config))
    bidr.pipeline.train.train(dataset(), tmp_path, CONFIG, recipe="bidr-4bit", bytes_per_doc=4)
    bidr.pipeline.train.train(dataset(), tmp_path, recipe="ance-opq", codewords=16)
    bidr.pipeline.train.train(dataset(), tmp_path, with_settings(dense={"prefixes": (4,)}), recipe="bidr-matryoshka")
    assert (asked[0].codewords, asked[0].bytes_per_doc, asked[0].unify.epochs) == (16, 4, 0)
    assert asked[0].sparse == CONFIG.sparse
    assert (asked[1].conventional.negatives, asked[1].codewords) == ("refreshed-alone", 16)
    assert asked[2].dense.prefixes == (4,)


# negatives


def test_refreshed_negatives_are_mined_by_the_encoder_as_it_is(tmp_path):
    config = with_recipe(CONFIG, "ance-opq")
    run = TrainingRun(dataset(), config, tmp_path / "work")
    stages.train_conventional(run)
    first, last = (np.load(run.folder / "mined" / f"conventional-{round_}.npy") for round_ in (0, 5))
    assert not (run.folder / "mined" / "conventional-6.npy").exists()
    begun = mining.mine_nearest_documents(run, run.load_stage_encoder("warmup"), "expected")
    assert np.array_equal(first, begun)
    differ = (np.sort(first, axis=1) != np.sort(last, axis=1)).any(axis=1)
    assert differ.mean() > 0.5
    every_other = replace(config, conventional=replace(config.conventional, refresh=4))
    run = TrainingRun(dataset(), every_other, tmp_path / "other")
    stages.train_conventional(run)
    assert sorted(path.name for path in (run.folder / "mined").glob("conventional-*")) == [
        "conventional-0.npy",
        "conventional-1.npy",
    ]


@pytest.mark.parametrize("name", ["ance-opq", "star-jpq", "bidr-jpq", "bidr-distilled", "bidr-taught"])
def test_a_recipe_that_is_stopped_again_and_again_ends_with_the_same_bytes(tmp_path, monkeypatch, name, scores_file):
    config = with_recipe(replace(CONFIG, distil=replace(CONFIG.distil, teacher=str(scores_file), depth=8)), name)
    train(dataset(), config, tmp_path / "straight")
    taken, real = [], StageTrainer.train_step
    stops = {2 * STEPS, 2 * STEPS + 2, 4 * STEPS, 5 * STEPS + 1, 6 * STEPS + 3, 7 * STEPS + 1}

    def watched(self, *given):
        value = real(self, *given)
        taken.append(self.name)
        if len(taken) in stops:
            signal.raise_signal(signal.SIGTERM)
        return value

    monkeypatch.setattr(StageTrainer, "train_step", watched)
    for _ in range(10):
        try:
            train(dataset(), config, tmp_path / "cut")
            break
        except StoppedError:
            continue
    assert len(taken) == ALL_STEPS - (config.unify.epochs == 0) * 2 * STEPS, "no step may be taken twice"
    assert files(tmp_path / "cut") == files(tmp_path / "straight")


def test_jpq_moves_codewords_and_queries_and_leaves_every_code(tmp_path):
    config = with_recipe(CONFIG, "star-jpq")
    model = train(dataset(), config, tmp_path / "run")
    run = TrainingRun(dataset(), config, tmp_path / "run" / "work")
    before, side = stages.fit_codes(run), stages.train_jpq(run)
    assert not np.allclose(model.codebooks.centroids, before.codebooks.centroids, atol=1e-4)
    assert np.array_equal(model.codebooks.rotation, before.codebooks.rotation)
    vectors = encode_rows(model.sparse, run.data.documents)
    assert np.array_equal(model.codebooks.encode(vectors), before.codebooks.encode(vectors))
    assert hash_weights(model.query) == hash_saved(run, side.name) != hash_weights(model.sparse)
    assert hash_weights(model.sparse) == hash_weights(model.dense) == hash_saved(run, "conventional")


@pytest.mark.parametrize("better", ["k-means", "learned"])
def test_the_lists_of_kmeans_are_used_where_they_are_better_on_dev(tmp_path, monkeypatch, better):
    """The stage is selected by the answers of a full scan, which says nothing about lists."""

    def measure(queries, lists, positives, nprobe):
        return ProbeStats(0.4 if np.array_equal(lists.centroids, means) else 0.5 if better == "learned" else 0.3, 0.1)

    run = TrainingRun(dataset(), with_recipe(CONFIG, "bidr-lists"), tmp_path / "work")
    coded = stages.train_sparse(run)
    means = ivf_lists.fit_initial_lists(run, coded, mining.encode_corpus_codes(run, coded)).centroids
    monkeypatch.setattr(ivf_lists, "measure_probes", measure)
    unified = stages.unify(run, "random-walk")
    lists = ivf_lists.load_learned_lists(run, unified)
    assert np.array_equal(lists.learned, lists.means) == (better == "k-means")


def test_learned_lists_are_measured_kept_and_taken_by_the_index(tmp_path):
    config = with_recipe(CONFIG, "bidr-lists")
    model = train(dataset(), config, tmp_path / "run")
    stage = tmp_path / "run" / "work" / "unify-random-walk"
    found = json.loads((stage / "lists.json").read_text())
    assert found["lists"] == DOCUMENTS // 8
    for side in ("k-means", "learned", ivf_lists.UNLEARNED):
        recalls = [found[side][probes]["recall"] for probes in ("1", "2", "4", "8")]
        assert recalls == sorted(recalls)
    with np.load(stage / "lists.npz") as kept:
        assert not np.allclose(kept["means"], kept["learned"], atol=1e-4)
        assert len(kept["of"]) == DOCUMENTS
        used = kept["learned" if found["used"] == "learned" else "means"]
        of, rotation = kept["of"], model.codebooks.rotation
    recalls = [
        np.mean([stats["recall"] for stats in found[side].values()]) for side in ("learned", ivf_lists.UNLEARNED)
    ]
    assert found["used"] == ("k-means" if recalls[1] > recalls[0] else "learned")
    for budget in (None, "4GiB"):
        build(dataset(), model, tmp_path / f"index-{budget}", engine="lists", ram_budget=budget, device="cpu")
        with IndexReader.open(tmp_path / f"index-{budget}") as reader:
            sizes = np.bincount(of)
            filled = np.flatnonzero(sizes)
            assert np.array_equal(np.diff(reader.candidates.offsets), sizes[filled])
            assert np.array_equal(of[np.asarray(reader.order)], np.sort(of)), "the lists of training"
            centroids = np.load(reader.generation / "centroids.npy")
            assert np.allclose(centroids, used[filled] @ rotation, atol=1e-5)
    build(dataset(), model, tmp_path / "k-means", engine="lists", learned_lists=False, device="cpu")
    with IndexReader.open(tmp_path / "k-means") as reader:
        assert reader.describe()["lists"]["made_by"] == "k-means"
