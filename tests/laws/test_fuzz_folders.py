"""Index and model folders of which every checksum is right and what they say is not: refused, whatever it is.

The fuzzer is `fuzz_folders.py`; what it found once, and what it would come by too seldom, is a test of its own here.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fuzz_mutations import HUGE
from sample_index import clustered, documents, random_codebooks, small_index

from bidr.errors import IndexFolderError, ModelError
from bidr.index.engines.graph.adjacency import write_links
from bidr.index.engines.graph.engine import GraphEngine
from bidr.index.live.live_reader import LiveIndex
from bidr.index.live.wal import LOG, WalReader, get_log_start, pack_record, write_log
from bidr.index.live.wal_record import decode_record
from bidr.index.reader import IndexReader
from bidr.index.storage import checksums as checks
from bidr.index.storage.manifest import CURRENT, MANIFEST, hash_bytes, hash_file, render_fields
from bidr.index.vectors.npy_header import format_npy_header, read_npy_header
from bidr.models.saved_model import read_model_json
from bidr.quantization.codebooks import Codebooks
from bidr.search.searcher import QueryVectors, Searcher
from bidr.utils.files import open_to_read

ENCODER_KINDS = ("transformer", "exported")
"""Kinds whose variants take seconds each, because they load a transformer or ONNX Runtime."""
SCRIPT = Path(__file__).with_name("fuzz_folders.py")


def fuzzed(first: int, last: int, only: str, within: Path) -> tuple[dict[str, int], str]:
    """What came of variants, and what went wrong."""
    command = [sys.executable, str(SCRIPT), str(first), str(last), "--json", "--within", str(within)]
    done = subprocess.run([*command, "--only", only], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5_000:]
    *wrong, last_line = done.stdout.splitlines()
    return json.loads(last_line)["kinds"], "\n".join(wrong)


def test_a_few_hundred_hostile_folders_are_refused_or_work(tmp_path):
    kinds, wrong = fuzzed(0, 200, "scan,hnsw,live,blocks", tmp_path)
    assert not wrong
    assert set(kinds) == {"works", "refused"}
    assert kinds["refused"] > 50


@pytest.mark.slow
def test_five_thousand_hostile_folders_of_every_kind_are_refused_or_work(tmp_path):
    from fuzz_folders import BASES

    kinds, wrong = fuzzed(10_000, 15_000, ",".join(name for name in BASES if name not in ENCODER_KINDS), tmp_path)
    assert not wrong
    assert set(kinds) == {"works", "refused"}
    assert sum(kinds.values()) == 5_000


@pytest.mark.slow
def test_hostile_transformers_exports_and_recall_curves_are_refused_or_work(tmp_path):
    kinds, wrong = fuzzed(0, 200, ",".join(ENCODER_KINDS), tmp_path)
    assert not wrong
    assert set(kinds) == {"works", "refused"}
    assert kinds["refused"] > 50


# -- what the fuzzer found


def sign(index: Path, changed: Path | None = None, **fields: object) -> None:
    """Make the checksums of an index of one generation right, after a file was changed, or fields of its manifest."""
    path = index / "000001" / MANIFEST
    said = json.loads(path.read_bytes())["manifest"]
    if changed is not None:
        said["files"][changed.name] = {"size": changed.stat().st_size, "xxh3": hash_file(changed)}
    content = render_fields({**said, **fields})
    path.write_bytes(content)
    (index / CURRENT).write_text(f"000001 {hash_bytes(content)}\n")


def put(index: Path, name: str, array: np.ndarray) -> None:
    """Other numbers in a file of an index, signed."""
    path = index / "000001" / name
    path.write_bytes(format_npy_header(array.dtype, array.shape) + array.tobytes())
    sign(index, path)


def answered(index: Path, **options: object) -> object:
    with IndexReader.open(index) as reader:
        queries = clustered(2, 16, seed=3)
        found = Searcher(reader).search_vectors(QueryVectors(queries, queries), 5, **options)
        return Searcher(reader).load_results(found)


def test_lists_whose_bounds_wrap_around_are_refused(tmp_path):
    """The difference of these neighbours is above zero in 64 bits."""
    small_index(tmp_path / "index", 100, engine="lists")
    offsets = np.load(tmp_path / "index/000001/lists.npy")
    offsets[1:3] = (1 << 63) - 10, -(1 << 63) + 10
    put(tmp_path / "index", "lists.npy", offsets)
    with pytest.raises(IndexFolderError, match="list offsets do not cover"):
        answered(tmp_path / "index")


@pytest.mark.parametrize("group", [25, 1 << 40, (1 << 62) - 1])
def test_links_to_documents_that_are_not_there_are_refused(tmp_path, group):
    """A walk would set bits beyond its own memory."""
    small_index(tmp_path / "index", 100, engine="hnsw")
    links = np.load(tmp_path / "index/000001/graph.npy")
    for node in links:
        node[:] = 0
        write_links(np.array([0, group]), node)
    put(tmp_path / "index", "graph.npy", links)
    with IndexReader.open(tmp_path / "index") as reader:
        graph = reader.candidates
        assert isinstance(graph, GraphEngine)
        table = graph.compute_tables(clustered(1, 16, seed=3))[0]
        with pytest.raises(IndexFolderError, match="links to documents that do not exist"):
            graph.walk(table, 100)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("row", [100, -1, -(1 << 31), (1 << 31) - 1])
def test_an_order_that_names_other_rows_is_refused_when_it_is_looked_at(tmp_path, monkeypatch, row, whole):
    monkeypatch.setattr(checks, "WHOLE_FILE_BYTES", 1 << 18 if whole else 64)
    small_index(tmp_path / "index", 100, engine="lists")
    path = tmp_path / "index/000001/order.npy"
    order = np.load(path)
    order[:] = row
    path.write_bytes(path.read_bytes()[: -order.nbytes] + order.tobytes())
    if not whole:
        sums = path.with_name("order.npy.checks")
        from bidr.index.vectors.page_cache_io import compute_checksums
        from bidr.index.vectors.row_layout import make_checksum_keys

        content = path.read_bytes() + bytes(-path.stat().st_size % 4_096)
        sums.write_bytes(
            compute_checksums(np.frombuffer(content, "<u8"), np.empty(0, np.uint8), make_checksum_keys()).tobytes()
        )
        sign(tmp_path / "index", sums)
    sign(tmp_path / "index", path)
    for _ in range(2):
        with pytest.raises(IndexFolderError, match=r"order\.npy: holds a number that is not below 100"):
            answered(tmp_path / "index")


@pytest.mark.parametrize("shape", [(4, 8, 4), (4, 16, 2), (3, 16, 4), (64,)])
def test_codewords_of_another_shape_are_refused(tmp_path, shape):
    """Kernels take as many as a code can name."""
    small_index(tmp_path / "index")
    path = tmp_path / "index/000001/codebooks.safetensors"
    Codebooks(np.eye(16, dtype=np.float32), np.zeros(shape, np.float32)).save(path)
    sign(tmp_path / "index", path)
    with pytest.raises(IndexFolderError, match="codebook"):
        answered(tmp_path / "index")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_codewords_and_centroids_that_are_not_finite_are_refused(tmp_path, value):
    small_index(tmp_path / "index", 100, engine="lists")
    centroids = np.load(tmp_path / "index/000001/centroids.npy")
    centroids[2, 1] = value
    put(tmp_path / "index", "centroids.npy", centroids)
    with pytest.raises(IndexFolderError, match="not finite"):
        answered(tmp_path / "index")


CHANGES = [{"count": True}, {"words": 8}, {"books": 3}, {"code_dim": 8}, {"engine": []}, {"unit": 1}, {"model": []}]
CHANGES += [{"count": 10**400}, {"files": {"codes.npy": {"size": float("inf"), "xxh3": "0" * 32}}}, {"code_error": [1]}]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_manifest_with_contradictory_fields_is_refused(tmp_path, change):
    small_index(tmp_path / "index")
    sign(tmp_path / "index", **change)
    with pytest.raises(IndexFolderError):
        answered(tmp_path / "index")


@pytest.mark.parametrize(
    "header", [b"(1 2,)", b"(60, 16", b"(-60, 16)", b"(9" + b"9" * 3_500 + b",)", b"()"], ids=lambda header: header[:9]
)
def test_shapes_that_numpy_never_wrote_are_refused(tmp_path, header):
    path = tmp_path / "a.npy"
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': " + header + b", }"
    path.write_bytes(b"\x93NUMPY\x01\x00\x76\x00" + text.ljust(117) + b"\n" + bytes(64))
    with pytest.raises(IndexFolderError):
        read_npy_header(path, np.dtype("<f4"), 1)


@pytest.mark.parametrize("name", ["CURRENT", "000001/manifest.json", "000001/codes.npy", "000001/documents.blob"])
def test_what_could_be_waited_for_or_is_endless_or_all_holes_is_refused(tmp_path, name):
    small_index(tmp_path / "index")
    path = tmp_path / "index" / name
    content = path.read_bytes()
    for kind in ("fifo", "endless", "hollow"):
        path.unlink()
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "endless":
            path.symlink_to("/dev/zero")
        else:
            path.write_bytes(content)
            os.truncate(path, HUGE)
        if name.startswith("000001/") and not name.endswith(MANIFEST):
            size = HUGE if kind == "hollow" else 0
            said = json.loads((tmp_path / "index/000001" / MANIFEST).read_bytes())["manifest"]
            said["files"][path.name]["size"] = size
            sign(tmp_path / "index", files=said["files"])
        with pytest.raises(IndexFolderError):
            answered(tmp_path / "index")
    with pytest.raises(OSError, match="on the disk"):
        open_to_read(path)


def test_a_sparse_log_is_refused_and_a_long_record_is_verified_before_it_is_read(tmp_path, monkeypatch):
    state = tmp_path / "000001"
    state.mkdir()
    write_log(state, "000001")
    with (state / LOG).open("ab") as log:
        log.write(b"\xff" * 12)
    os.truncate(state / LOG, HUGE)
    with pytest.raises(IndexFolderError, match="on the disk"):
        WalReader(state)
    os.truncate(state / LOG, (1 << 32) + 100)
    monkeypatch.setattr("bidr.utils.files.MAX_SPARSE_RATIO", 1 << 40)
    reader = WalReader(state)
    held = []
    monkeypatch.setattr("bidr.index.live.wal._read_bytes", lambda handle, size, place: held.append(size) or b"")
    assert reader.read() == []
    assert max(held) <= 1 << 20


def records() -> dict[str, dict]:
    good = {"documents": [["a", "", "", None]], "texts": True, "deleted": {}, "forgotten": [], "shape": [1, 4, 16]}
    changes = {
        "shape of a float": {"shape": [1.0, 4, 16]},
        "shape below zero": {"shape": [-1, -4, 16]},
        "shape beyond 64 bits": {"shape": [1, 10**30, 16]},
        "fewer documents": {"documents": []},
        "documents that are numbers": {"documents": [[1, 2, 3]]},
        "attributes of attributes": {"documents": [["a", "", "", {"b": {"c": 1}}]]},
        "deleted rows by no name": {"deleted": [1]},
        "deleted rows that are texts": {"deleted": {"000001": ["1"]}},
        "forgotten lists": {"forgotten": [["a"]]},
    }
    return {name: {**good, **change} for name, change in changes.items()}


@pytest.mark.parametrize("about", records().values(), ids=records())
def test_a_log_record_with_contradictory_fields_is_refused(about):
    words = json.dumps(about).encode()
    content = len(words).to_bytes(4, "little") + words + bytes(4 + 32 + 4)
    with pytest.raises(IndexFolderError, match="invalid record"):
        decode_record(content, Path("log"))


@pytest.mark.parametrize("depth", [2_000, 200_000])
def test_json_nested_too_deep_is_refused(tmp_path, depth):
    deep = b"[" * depth + b"]" * depth
    small_index(tmp_path / "index")
    path = tmp_path / "index/000001" / MANIFEST
    content = b'{"manifest": {"format": ' + deep + b'}, "xxh3": ""}'
    path.write_bytes(content)
    (tmp_path / "index" / CURRENT).write_text(f"000001 {hash_bytes(content)}\n")
    with pytest.raises(IndexFolderError, match="manifest"):
        IndexReader.open(tmp_path / "index")
    (tmp_path / "model.json").write_bytes(b'{"format": 1, "a": ' + deep + b"}")
    with pytest.raises(ModelError, match="cannot be read"):
        read_model_json(tmp_path)
    with pytest.raises(IndexFolderError):
        decode_record(len(deep).to_bytes(4, "little") + deep, Path("log"))


def test_codes_of_the_log_that_no_codeword_has_are_refused(tmp_path):
    from bidr.index.live.wal_record import WalRecord, encode_record
    from bidr.index.live.writer import LiveWriter

    def coder(given, vectors):
        raise AssertionError

    small_index(tmp_path / "index")
    with LiveWriter(tmp_path / "index", coder) as writer:
        writer.delete(["doc-1"])
    state = LiveIndex.open(tmp_path / "index").generation
    for codes, dim in (
        (np.full((1, 4), 16, np.uint8), 16),
        (np.zeros((1, 5), np.uint8), 16),
        (np.zeros((1, 4), np.uint8), 8),
        (np.zeros((0, 4), np.uint8), 1 << 32),
    ):
        count = len(codes)
        arrays = codes, np.zeros((count, dim), np.float16), np.zeros(count, np.float32)
        record = pack_record(
            encode_record(WalRecord(documents(count), True, *arrays, {}, [])), get_log_start(state.name)[1]
        )[0]
        for name in (LOG, "acknowledged"):
            (state / name).unlink()
        write_log(state, state.name, [record[12:]])
        with pytest.raises(IndexFolderError, match="the log holds codes and vectors"):
            LiveIndex.open(tmp_path / "index")


def test_postings_of_more_documents_than_there_are_do_not_overrun_the_kernel(tmp_path):
    """Weights below zero would let sums be zero again, and places be noted once more than there is room."""
    small_index(tmp_path / "index", 60, lexical="prepend")
    offsets = np.load(tmp_path / "index/000001/words.offsets.npy")
    offsets[:-1:2], offsets[1:-1:2] = 0, offsets[-1]  # every other word has all
    put(tmp_path / "index", "words.offsets.npy", offsets)
    asked = " ".join(["title text of", *map(str, range(60))])
    with pytest.raises(IndexFolderError, match="invalid postings"):
        answered(tmp_path / "index", words=[asked, asked], lexical=5)


def test_additive_codebooks_whose_parts_do_not_fit_are_refused(tmp_path):
    books = random_codebooks(16, 4)._asdict()
    odd = {"centre": np.zeros(16, np.float32), "document": np.zeros((15, 16), np.float32)}
    Codebooks(**{**books, **odd, "choosing": books["centroids"]}).save(tmp_path / "books")
    for mapped in (True, False):
        with pytest.raises(ModelError, match="centre"):
            Codebooks.load(tmp_path / "books", mapped=mapped)
