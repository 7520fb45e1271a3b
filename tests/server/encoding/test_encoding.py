"""The encoding service: the model's own vectors, whoever asks beside whom; batches, limits, deadlines."""

import asyncio
import json
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sample_encoders import TEXTS, bag, bert

from bidr.data.types import Document
from bidr.errors import ConfigError, ModelError
from bidr.index.builder.build import build_index
from bidr.index.storage.manifest import ModelReference
from bidr.models.huggingface_encoder import TransformerEncoder
from bidr.models.saved_model import Model, ModelParts, TextSettings, save_model
from bidr.quantization.codebooks import Codebooks
from bidr.search.types import QueryVectors
from bidr.server.encoding import EncodingConfig, make_query_service
from bidr.server.encoding.encoders import group_by_length, load_onnx_encoders
from bidr.server.encoding.micro_batcher import MicroBatcher
from bidr.server.encoding.service import QueryService
from bidr.server.errors import DeadlineExceeded, Overloaded
from bidr.utils.files import write_signed_json

TEXT = TextSettings(titles="prepend", query_length=7, document_length=20)
FOREVER = 1e12


def save(root: Path, *parts: Path | None, dim: int) -> Model:
    books = np.random.default_rng(0).standard_normal((4, 16, dim // 4)).astype(np.float32)
    codebooks = Codebooks(np.eye(dim, dtype=np.float32), books)
    (root / "model").mkdir()
    made = ModelParts(sparse=parts[0], dense=parts[1], query=parts[2], codebooks=codebooks)
    return save_model(root / "model", made, TEXT, candidates=5, training={})


def holder(model: Model, root: Path, seed: int = 1, **options) -> SimpleNamespace:
    """What the service needs to know of the server's settings, with an index of the model."""
    if not (root / "index").exists():
        documents = [Document(str(row), TEXTS[row % 4], f"{TEXTS[row % 3]} {row}") for row in range(40)]
        random = np.random.default_rng(seed).standard_normal((40, model.dense.dim)).astype(np.float32)
        stamp = ModelReference(model.fingerprint, str(model.folder))
        codes = model.codebooks.encode(random)
        build_index(
            root / "index", codebooks=model.codebooks, codes=codes, vectors=random, documents=documents, model=stamp
        )
    limits = SimpleNamespace(queue=64)
    return SimpleNamespace(index=root / "index", limits=limits, encoding=EncodingConfig(**options))


@pytest.fixture(scope="module")
def bags(tmp_path_factory) -> Model:
    """Two encoders that differ, and no unified one: a query is read by both."""
    root = tmp_path_factory.mktemp("bags")
    for seed, name in enumerate(("sparse", "dense")):
        bag(root / "tokens", seed=seed)[0].save(root / name)
    return save(root, root / "sparse", root / "dense", None, dim=8)


@pytest.fixture(scope="module")
def transformer(tmp_path_factory) -> Model:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        root = tmp_path_factory.mktemp("bert")
        prompts = {"query_prompt": "query: ", "document_prompt": "document: "}
        TransformerEncoder.open(str(bert(root / "bert", truncation=4)), **prompts).save(root / "encoder")
        return save(root, *[root / "encoder"] * 3, dim=32)


def close(one, other):
    assert np.allclose(one, other, atol=2e-5)


def assert_the_models_own(service, model: Model) -> None:
    async def everybody():
        requests = [TEXTS[start : start + size] for start in range(3) for size in (1, 2, 3)]
        return requests, await asyncio.gather(*(service.encode(texts, FOREVER) for texts in requests))

    for texts, found in zip(*asyncio.run(everybody()), strict=True):
        codes, vectors = model.encode_queries(texts)
        close(found.codes, codes)
        close(found.vectors, vectors)


@pytest.mark.parametrize("batch", [1, 3, 16])
def test_batching_does_not_change_the_vectors_of_a_query(bags, tmp_path, batch):
    service = make_query_service(bags, holder(bags, tmp_path, batch=batch))
    assert service.program == "numpy", "the built-in encoder needs no other program"
    assert_the_models_own(service, bags)
    service.close()


def test_documents_get_the_vectors_that_the_build_gives_them(bags, tmp_path):
    from bidr.pipeline.document_encoders import make_model_encoder

    service = make_query_service(bags, holder(bags, tmp_path))
    documents = [Document(str(row), "", f"{TEXTS[row % 5]} {'girl ' * (row % 7)}") for row in range(50)]
    for_codes, vectors = service.encode_documents([f" {document.text}" for document in documents])
    wanted = make_model_encoder(bags)(documents, None)
    close(vectors, wanted.vectors)
    assert (bags.codebooks.encode(for_codes) == wanted.codes).all()
    service.close()


def test_onnx_vectors_equal_those_of_the_model_and_are_exported_once(transformer, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
    settings = holder(transformer, tmp_path, program="onnx", cache=tmp_path / "cache")
    service = make_query_service(transformer, settings)
    assert service.program == "onnx"
    assert_the_models_own(service, transformer)
    texts = [*TEXTS, "sorting pearls in oysters by night " * 8]
    found = service.encode_documents(texts)
    encoder = transformer.dense
    from bidr.models.corpus_encoding import encode_texts

    close(found[1], encode_texts(encoder, texts, prompt="document: ", max_length=TEXT.document_length))
    service.close()
    monkeypatch.setattr(
        "bidr.server.encoding.onnx_cache.export_onnx", lambda *args, **options: pytest.fail("exported again")
    )
    make_query_service(transformer, settings).close()


def zero_block(path: Path) -> None:
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 4096] = bytes(len(content[middle : middle + 4096]))
    path.write_bytes(content)


def swap_for_link(path: Path) -> None:
    """The very content, elsewhere."""
    elsewhere = path.rename(path.parents[2] / f"elsewhere-{path.name}")
    path.symlink_to(elsewhere)


@pytest.mark.parametrize(("name", "harm"), [("model.onnx", zero_block), ("tokenizer.json", swap_for_link)])
def test_kept_onnx_files_that_are_damaged_are_not_loaded_but_exported_again(transformer, tmp_path, name, harm, capfd):
    pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
    settings = holder(transformer, tmp_path, program="onnx", cache=tmp_path / "cache")
    make_query_service(transformer, settings).close()
    (folder,) = (path for path in (tmp_path / "cache").iterdir() if path.is_dir())
    harm(folder / "sparse" / name)
    with pytest.raises(ModelError, match=name):
        load_onnx_encoders(folder, {"queries": False, "documents": False}, 1)
    service = make_query_service(transformer, settings)
    assert_the_models_own(service, transformer)
    service.close()
    assert "onnx-damaged" in capfd.readouterr().err
    load_onnx_encoders(folder, {"queries": False, "documents": False}, 1)


def test_int8_is_chosen_only_if_its_results_are_as_good(transformer, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
    settings = holder(transformer, tmp_path, cache=tmp_path / "cache")
    monkeypatch.setattr("bidr.server.encoding.quality_check.MAX_LOSS", -1.0)
    service = make_query_service(transformer, settings)
    assert service.program == "onnx"
    assert_the_models_own(service, transformer)
    service.close()
    (told,) = (tmp_path / "cache").glob("*/parity.json")
    record = json.loads(told.read_text())
    figures = record["parity"]
    assert {role: one["holds"] for role, one in figures.items()} == {"queries": False, "documents": False}
    assert figures["queries"]["texts"] > 0
    assert figures["queries"]["cosine"] > 0.9
    assert 0 <= figures["queries"]["loss"] < 0.1
    for one in figures.values():
        one["holds"] = True
    write_signed_json(told, record)
    service = make_query_service(transformer, settings)
    assert service.program == "int8"
    service.close()
    (tmp_path / "other").mkdir()
    other = holder(transformer, tmp_path / "other", seed=2, cache=tmp_path / "cache")
    service = make_query_service(transformer, other)
    assert service.program == "onnx", "what held for one index is not known of another"
    service.close()
    assert json.loads(told.read_text())["index"] != record["index"]


def test_without_onnx_torch_encodes_unless_onnx_was_requested(transformer, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    settings = holder(transformer, tmp_path, cache=tmp_path / "cache")
    service = make_query_service(transformer, settings)
    assert service.program == "torch"
    assert_the_models_own(service, transformer)
    service.close()
    with pytest.raises(Exception, match="onnxscript"):
        make_query_service(transformer, holder(transformer, tmp_path, program="onnx", cache=tmp_path / "other"))


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(ConfigError, match=r"encoding.batch: given 0, expected 1 to"):
        EncodingConfig(batch=0)


def test_rows_of_a_group_are_of_like_length_and_each_row_is_in_one():
    lengths = np.random.default_rng(0).integers(1, 400, 200)
    found = list(group_by_length(lengths))
    assert sorted(np.concatenate(found).tolist()) == list(range(200))
    for places in found:
        own = lengths[places]
        assert own.min() >= 0.8 * own.max()
        assert len(own) == 1 or len(own) * own.max() <= 1_024


class BlockingEncoder:
    """An encoder that waits until it is let go, and remembers its batches."""

    def __init__(self) -> None:
        self.free, self.batches = threading.Event(), []

    def __call__(self, texts: list[str]) -> QueryVectors:
        self.batches.append(texts)
        self.free.wait(10)
        rows = np.array([[float(text)] for text in texts], dtype=np.float32)
        return QueryVectors(rows, -rows)


def batcher(slow: BlockingEncoder, **options) -> MicroBatcher:
    return MicroBatcher(slow, **({"parallel": 1, "max_batch": 4, "wait": 0.0, "limit": 8} | options))


async def begun(slow: BlockingEncoder, batches: int) -> None:
    while len(slow.batches) < batches:
        await asyncio.sleep(0.001)


def test_what_waits_is_encoded_together_and_requests_take_turns():
    slow = BlockingEncoder()
    made = batcher(slow, limit=100)

    async def run():
        first = asyncio.create_task(made.encode(["0"], FOREVER))
        await begun(slow, 1)
        long = asyncio.create_task(made.encode([str(number) for number in range(10, 16)], FOREVER))
        await asyncio.sleep(0)
        short = asyncio.create_task(made.encode(["20"], FOREVER))
        await asyncio.sleep(0.02)
        assert made.waiting == 7
        slow.free.set()
        return await asyncio.gather(first, long, short)

    first, long, short = asyncio.run(run())
    assert slow.batches == [["0"], ["10", "20", "11", "12"], ["13", "14", "15"]]
    assert first.codes.tolist() == [[0]]
    assert long.codes.ravel().tolist() == list(range(10, 16))
    assert short.vectors.tolist() == [[-20]]
    assert made.waiting == 0
    made.close()


def test_a_full_queue_is_refused_with_retry_after():
    slow = BlockingEncoder()
    made = batcher(slow, limit=2)

    async def run():
        tasks = [asyncio.create_task(made.encode(["0"], FOREVER))]
        await begun(slow, 1)
        tasks += [asyncio.create_task(made.encode([str(number)], FOREVER)) for number in (1, 2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded) as refused:
            await made.encode(["3"], FOREVER)
        assert refused.value.retry_after >= 1
        slow.free.set()
        await asyncio.gather(*tasks)
        assert (await made.encode(["4"], FOREVER)).codes.tolist() == [[4]]

    asyncio.run(run())
    made.close()


def test_cancelled_and_expired_texts_are_not_encoded():
    slow = BlockingEncoder()
    made = batcher(slow, limit=100)

    async def run():
        first = asyncio.create_task(made.encode(["0"], FOREVER))
        await begun(slow, 1)
        gone = asyncio.create_task(made.encode(["1", "2"], FOREVER))
        late = asyncio.create_task(made.encode(["3"], time.monotonic() - 1))
        last = asyncio.create_task(made.encode(["4"], FOREVER))
        await asyncio.sleep(0.01)
        gone.cancel()
        await asyncio.sleep(0.01)
        slow.free.set()
        with pytest.raises(DeadlineExceeded):
            await late
        await asyncio.gather(first, last)

    asyncio.run(run())
    assert slow.batches == [["0"], ["4"]]
    assert made.waiting == 0
    made.close()


def test_a_fault_reaches_those_whose_batch_it_was_and_nobody_else():
    def encode(texts: list[str]) -> QueryVectors:
        if "bad" in texts:
            raise ValueError("broken")
        return QueryVectors(*[np.zeros((len(texts), 1), dtype=np.float32)] * 2)

    made = MicroBatcher(encode, parallel=2, max_batch=1, wait=0.0, limit=10)

    async def run():
        found = await asyncio.gather(
            *(made.encode([text], FOREVER) for text in ("a", "bad", "b")), return_exceptions=True
        )
        assert [type(one).__name__ for one in found] == ["QueryVectors", "ValueError", "QueryVectors"]

    asyncio.run(run())
    made.close()


def test_a_closed_batcher_encodes_queued_texts_and_refuses_new_ones():
    slow = BlockingEncoder()
    made = batcher(slow)

    async def run():
        tasks = [asyncio.create_task(made.encode([str(number)], FOREVER)) for number in range(3)]
        await begun(slow, 1)
        made.close()
        with pytest.raises(Overloaded):
            await made.encode(["9"], FOREVER)
        slow.free.set()
        return await asyncio.gather(*tasks)

    assert [found.codes.tolist() for found in asyncio.run(run())] == [[[0]], [[1]], [[2]]]


def test_a_closed_service_encodes_queued_texts_for_both_sides():
    """The codes' side has threads of its own, which must not be gone before."""
    slow = BlockingEncoder()

    def encode(side: str, texts: list[str]) -> np.ndarray:
        return slow(texts).codes if side == "vectors" else np.ones((len(texts), 1), dtype=np.float32)

    sides = SimpleNamespace(codes="codes", vectors="vectors")
    service = QueryService(
        SimpleNamespace(roles={"queries": sides}, encode=encode), EncodingConfig(parallel=1, batch=1)
    )

    async def run():
        tasks = [asyncio.create_task(service.encode([str(number)], FOREVER)) for number in range(3)]
        await begun(slow, 1)
        service.close()
        slow.free.set()
        return await asyncio.gather(*tasks)

    assert [found.vectors.tolist() for found in asyncio.run(run())] == [[[0]], [[1]], [[2]]]
    for _ in range(200):
        if service._query_pool._shutdown:
            break
        time.sleep(0.01)
    assert service._query_pool._shutdown
