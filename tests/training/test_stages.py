import json
import signal
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from sample_training import CONFIG, DOCUMENTS, TRAIN, dataset, files, with_settings

from bidr.data.positives import Positives
from bidr.errors import ConfigError, StoppedError
from bidr.models.corpus_encoding import encode_rows, hash_weights
from bidr.quantization.codebooks import Codebooks
from bidr.training import mining, stages
from bidr.training.engine.logs import LOG, read_lines
from bidr.training.engine.loop import StageTrainer
from bidr.training.losses.objectives import DenseObjective
from bidr.training.negatives.graph_sampling_kernels import HOP_ATTEMPTS
from bidr.training.negatives.samplers import LocalitySampler, RandomSampler
from bidr.training.run_context import TrainingRun
from bidr.training.train import open_run, train
from bidr.training.validator import Validator, compute_recall, make_validator

ALL = ["warmup", "sparse", "dense-random-walk", "unify-random-walk"]
STEPS = -(-TRAIN // CONFIG.batch_size)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of all stages, and how many steps each took."""
    out = tmp_path_factory.mktemp("whole") / "run"
    taken = []
    with pytest.MonkeyPatch.context() as patch:
        real = StageTrainer.train_step
        patch.setattr(StageTrainer, "train_step", lambda self, *given: taken.append(self.name) or real(self, *given))
        train(dataset(), CONFIG, out)
    return out, taken


def test_all_stages_run_in_order_and_save_a_model(whole):
    out, taken = whole
    assert taken == [stage for stage in ALL for _ in range(2 * STEPS)]
    assert {"model.json", "sparse", "dense", "query"} <= {path.name for path in out.iterdir()}
    assert not list(out.rglob("checkpoint.pt"))
    assert not list(out.rglob("vectors.npy")), "what unification encoded is not needed any more"


def test_the_same_seed_gives_the_same_bytes(whole, tmp_path):
    train(dataset(), CONFIG, tmp_path / "again")
    assert files(tmp_path / "again") == files(whole[0])


def test_another_seed_gives_another_model(whole, tmp_path):
    train(dataset(), replace(CONFIG, seed=1, unify=replace(CONFIG.unify, epochs=0)), tmp_path / "other")
    name = "sparse/0_StaticEmbedding/model.safetensors"
    assert files(tmp_path / "other")[name] != files(whole[0])[name]


@pytest.mark.parametrize("sampler", ["random-walk", "snowball"])
def test_a_run_stopped_many_times_gives_the_same_bytes(whole, tmp_path, monkeypatch, sampler):
    """Stopped at seven places in four stages: within epochs, at their ends, at stages' ends."""
    config = with_settings(dense={"sampler": sampler})
    expected = whole[0]
    if sampler != "random-walk":
        train(dataset(), config, tmp_path / "straight")
        expected = tmp_path / "straight"
    stops = {1, 2 * STEPS, 2 * STEPS + 1, 3 * STEPS, 4 * STEPS + 3, 6 * STEPS, 7 * STEPS + 2}
    taken, real = [], StageTrainer.train_step

    def watched(self, *given):
        value = real(self, *given)
        taken.append(self.name)
        if len(taken) in stops:
            signal.raise_signal(signal.SIGTERM)
        return value

    monkeypatch.setattr(StageTrainer, "train_step", watched)
    stopped = 0
    for _ in range(10):
        try:
            train(dataset(), config, tmp_path / "cut")
            break
        except StoppedError:
            stopped += 1
    assert stopped == len(stops)
    assert len(taken) == 8 * STEPS, "no step may be taken twice"
    assert files(tmp_path / "cut") == files(expected)


def test_a_finished_run_is_not_trained_again(whole, monkeypatch):
    before = files(whole[0])
    monkeypatch.setattr(StageTrainer, "train_step", lambda self, *given: pytest.fail("trained again"))
    train(dataset(), CONFIG, whole[0])
    assert files(whole[0]) == before


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (replace(CONFIG, seed=3), r"seed \(0 there, 3 now\)"),
        (replace(CONFIG, bytes_per_doc=4), "bytes_per_doc"),
        (with_settings(dense={"start": "warmup"}), r"dense\.start"),
        (with_settings(encoder={"dim": 32}), r"encoder\.dim"),
        (with_settings(text={"titles": "ignore"}), r"text\.titles"),
    ],
)
def test_another_setting_in_the_same_folder_is_refused_by_name(whole, config, name):
    before = files(whole[0])
    with pytest.raises(ConfigError, match=name):
        train(dataset(), config, whole[0])
    assert files(whole[0]) == before


