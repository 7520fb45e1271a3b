"""Scores of a cross-encoder: computed once, kept, and what they are used for."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sample_training import CONFIG, dataset

from bidr.errors import DataError, ModelError
from bidr.training import mining, stages
from bidr.training.losses import teacher
from bidr.training.presets import with_recipe
from bidr.training.run_context import TrainingRun

DEPTH = 6


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory):
    """A BERT with random weights that knows the made words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("cross")
    words = sorted({word for document in dataset().corpus for word in document.text.split()})
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **names).save_pretrained(folder)
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=len(vocabulary), num_labels=1, initializer_range=0.5, **shape)
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def shop_of(folder, name, taught_by, **distil) -> TrainingRun:
    config = replace(CONFIG, distil=replace(CONFIG.distil, teacher=str(taught_by), depth=DEPTH, **distil))
    return TrainingRun(dataset(), with_recipe(config, name), folder)


def test_a_cross_encoder_scores_positives_and_mined_documents_once(cross_encoder, tmp_path, monkeypatch):
    from sentence_transformers import CrossEncoder

    run = shop_of(tmp_path / "work", "bidr-taught", cross_encoder)
    mined = mining.mine_nearest_documents(run, stages.train_warmup(run), "neighbours")
    pool, judged = teacher.score_teacher_pool(run, mined, "neighbours")
    assert np.array_equal(pool, mined[:, :DEPTH])
    texts, model = [document.text for document in run.dataset.corpus], CrossEncoder(str(cross_encoder), device="cpu")
    pairs = run.data.train.pairs
    for query in (0, 17, 40):
        asked = run.data.train.texts[query]
        rows = [row for row in [*pool[query].tolist(), *pairs.get_rows(query).tolist()] if row >= 0]
        expected = model.predict([(asked, texts[row]) for row in rows], activation_fn=torch.nn.Identity())
        own = judged.positives[pairs.starts[query] : pairs.starts[query + 1]]
        found = [*judged.mined[query][pool[query] >= 0], *own]
        assert np.allclose(found, expected, atol=1e-4)
        assert np.std(found) > 1e-3
    monkeypatch.setattr(teacher, "_score_with_cross_encoder", lambda *given: pytest.fail("scored again"))
    again = teacher.score_teacher_pool(run, mined, "neighbours")[1]
    assert np.array_equal(again.mined, judged.mined, equal_nan=True)


@pytest.mark.parametrize("name", ["bidr-taught", "bidr-taught-filter"])
def test_recipes_that_need_a_cross_encoder_run_with_one(cross_encoder, tmp_path, name):
    run = shop_of(tmp_path / "work", name, cross_encoder)
    side = stages.train_sparse(run)
    found = mining.mine_train_candidates(run, side)
    assert found.shape[1] == (DEPTH if name == "bidr-taught-filter" else CONFIG.dense.depth)


def test_documents_above_the_positive_by_teacher_score_are_dropped(cross_encoder, tmp_path):
    run = shop_of(tmp_path / "work", "bidr-taught-filter", cross_encoder)
    kept = mining.mine_nearest_documents(run, stages.train_warmup(run), "neighbours")
    scores = np.load(run.folder / "mined" / "neighbours-taught.npy")
    plain = shop_of(tmp_path / "plain", "bidr", cross_encoder)
    mined = mining.mine_nearest_documents(plain, stages.train_warmup(plain), "neighbours")[:, :DEPTH]
    judged, pairs = scores[: mined.size].reshape(mined.shape), run.data.train.pairs
    dropped = 0
    for query in range(len(pairs)):
        lowest = scores[mined.size :][pairs.starts[query] : pairs.starts[query + 1]].min()
        expected = [row for row, score in zip(mined[query], judged[query], strict=True) if row >= 0 and score <= lowest]
        assert [row for row in kept[query].tolist() if row >= 0] == expected
        dropped += DEPTH - len(expected)
    assert 0 < dropped < kept.size


def test_a_scores_file_defines_the_pool(tmp_path):
    path = tmp_path / "scores.tsv"
    answer = next(iter(dataset().split("train").qrels["q3"]))
    path.write_text(f"query-id\tcorpus-id\tscore\nq3\td5\t1.5\nq3\t{answer}\t4\nq3\td7\t-2\nq60\td1\t9\n")
    run = shop_of(tmp_path / "work", "bidr-taught", path)
    pool, judged = teacher.score_teacher_pool(run, np.empty((0, 0), dtype=np.int64), "unused")
    assert pool[3].tolist() == [5, 7, -1, -1, -1, -1]
    assert judged.mined[3, :2].tolist() == [1.5, -2]
    assert judged.positives[run.data.train.pairs.starts[3]] == 4
    assert np.isnan(judged.positives).sum() == len(judged.positives) - 1
    assert (np.delete(pool, 3, axis=0) == -1).all()


def test_a_scores_file_filters_negatives(tmp_path):
    path = tmp_path / "scores.tsv"
    qrels = dataset().split("train").qrels
    answers = {query: next(iter(qrels[query])) for query in ("q3", "q4")}
    path.write_text(f"q3\td5\t1.5\nq3\t{answers['q3']}\t1\nq3\td7\t-2\nq4\td5\t-9\n")
    run = shop_of(tmp_path / "work", "bidr-taught-filter", path)
    kept = mining.mine_train_candidates(run, stages.train_sparse(run))
    assert kept[3].tolist() == [7, -1, -1, -1, -1, -1]  # d5 is better than the answer
    assert (np.delete(kept, 3, axis=0) == -1).all()  # q4's answer has no score: nothing is sure
    stages.train_dense(run, "random-walk")


@pytest.mark.parametrize(
    ("text", "told"),
    [("q1\td2\t1\nq1\td3\n", "line 2"), ("q1\td2\tgood\nq1\td3\tbad\n", "line 2"), ("x\td1\t1\n", "no score")],
)
def test_an_invalid_scores_file_is_refused(tmp_path, text, told):
    (tmp_path / "scores.tsv").write_text(text)
    run = shop_of(tmp_path / "work", "bidr-taught", tmp_path / "scores.tsv")
    with pytest.raises(DataError, match=told):
        teacher.score_teacher_pool(run, np.empty((0, 0), dtype=np.int64), "unused")


def test_an_invalid_cross_encoder_folder_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    run = shop_of(tmp_path / "work", "bidr-taught", tmp_path / "empty")
    with pytest.raises(ModelError, match=r"distil\.teacher"):
        stages.train_sparse(run)
