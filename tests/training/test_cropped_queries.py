import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_training import CONFIG, dataset, losses, with_settings

from bidr.tokenization.token_store import Tokens
from bidr.training.cropped_queries import CropSampler, concat_tokens, make_crop_sampler
from bidr.training.losses.objectives import QuantizedObjective
from bidr.training.stages import train_sparse
from bidr.training.train import open_run


def ragged(lengths: list[int], opening: int, closing: int) -> Tokens:
    """Texts of which every token says its text and place; the fixed ones are negative."""
    rows = []
    for text, length in enumerate(lengths):
        inner = [100 * text + place for place in range(length - opening - closing)]
        rows.append([-1] * opening + inner + [-2] * closing)
    ids = np.array([token for row in rows for token in row], dtype=np.int32)
    return Tokens(ids, np.concatenate([[0], np.cumsum(lengths)]))


@given(
    lengths=st.lists(st.integers(3, 30), min_size=1, max_size=8),
    asked=st.lists(st.integers(3, 12), min_size=1, max_size=5),
    fixed=st.tuples(st.integers(0, 1), st.integers(0, 1)),
    seed=st.integers(0, 99),
)
def test_a_crop_is_a_passage_of_its_document_as_long_as_a_question(lengths, asked, fixed, seed):
    opening, closing = fixed
    cut = CropSampler(1.0, np.array(asked), opening, closing).cut(ragged(lengths, *fixed), np.random.default_rng(seed))
    for text, length in enumerate(lengths):
        found = cut.ids[cut.offsets[text] : cut.offsets[text + 1]].tolist()
        assert len(found) in {min(one, length) for one in asked}
        inner = found[opening : len(found) - closing]
        assert found == [-1] * opening + inner + [-2] * closing
        assert inner == list(range(inner[0], inner[0] + len(inner)))
        assert inner[0] // 100 == text
        assert inner[-1] - 100 * text < length - opening - closing


def test_every_passage_can_be_drawn():
    crops, document = CropSampler(1.0, np.array([3]), 1, 1), ragged([6], 1, 1)
    found = {int(crops.cut(document, np.random.default_rng(seed)).ids[1]) for seed in range(60)}
    assert found == {0, 1, 2, 3}


def test_concat_tokens_keeps_the_order():
    one, other = ragged([3, 2], 0, 0), ragged([4], 0, 0)
    both = concat_tokens(one, other)
    assert both.offsets.tolist() == [0, 3, 5, 9]
    assert both.ids.tolist() == [0, 1, 2, 100, 101, 0, 1, 2, 3]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return open_run(dataset(), CONFIG, tmp_path_factory.mktemp("crops") / "run")


def test_the_target_of_a_crop_is_its_document(run):
    from bidr.models.trainable_quantizer import TrainableQuantizer

    encoder, train = run.load_backbone(), run.data.train
    crops = make_crop_sampler(encoder, 0.5, train.tokens.get_lengths())
    batch = run.make_random_sampler("in-batch").plan(0).get_batch(0)
    quantizer = TrainableQuantizer(run.fit_codebooks(encoder))
    options = {"kind": "joint", "codebook_rate": 1.0}
    objective = QuantizedObjective(encoder, quantizer, run.data.documents, train, 20.0, crops=crops, **options)
    found = objective.prepare(batch, np.random.default_rng(0))
    count, drawn = len(batch.queries), np.random.default_rng(0).integers(90, size=len(batch.queries) // 2)
    assert len(found.texts[0].offsets) - 1 == len(found.comparison.targets) == count + len(drawn)
    targets = found.comparison.documents[found.comparison.targets]
    assert targets.tolist() == [*batch.positives.tolist(), *drawn.tolist()]
    assert set(found.comparison.hidden[0].tolist()) <= set(range(count)), "nothing is hidden from a document"
    terms = losses(objective, found)
    assert set(terms) == {"codes", "dense"}
    plain = QuantizedObjective(encoder, quantizer, run.data.documents, train, 20.0, **options)
    assert len(plain.prepare(batch, np.random.default_rng(0)).comparison.targets) == count


def test_a_cross_encoder_teaches_the_questions_only(tmp_path):
    """Passages stand behind the questions, and no teacher has scored them."""
    data = dataset()
    lines = [f"{query}\td{row}\t{row}" for query, judged in data.split("train").qrels.items() for row in range(5)]
    lines += [f"{query}\t{each}\t9" for query, judged in data.split("train").qrels.items() for each in judged]
    (tmp_path / "scores.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(dict.fromkeys(lines)) + "\n")
    config = with_settings(sparse={"crops": 0.5}, distil={"source": "teacher", "teacher": str(tmp_path / "scores.tsv")})
    run = open_run(data, config, tmp_path / "run")
    train_sparse(run)
    assert run.read_history("sparse")[-1]["epoch"] == config.sparse.epochs


def test_padding_does_not_change_crop_lengths():
    """Padding counts as special tokens there: taken for fixed ones, every passage would be its whole document."""
    from types import SimpleNamespace

    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "[B]": 1, "[E]": 2, "[PAD]": 3, "?": 4}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[B] $A [E]", special_tokens=[("[B]", 1), ("[E]", 2)]
    )
    tokenizer.enable_padding(length=64, pad_id=3)
    crops = make_crop_sampler(SimpleNamespace(tokenizer=tokenizer), 1.0, np.array([7]))
    assert (crops.opening, crops.closing, crops.lengths.tolist()) == (1, 1, [7])
