import json

import numpy as np
import pytest
from sample_encoder_index import make_dataset, make_documents, make_encoder, make_onnx, shorten_learning

import bidr
from bidr.data.types import Document
from bidr.errors import ConfigError, DataError, ModelError
from bidr.index.storage.manifest import open_generation
from bidr.models.static_encoder import StaticEncoder
from bidr.pipeline import encoder_build, index_encoder
from bidr.pipeline.index_encoder import open_index_encoder

CODES = bidr.PlainCodes(bytes_per_doc=4)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return make_encoder(tmp_path_factory.mktemp("encoder") / "static")


@pytest.fixture(scope="module")
def built(tmp_path_factory, encoder):
    folder = tmp_path_factory.mktemp("built") / "index"
    return bidr.build(make_dataset(), encoder=encoder, out=folder, plain=CODES, lexical=True)


def encode_again(encoder, documents):
    return open_index_encoder(encoder).encode_documents(documents)


def list_ids(result):
    return [hit.id for hit in result]


def test_an_index_of_texts_and_an_encoder_is_searched_in_words(built, encoder):
    documents = make_documents()
    vectors = encode_again(encoder, documents)
    query = open_index_encoder(encoder).encode_queries(["pearl earring"])[0]
    expected = np.argsort(-(vectors @ query), kind="stable")[:3]
    with bidr.open_index(built) as searcher:
        result = searcher.search("pearl earring", k=3, candidates=300)
        filtered = searcher.search("pearl earring", k=3, filter={"year": 2003}, lexical=50, lexical_weight=0.3)
    assert list_ids(result) == [documents[row].id for row in expected]
    assert {hit.document.attributes["year"] for hit in filtered} == {2003}


def test_the_encoder_is_recorded_with_prompts_and_limits(built, encoder, tmp_path):
    recorded = open_generation(built)[1].encoder
    assert (recorded.name, recorded.max_length, recorded.titles) == (str(encoder.resolve()), 512, "prepend")
    other = bidr.build(
        make_dataset(),
        encoder=encoder,
        out=tmp_path / "index",
        plain=CODES,
        query_prompt="query: ",
        document_prompt="document: ",
        max_length=5,
        titles="ignore",
    )
    recorded = open_generation(other)[1].encoder
    assert recorded[2:] == ("query: ", "document: ", 5, "ignore")
    assert recorded.fingerprint == open_generation(built)[1].encoder.fingerprint


def test_added_texts_are_found_by_words(built, encoder, tmp_path):
    folder = bidr.build(make_dataset(), encoder=encoder, out=tmp_path / "index", plain=CODES)
    with bidr.open_writer(folder) as writer:
        writer.add([Document("new", "pearl earring", "oysters oysters oysters")])
    bidr.compact(folder)
    with bidr.open_index(folder) as searcher:
        assert searcher.search("oysters oysters pearl earring oysters", k=1)[0].id == "new"


def test_compaction_and_repair_keep_the_record(encoder, tmp_path):
    folder = bidr.build(make_dataset(), encoder=encoder, out=tmp_path / "index", plain=CODES)
    with bidr.open_writer(folder) as writer:
        writer.add([Document("new", "pearl", "oysters")])
    bidr.compact(folder)
    bidr.repair_index(folder, tmp_path / "repaired")
    for index in (folder, tmp_path / "repaired"):
        with bidr.open_index(index) as searcher:
            assert searcher.reader.latest().manifest.encoder.name == str(encoder.resolve())
            assert searcher.search("pearl", k=1)


def test_an_encoder_that_moved_is_given_again(encoder, tmp_path):
    moved = make_encoder(tmp_path / "first")
    folder = bidr.build(make_dataset(), encoder=moved, out=tmp_path / "index", plain=CODES)
    moved.rename(tmp_path / "second")
    with bidr.open_index(folder) as searcher:
        searcher.search_vectors(np.ones((1, 16), dtype=np.float32), 1)  # vectors need no encoder
        with pytest.raises(ModelError, match=r"cannot be opened .*--encoder"):
            searcher.search("pearl")
    with bidr.open_index(folder, encoder=tmp_path / "second") as searcher:
        assert searcher.search("pearl", k=1)