def test_settings_without_effect_on_the_model_may_change(whole):
    before = files(whole[0])
    changed = replace(CONFIG, checkpoint_minutes=1.0, tokens_at_once=100, logs=False, device="auto")
    train(dataset(), changed, whole[0])
    weights = [name for name in before if name.endswith(".safetensors")]
    assert all(files(whole[0])[name] == before[name] for name in weights)
    train(dataset(), CONFIG, whole[0])
    assert files(whole[0]) == before


def test_other_data_and_foreign_folders_are_refused(whole, tmp_path):
    with pytest.raises(ConfigError, match="data"):
        train(dataset("others"), CONFIG, whole[0])
    (tmp_path / "letter.txt").write_text("dear reader")
    with pytest.raises(ConfigError, match="is not empty"):
        train(dataset(), CONFIG, tmp_path)


def test_an_invalid_setting_leaves_no_folder(tmp_path):
    with pytest.raises(ConfigError, match="must divide"):
        train(dataset(), replace(CONFIG, bytes_per_doc=3), tmp_path / "run")
    one_epoch = with_settings(warmup={"epochs": 1}, sparse={"epochs": 1}, dense={"epochs": 1}, unify={"epochs": 0})
    assert not train(dataset(), one_epoch, tmp_path / "run").unified


# what the stages learn from and change


def test_unification_changes_the_query_encoder_and_nothing_else(whole):
    work = whole[0] / "work"
    kept, model = files(work), files(whole[0])
    for part, stage in (("sparse", "sparse"), ("dense", "dense-random-walk"), ("query", "unify-random-walk")):
        name = "0_StaticEmbedding/model.safetensors"
        assert model[f"{part}/{name}"] == kept[f"{stage}/encoder/{name}"]
    tables = [model[f"{part}/0_StaticEmbedding/model.safetensors"] for part in ("sparse", "dense", "query")]
    assert len(set(tables)) == 3
    assert model["sparse/quantizer.safetensors"] == kept["sparse/codebooks.safetensors"]


def test_the_sparse_stage_moves_codewords_and_not_the_rotation(whole):
    run = TrainingRun(dataset(), CONFIG, whole[0] / "work")
    first, learned = run.fit_codebooks(run.load_stage_encoder("warmup")), stages.train_sparse(run).codebooks
    assert np.array_equal(first.rotation, learned.rotation)
    assert not np.allclose(first.centroids, learned.centroids, atol=1e-3)


def test_train_candidates_exclude_positives(whole):
    run = TrainingRun(dataset(), CONFIG, whole[0] / "work")
    side, pairs = stages.train_sparse(run), run.data.train.pairs
    codes = side.codebooks.encode(encode_rows(side.encoder, run.data.documents))
    assert np.array_equal(stages.encode_corpus_codes(run, side), codes)
    scores = side.codebooks.compute_scores(encode_rows(side.encoder, run.data.train.tokens), codes)
    found = stages.mine_train_candidates(run, side)
    for query, padded in enumerate(found.tolist()):
        rows = [row for row in padded if row >= 0]
        best = np.sort(scores[query])[::-1][: CONFIG.dense.depth]
        assert len(rows) >= CONFIG.dense.depth - 2
        assert not set(rows) & set(pairs.get_rows(query).tolist())
        assert (scores[query, rows] >= best[-1] - 1e-5).all()
        assert all(a >= b - 1e-5 for a, b in pairwise(scores[query, rows]))


def test_locality_is_logged_for_each_epoch_of_local_batches(whole):
    history = TrainingRun(dataset(), CONFIG, whole[0] / "work").read_history("dense-random-walk")
    assert [epoch["epoch"] for epoch in history] == [0, 1, 2]
    assert all(0 < epoch["locality_last_quarter"] <= 1 and epoch["restarts"] >= 0 for epoch in history[1:])


@pytest.fixture
def trained_sparse(whole, tmp_path):
    """A workshop in which all but the sparse stage and what comes before it is still to be done."""
    import shutil

    def make(config) -> TrainingRun:
        folder = tmp_path / f"work{len(list(tmp_path.iterdir()))}"
        shutil.copytree(whole[0] / "work", folder)
        for stage in (ALL[2], ALL[3]):
            shutil.rmtree(folder / stage)
        return TrainingRun(dataset(), config, folder)

    return make


@pytest.mark.parametrize("start", ["backbone", "warmup", "sparse"])
def test_the_dense_stage_starts_from_the_configured_encoder(trained_sparse, monkeypatch, start):
    run = trained_sparse(with_settings(dense={"start": start}))
    begun = []
    monkeypatch.setattr(
        run, "run_stage", lambda stage, objective, *_, **__: begun.append(hash_weights(objective.encoder))
    )
    monkeypatch.setattr(
        run, "load_stage_encoder", lambda stage, real=run.load_stage_encoder: real(stage) if stage in ALL[:2] else None
    )
    stages.train_dense(run, "random-walk")
    expected = {
        "backbone": run.load_backbone(),
        "warmup": run.load_stage_encoder("warmup"),
        "sparse": run.load_stage_encoder("sparse"),
    }
    assert begun == [hash_weights(expected[start])]