def test_an_encoder_whose_files_changed_is_refused(tmp_path):
    folder = make_encoder(tmp_path / "encoder")
    index = bidr.build(make_dataset(), encoder=folder, out=tmp_path / "index", plain=CODES)
    make_encoder(folder, seed=5)
    with bidr.open_index(index) as searcher, pytest.raises(ModelError, match="whose files have changed since"):
        searcher.search("pearl")
    with pytest.raises(ModelError, match=r"did not make the vectors .* median cosine of -?0\.\d+"):
        bidr.open_index(index, encoder=folder)


@pytest.fixture(scope="module")
def of_vectors(tmp_path_factory, encoder):
    """An index of given vectors with texts."""
    documents = make_documents()
    folder = tmp_path_factory.mktemp("vectors") / "index"
    vectors = encode_again(encoder, documents)
    return bidr.build_vectors(vectors, None, folder, data=make_dataset(), plain=CODES, stored="int8")


def test_an_encoder_is_attached_to_an_index_of_vectors(of_vectors, encoder, built):
    with bidr.open_index(of_vectors) as searcher, pytest.raises(ConfigError, match="--encoder"):
        searcher.search("pearl")
    with bidr.open_index(of_vectors, encoder=encoder) as attached, bidr.open_index(built) as searcher:
        assert list_ids(attached.search("pearl earring", 5, 300)) == list_ids(searcher.search("pearl earring", 5, 300))


def test_titles_are_left_out_if_the_vectors_were_made_without(encoder, tmp_path):
    documents = make_documents()
    vectors = encode_again(encoder, [document._replace(title="") for document in documents])
    folder = bidr.build_vectors(vectors, None, tmp_path / "index", data=make_dataset(), plain=CODES)
    with bidr.open_writer(folder, encoder=encoder) as writer:
        writer.add([Document("new", "night watch", "oysters oysters")])
    with bidr.open_index(folder, encoder=encoder) as searcher:
        assert searcher.search("oysters", k=1)[0].score > 0.999


@pytest.mark.parametrize("seed", [1, 2])
def test_an_encoder_that_did_not_make_the_vectors_is_refused_with_figures(of_vectors, tmp_path, seed):
    other = make_encoder(tmp_path / "other", seed=seed)
    for open_with in (bidr.open_index, bidr.open_writer):
        with pytest.raises(ModelError, match=r"16 texts, encoded again, have a median cosine of -?0\.\d+ \(lowest"):
            open_with(of_vectors, encoder=other)


def test_an_encoder_of_other_dimensions_is_refused(of_vectors, tmp_path, monkeypatch):
    table = np.ones((60, 8), dtype=np.float32)
    monkeypatch.setattr(StaticEncoder, "load_pretrained", classmethod(lambda cls, name: cls(None, table)))
    with pytest.raises(ModelError, match=r"makes vectors of 8 dimensions, those of .* have 16"):
        index_encoder.attach_encoder(bidr.open_index(of_vectors).reader.latest(), make_encoder(tmp_path / "x"))


def test_without_texts_the_check_says_that_it_cannot_be_made(encoder, tmp_path, capsys):
    vectors = encode_again(encoder, make_documents())
    folder = bidr.build_vectors(vectors, None, tmp_path / "index", plain=CODES)
    with bidr.open_index(folder, encoder=encoder) as searcher:
        assert searcher.search("pearl", k=1)
    assert "cannot be checked; only the dimensions agree (16)" in capsys.readouterr().err


def test_lengths_count_where_they_matter(encoder, tmp_path):
    vectors = 3 * encode_again(encoder, make_documents())
    plain = bidr.PlainCodes(bytes_per_doc=4, metric="ip")
    with pytest.raises(ModelError, match=r"lengths 0.33 times those"):
        bidr.build_vectors(vectors, None, tmp_path / "a", data=make_dataset(), plain=plain, encoder=encoder)
    assert not (tmp_path / "a").exists()
    assert bidr.build_vectors(vectors, None, tmp_path / "b", data=make_dataset(), plain=CODES, encoder=encoder)


def test_an_encoder_given_with_vectors_is_checked_and_recorded(encoder, tmp_path):
    vectors = encode_again(encoder, make_documents())
    folder = bidr.build_vectors(vectors, None, tmp_path / "a", data=make_dataset(), plain=CODES, encoder=encoder)
    with bidr.open_index(folder) as searcher:
        assert searcher.search("pearl earring", k=1)
    with pytest.raises(ModelError, match="did not make the vectors"):
        bidr.build_vectors(vectors[::-1].copy(), None, tmp_path / "b", data=make_dataset(), encoder=encoder)


def test_learned_codes_need_no_model_folder(encoder, tmp_path, monkeypatch):
    shorten_learning(monkeypatch)
    plain = bidr.PlainCodes(bytes_per_doc=4, codewords=16)
    folder = bidr.build(make_dataset(), encoder=encoder, out=tmp_path / "index", plain=plain, learn=True)
    with bidr.open_index(folder) as searcher:
        assert searcher.model is None
        assert searcher.search("pearl earring", k=3)
    with bidr.open_writer(folder) as writer:
        writer.add([Document("new", "pearl earring", "oysters oysters")])
    with bidr.open_index(folder) as searcher:
        assert searcher.search("oysters oysters pearl", k=1)[0].id == "new"


def test_an_onnx_encoder_builds_and_searches(tmp_path):
    folder = bidr.build(make_dataset(100), encoder=make_onnx(tmp_path / "onnx"), out=tmp_path / "index", plain=CODES)
    with bidr.open_index(folder) as searcher:
        assert searcher.search("oysters", k=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "given neither a model nor an encoder"),
        ({"encoder": "e", "model": "m"}, "given a model and an encoder"),
        ({"model": "m", "learn": True}, "learn: goes with an encoder"),
        ({"model": "m", "query_prompt": "q"}, "query_prompt: goes with an encoder"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        bidr.build(make_dataset(20), out=tmp_path / "index", **options)
    assert not (tmp_path / "index").exists()


def test_bad_settings_leave_nothing_behind(encoder, tmp_path):
    with pytest.raises(ConfigError, match="out: no folder given"):
        bidr.build(make_dataset(20), encoder=encoder)
    with pytest.raises(ConfigError, match="max_length: given 9999, expected 1 to 512"):
        bidr.build(make_dataset(20), encoder=encoder, out=tmp_path / "index", max_length=9999)
    with pytest.raises(DataError, match="needs at least 16 vectors"):
        bidr.build(make_dataset(10), encoder=encoder, out=tmp_path / "index", plain=CODES)
    with pytest.raises(ConfigError, match="ram_budget"):
        bidr.build(make_dataset(100), encoder=encoder, out=tmp_path / "index", plain=CODES, ram_budget="20MB")
    assert not (tmp_path / "index").exists()


def test_a_build_stays_within_its_budget_and_says_the_peak(encoder, tmp_path, capsys):
    bidr.build(make_dataset(), encoder=encoder, out=tmp_path / "index", plain=CODES, ram_budget="4GiB")
    said = capsys.readouterr().err
    assert "at the peak, of 4,096 MiB" in said
    assert "more than planned" not in said


def test_within_a_small_budget_fewer_tokens_are_encoded_at_once(tmp_path, monkeypatch):
    opened = open_index_encoder(make_onnx(tmp_path / "onnx"))
    monkeypatch.setattr(opened.encoder, "dim", 384)
    monkeypatch.setattr(encoder_build, "read_anonymous_memory", lambda: 0)
    monkeypatch.setattr("bidr.index.cost_model.build_memory.read_anonymous_memory", lambda: 0)

    def plan(budget, learn=False):
        return encoder_build._plan_memory(opened, {"codes": 0}, 1_000_000, budget, learn=learn)

    sizes = [plan(budget).batching.tokens_per_batch for budget in (None, "4GiB", "800MiB", "400MiB", "300MiB")]
    assert sizes[:2] == [None, 16_384]
    assert sizes[1:] == sorted(sizes[1:], reverse=True)
    assert sizes[-1] < sizes[2] < 16_384
    with pytest.raises(ConfigError, match=r"ram_budget.*step: encode"):
        plan("110MiB")
    assert plan("600MiB", learn=True).sample < plan("8GiB", learn=True).sample == encoder_build.LEARN_SAMPLE


def test_a_record_that_is_damaged_is_an_index_error(built, tmp_path):
    from bidr.errors import IndexFolderError
    from bidr.index.storage.manifest import parse_manifest, render_fields

    path = next(built.glob("0*")) / "manifest.json"
    fields = json.loads(path.read_bytes())["manifest"]
    for change in ({"max_length": -1}, {"titles": "both"}, {"name": 3}):
        damaged = render_fields(fields | {"encoder": fields["encoder"] | change})
        with pytest.raises(IndexFolderError, match="not a manifest"):
            parse_manifest(damaged, path)