def test_each_sampler_makes_its_own_batches(trained_sparse):
    run = trained_sparse(with_settings(dense={"hops": 4, "batch_size": 7}))
    side = stages.train_sparse(run)
    found = stages.mine_train_candidates(run, side)
    for sampler, kind in (("random-walk", LocalitySampler), ("snowball", LocalitySampler), ("mined", RandomSampler)):
        batches, _ = stages.make_dense_sampler(run, side, sampler)
        assert isinstance(batches, kind)
        plan = batches.plan(0)
        assert all(plan.negatives[place] in found[query] for place, query in enumerate(plan.queries))
    assert len(stages.make_dense_sampler(run, side, "in-batch")[0].plan(0).negatives) == 0
    for sampler in ("random-walk", "snowball", "mined", "mined-alone", "in-batch"):
        assert stages.make_dense_sampler(run, side, sampler)[0].plan(0).size == 7


def test_the_conventional_method_takes_as_many_steps(tmp_path, monkeypatch, whole):
    taken, real = [], StageTrainer.train_step
    monkeypatch.setattr(StageTrainer, "train_step", lambda self, *given: taken.append(self.name) or real(self, *given))
    model = train(dataset(), replace(CONFIG, method="conventional"), tmp_path / "run")
    assert taken.count("conventional") == sum(name != "warmup" for name in whole[1])
    assert taken.count("warmup") == whole[1].count("warmup")
    assert model.unified
    assert hash_weights(model.sparse) == hash_weights(model.dense) == hash_weights(model.query)
    run = TrainingRun(dataset(), replace(CONFIG, method="conventional"), tmp_path / "run" / "work")
    expected = run.fit_codebooks(run.load_stage_encoder("conventional"))
    assert np.array_equal(model.codebooks.centroids, expected.centroids)


def test_codebook_rate_zero_keeps_the_codewords(whole, tmp_path):
    config = with_settings(sparse={"codebook_rate": 0.0, "epochs": 1}, warmup={"epochs": 1})
    run = TrainingRun(dataset(), config, tmp_path / "work")
    first = run.fit_codebooks(stages.train_warmup(run))
    assert np.array_equal(stages.train_sparse(run).codebooks.centroids, first.centroids)


def test_bm25_negatives_are_drawn_if_configured(tmp_path):
    run = TrainingRun(dataset(), with_settings(warmup={"negatives": "bm25"}), tmp_path / "work")
    plan = run.make_random_sampler("bm25").plan(0)
    pairs = run.data.train.pairs
    texts = [set(document.text.split()) for document in run.dataset.corpus]
    shared = 0
    for query, negative in zip(plan.queries.tolist(), plan.negatives.tolist(), strict=True):
        assert negative not in pairs.get_rows(query)
        shared += bool(texts[negative] & set(run.data.train.texts[query].split()))
    assert shared > 0.9 * TRAIN
    assert len(run.make_random_sampler("in-batch").plan(0).negatives) == 0


# dev


def test_recall_is_the_mean_share_of_positives_found():
    pairs = Positives(np.array([0, 1, 3, 5]), np.array([4, 1, 2, 7, 8]))
    found = np.array([[4, -1], [2, 9], [0, 3]])
    assert compute_recall(found, pairs) == pytest.approx((1 + 0.5 + 0) / 3)


@pytest.fixture(scope="module")
def probed(whole):
    return TrainingRun(dataset(), CONFIG, whole[0] / "work")


def test_validation_uses_the_corpus_or_a_sample_with_all_positives(probed):
    material = probed.data
    assert len(make_validator(material, DOCUMENTS, 0, "cpu").rows) == DOCUMENTS
    part = make_validator(material, 30, 0, "cpu")
    assert 30 <= len(part.rows) <= 30 + len(material.dev.pairs.rows)
    assert np.array_equal(part.rows[part.pairs.rows], material.dev.pairs.rows)


@pytest.mark.parametrize("most", [30, DOCUMENTS])
def test_dev_metrics_equal_a_naive_sort(probed, most):
    probe, encoder = make_validator(probed.data, most, 0, "cpu"), probed.load_stage_encoder("sparse")
    codebooks = Codebooks.load(probed.folder / "sparse" / "codebooks.safetensors")
    queries = encode_rows(encoder, probed.data.dev.tokens)
    vectors = encode_rows(encoder, probed.data.documents)[probe.rows]
    exact = np.argsort(-(queries @ vectors.T), axis=1)
    coded = np.argsort(-codebooks.compute_scores(queries, codebooks.encode(vectors)), axis=1, kind="stable")[:, :12]
    assert probe.measure_exact(encoder) == pytest.approx(compute_recall(exact[:, :10], probe.pairs))
    assert probe.measure_candidates(encoder, codebooks, 12) == pytest.approx(
        compute_recall(coded, probe.pairs), abs=0.07
    )
    ranked = np.array([[row for row in order if row in kept][:10] for order, kept in zip(exact, coded, strict=True)])
    assert probe.measure_reranking(encoder, coded) == pytest.approx(compute_recall(ranked, probe.pairs))
    fewer = np.where(np.arange(12) < 4, coded, -1)
    ranked = np.array([[row for row in order if row in kept[:4]] for order, kept in zip(exact, coded, strict=True)])
    assert probe.measure_reranking(encoder, fewer) == pytest.approx(compute_recall(ranked, probe.pairs))


def test_padding_candidates_are_never_ranked():
    """Whatever stands in for them scores best here."""
    probe = Validator(None, np.arange(3), Positives(np.array([0, 1]), np.array([1])), "cpu")
    candidates = np.array([[1, *[-1] * 12, 2]])
    vectors, queries = np.array([[9.0], [1.0], [2.0]], dtype=np.float32), np.ones((1, 1), dtype=np.float32)
    assert probe.measure_ranking(queries, vectors, np.maximum(candidates, 0), candidates) == 1.0


def test_a_stage_saves_its_best_dev_epoch(tmp_path):
    """Dev is made to prefer the first of two trained epochs to the second and to the initial weights."""
    run = TrainingRun(dataset(), CONFIG, tmp_path / "work")
    encoder, values, seen = run.load_backbone(), iter([0.5, 0.9, 0.1]), []

    def validate() -> float:
        seen.append(encode_rows(encoder, run.data.documents))
        return next(values)

    objective = DenseObjective(encoder, run.data.documents, run.data.train, run.scale)
    run.run_stage("made", objective, run.make_random_sampler("in-batch"), 2, validate)
    assert np.allclose(encode_rows(run.load_stage_encoder("made"), run.data.documents), seen[1], atol=1e-5)
    assert not np.allclose(seen[1], seen[2], atol=1e-4)


def test_a_run_older_than_the_number_of_conventional_epochs_is_not_resumed_without_them(tmp_path):
    """0 epochs make another model, although settings that are 0 and absent from an older run usually change nothing."""
    open_run(dataset(), CONFIG, tmp_path / "run")
    record = tmp_path / "run" / "work" / "run.json"
    settings = json.loads(record.read_text())
    del settings["config"]["conventional"]["epochs"]
    record.write_text(json.dumps(settings))
    open_run(dataset(), CONFIG, tmp_path / "run")
    record.write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match=r"another config\.conventional\.epochs \(None there, 0 now\)"):
        open_run(dataset(), with_settings(conventional={"epochs": 0}), tmp_path / "run")


def test_the_walk_of_the_paper_is_a_setting(tmp_path):
    """It hops through all candidates, however small the corpus is, and never instead of the drawn negative."""
    run = TrainingRun(dataset(), with_settings(dense={"depth": 15, "walk": "paper"}), tmp_path / "run")
    coded = stages.train_sparse(run)
    paper, _ = mining.make_dense_sampler(run, coded, "random-walk")
    near, _ = mining.make_dense_sampler(run.with_config(with_settings(dense={"depth": 15})), coded, "random-walk")
    assert (paper.hops, paper.attempts) == (15, 1)
    assert (near.hops, near.attempts) == (mining.MIN_HOPS, HOP_ATTEMPTS)
    assert run.get_stage_name("dense-random-walk") == "dense-random-walk"
    assert run.with_config(CONFIG).get_stage_name("dense-random-walk") != "dense-random-walk"
    with pytest.raises(ConfigError, match=r"dense\.hops: given 5 with dense\.walk 'paper', expected none"):
        with_settings(dense={"hops": 5, "walk": "paper"})


def test_codes_that_are_not_trained_are_those_of_the_warmup(tmp_path):
    settings = with_settings(sparse={"epochs": 0}, unify={"epochs": 0})
    run = open_run(dataset(), settings, tmp_path)
    coded, warmup = stages.train_sparse(run), stages.train_warmup(run)
    fitted = run.fit_codebooks(warmup)
    assert np.array_equal(coded.codebooks.centroids, fitted.centroids)
    vectors = [encode_rows(encoder, run.data.documents) for encoder in (coded.encoder, warmup)]
    assert np.allclose(*vectors, atol=1e-6), "but for the rounding of saving weights"
    assert [epoch["epoch"] for epoch in run.read_history("sparse")] == [0]
    lines = read_lines(tmp_path / "work" / "warmup" / LOG)
    assert [line["seconds"] >= 0 for line in lines if line.get("epoch")] == [True] * settings.warmup.epochs
