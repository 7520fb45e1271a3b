"""Builds that are cut off and go on: at any write, with anything changed meanwhile, within a budget."""

import errno
import random
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from sample_index import clustered, random_codebooks
from write_killer import Kill, Killed

from bidr.data.vector_source import open_vectors
from bidr.errors import ConfigError, DataError, IndexFolderError, StorageError
from bidr.index.builder import build as building
from bidr.index.builder import clustering_vectors as sources
from bidr.index.builder import coarse_clustering as clusters
from bidr.index.builder import journal as working
from bidr.index.builder import partitioning as dividing
from bidr.index.builder.build import build_index
from bidr.index.builder.journal import WorkFolder
from bidr.index.engines.graph import construction as linking
from bidr.index.reader import IndexReader
from bidr.index.vectors import vector_writer as vector_writing
from bidr.pipeline.build import build_vectors
from bidr.quantization.learned_ivf import LearnedIvf
from bidr.quantization.opq_config import PlainCodes
from bidr.utils import files

COUNT, DIM = 1_500, 32
BOOKS = random_codebooks(DIM, 4)
NAMES = [f"{row:x}" for row in range(COUNT)]
PLAIN = PlainCodes(bytes_per_doc=2)


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> Kill:
    """Everything in small pieces, each durable at once."""
    monkeypatch.setattr(working, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(files, "BUFFER_BYTES", 1 << 9)
    for module in (sources, dividing):
        monkeypatch.setattr(module, "BLOCK_ROWS", 256)
    monkeypatch.setattr(clusters, "SORT_BLOCK_ROWS", 200)
    monkeypatch.setattr(clusters, "MIN_ORDERED_DOCUMENTS", 100)
    for module in (building, vector_writing):
        monkeypatch.setattr(module, "WRITE_ROWS", 128)
    monkeypatch.setattr("bidr.index.faiss_conversion.ADD_ROWS", 300)
    monkeypatch.setattr("bidr.quantization.opq_config.ENCODE_ROWS", 256)
    return Kill(monkeypatch)


def build(folder: Path, engine: str, vectors: np.ndarray, **options: object) -> None:
    """As `build_vectors` does, with codebooks that are there already."""
    with working.open_work_folder(folder) as work:
        given = {
            "codebooks": BOOKS,
            "codes": BOOKS.encode(vectors),
            "vectors": vectors,
            "ids": NAMES,
            "documents_stamp": "n",
        }
        given |= {"engine": engine, "ef_construction": 20, "work": work.open_subfolder("index")} | options
        build_index(folder, **given)


def content(folder: Path) -> dict[str, bytes]:
    with IndexReader.open(folder) as reader:
        reader.verify()
    return {path.name: path.read_bytes() for path in (folder / "000001").iterdir()}


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return clustered(COUNT, DIM)


@pytest.mark.parametrize(
    "engine", ["scan", "lists", "lists with means", "lists with means by codes", "learned lists", "hnsw"]
)
def test_killed_at_any_write_it_ends_in_the_same_bytes(tmp_path, kill, vectors, engine, monkeypatch):
    options = {}
    if engine == "lists with means by codes":
        options = {"codes": BOOKS.encode(clustered(COUNT, DIM, seed=5))}
    if engine.startswith("lists with means"):
        engine = "lists"
        monkeypatch.setattr("bidr.index.engines.block_centroids.MIN_BLOCKS", 16)
    if engine == "learned lists":
        engine, options = "lists", {"lists": LearnedIvf(vectors[:40], vectors[40:80])}
    build(tmp_path / "alone", engine, vectors, **options)
    chance, times = random.Random(0), 0
    while not (tmp_path / "killed" / "CURRENT").exists():
        kill.left = chance.randint(1, 48)  # ids take some 45, and begin again
        try:
            build(tmp_path / "killed", engine, vectors, **options)
        except Killed:
            times += 1
        assert times < 200, "it does not get on"
    kill.left = -1
    assert times >= 5
    assert content(tmp_path / "killed") == content(tmp_path / "alone")
    assert sorted(path.name for path in (tmp_path / "killed").iterdir()) == [".lock", ".next", "000001", "CURRENT"]


def test_a_build_from_vectors_resumes_in_every_step(tmp_path, kill, vectors):
    np.save(tmp_path / "v.npy", vectors)

    def once(out: str) -> None:
        build_vectors(tmp_path / "v.npy", None, tmp_path / out, ids=NAMES, plain=PLAIN, engine="lists")

    once("alone")
    seen, at = set(), 0
    while not (tmp_path / "killed" / "CURRENT").exists():
        at += 7
        kill.left = at % 90 + 1
        try:
            once("killed")
        except Killed:
            for mark in (tmp_path / "killed").rglob("*.mark.json"):
                seen.add(mark.name.split(".")[0])
    assert {"codebooks", "coded", "names", "clusters", "order"} <= seen
    assert content(tmp_path / "killed") == content(tmp_path / "alone")


def stopped(folder: Path, kill: Kill, at: int, engine: str, vectors: np.ndarray, **options: object) -> None:
    kill.left = at
    with pytest.raises(Killed):
        build(folder, engine, vectors, **options)
    kill.left = -1


@pytest.mark.parametrize("damage", ["torn", "grown", "flipped"])
def test_a_step_whose_files_changed_is_repeated(tmp_path, kill, vectors, damage):
    build(tmp_path / "alone", "lists", vectors)
    for at in (60, 40, 40):
        stopped(tmp_path / "i", kill, at, "lists", vectors)
    marked = [path for path in (tmp_path / "i" / ".work" / "index").iterdir() if not path.name.endswith(".mark.json")]
    assert len(marked) > 5
    for path in marked:
        whole = path.read_bytes()
        if damage == "grown":
            path.write_bytes(whole + b"rest")
        elif damage == "torn":
            path.write_bytes(whole[: len(whole) // 2])
        else:
            path.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:] if len(whole) > 100 else whole)
    build(tmp_path / "i", "lists", vectors)
    assert content(tmp_path / "i") == content(tmp_path / "alone")


@pytest.mark.parametrize("at", [20, 70, 90, 110])
@pytest.mark.parametrize("change", ["vectors", "one row", "engine", "stored", "lists", "learned"])
def test_nothing_of_another_build_gets_in(tmp_path, kill, vectors, change, at):
    other, options = vectors.copy(), {"engine": "lists", "stored": "fp16"}
    if change == "vectors":
        other = clustered(COUNT, DIM, seed=5)
    elif change == "one row":
        other[777] = -other[777]
    elif change in ("lists", "learned"):
        options["lists"] = LearnedIvf(vectors[:40], vectors[40:80])
    else:
        options |= {"engine": {"engine": "hnsw"}, "stored": {"stored": "int8"}}[change]
    build(tmp_path / "fresh", vectors=other, **options)
    before = {"lists": LearnedIvf(vectors[:40], vectors[80:120])} if change == "learned" else {}
    stopped(tmp_path / "i", kill, at, "lists", vectors, **before)
    build(tmp_path / "i", vectors=other, **options)
    assert content(tmp_path / "i") == content(tmp_path / "fresh")


def test_an_order_without_blocks_is_not_resumed_where_blocks_are_needed(tmp_path, kill, vectors, monkeypatch):
    """Learned lists are the same in a version that did not arrange documents within them."""
    learned = LearnedIvf(vectors[:40], vectors[40:80])
    with monkeypatch.context() as patched:
        patched.setattr(building._IndexBuild, "write_vectors", lambda *given: kill.end())
        with pytest.raises(Killed):
            build(tmp_path / "i", "lists", vectors, lists=learned)
    monkeypatch.setattr("bidr.index.engines.block_centroids.MIN_BLOCKS", 16)
    for folder in ("fresh", "i"):
        build(tmp_path / folder, "lists", vectors, lists=learned)
    assert content(tmp_path / "i") == content(tmp_path / "fresh")


def test_files_of_a_finished_build_are_not_overwritten(tmp_path, kill, vectors, monkeypatch):
    """The index in force and the work that made it share their files, if that was killed before it was removed."""
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", lambda path, to: kill.end())
        with pytest.raises(Killed):
            build(tmp_path, "lists", vectors)
    before = content(tmp_path)
    for at in (10, 30, 50):
        kill.left = at
        with pytest.raises(Killed):
            build(tmp_path, "lists", vectors[::-1].copy())
        kill.left = -1
        assert content(tmp_path) == before


def test_a_file_of_vectors_that_was_written_again_is_noticed(tmp_path, kill, vectors):
    path = tmp_path / "v.npy"
    np.save(path, vectors)
    kill.left = 80
    with pytest.raises(Killed):
        build_vectors(path, None, tmp_path / "i", plain=PLAIN, engine="lists")
    kill.left = -1
    changed = vectors.copy()
    changed[1] = changed[0]  # a row that the sampled rows may not hold
    np.save(path, changed)
    build_vectors(path, None, tmp_path / "i", plain=PLAIN, engine="lists")
    build_vectors(path, None, tmp_path / "fresh", plain=PLAIN, engine="lists")
    assert content(tmp_path / "i") == content(tmp_path / "fresh")


@pytest.mark.parametrize("held", [True, False])
def test_vectors_are_identified_by_content_not_by_how_they_were_opened(tmp_path, vectors, held):
    """Another process opens the same file, and its build must be gone on with."""
    path = tmp_path / "v.npy"

    def stamp(changed: int = 0, metric: str = "cosine") -> str:
        if changed:
            own = vectors.copy()
            own[777] *= -1
            np.save(path, own)
        return working.fingerprint_array(open_vectors(np.load(path) if held else path, "v", metric))

    np.save(path, vectors)
    first, again, other = stamp(), stamp(), stamp(metric="ip")
    assert first == again
    assert len({first, other, stamp(changed=1)}) == 3


def test_codebooks_that_were_fitted_are_not_fitted_again(tmp_path, kill, vectors, monkeypatch):
    np.save(tmp_path / "v.npy", vectors)
    fits, real = [], PlainCodes.fit
    monkeypatch.setattr(PlainCodes, "fit", lambda self, rows: fits.append(1) or real(self, rows))
    for left in (30, 20, -1):
        kill.left = left
        with suppress(Killed):
            build_vectors(tmp_path / "v.npy", None, tmp_path / "i", plain=PLAIN, engine="lists")
    assert (tmp_path / "i" / "CURRENT").exists()
    assert len(fits) == 1


def test_vectors_of_a_user_that_change_meanwhile_are_refused(tmp_path, kill, vectors, monkeypatch):
    given = vectors.copy()
    real = building._IndexBuild.write_codes

    def codes(self: building._IndexBuild) -> None:
        given[3] = given[4]
        real(self)

    monkeypatch.setattr(building._IndexBuild, "write_codes", codes)
    with pytest.raises(DataError, match="changed during the build"):
        build_vectors(given, None, tmp_path / "i", plain=PLAIN, engine="lists")


def test_vectors_that_change_meanwhile_are_refused(tmp_path, kill, vectors, monkeypatch):
    given = vectors.copy()
    real = building._IndexBuild.write_codes

    def codes(self: building._IndexBuild) -> None:
        given[3] = 0
        real(self)

    monkeypatch.setattr(building._IndexBuild, "write_codes", codes)
    with pytest.raises(DataError, match="changed during the build"):
        build(tmp_path / "i", "scan", given)
    with pytest.raises(IndexFolderError, match="no index here"):
        IndexReader.open(tmp_path / "i")


@pytest.mark.parametrize("at", [1, 10, 60, 110])
def test_a_full_disk_leaves_the_index_in_force_and_the_work_to_go_on_with(tmp_path, kill, vectors, at):
    build(tmp_path / "i", "scan", vectors[:COUNT])
    before = content(tmp_path / "i")
    kill.left, kill.error = at, lambda: OSError(errno.ENOSPC, "full")
    with pytest.raises(StorageError, match="no space left"):
        build(tmp_path / "i", "lists", vectors)
    assert content(tmp_path / "i") == before
    kill.left = -1
    build(tmp_path / "i", "lists", vectors)
    with IndexReader.open(tmp_path / "i") as reader:
        reader.verify()
        assert reader.generation.name == "000002"
        assert reader.manifest.engine == "lists"


def test_links_that_were_found_are_not_sought_again(tmp_path, vectors, monkeypatch):
    build(tmp_path / "alone", "hnsw", vectors)
    monkeypatch.setattr(working, "CHECKPOINT_SECONDS", 0.0)
    sought, real = [], linking.choose_links

    def choose(codebooks, codes, near, first=0):
        for number, some in enumerate(real(codebooks, codes, near, first)):
            if number == 2:
                raise Killed
            sought.append(linking.GROUP * first + number * linking.ROWS_PER_RANGE)
            yield some

    monkeypatch.setattr(linking, "choose_links", choose)
    ranges = list(range(0, COUNT, linking.ROWS_PER_RANGE))
    for _ in range((len(ranges) - 1) // 2):
        with pytest.raises(Killed):
            build(tmp_path / "killed", "hnsw", vectors)
    build(tmp_path / "killed", "hnsw", vectors)
    assert sought == ranges
    assert content(tmp_path / "killed") == content(tmp_path / "alone")


def test_one_builds_at_a_time(tmp_path, vectors):
    with working.open_work_folder(tmp_path / "i"), pytest.raises(IndexFolderError, match="another process is building"):
        build(tmp_path / "i", "scan", vectors)


def test_an_insufficient_budget_is_refused_with_the_smallest_sufficient_one(tmp_path, vectors):
    with pytest.raises(ConfigError, match=r"given 1,048,576 bytes.*give [\d,]+ MiB or more") as refused:
        build_vectors(vectors, None, tmp_path / "i", plain=PLAIN, ram_budget="1MiB")
    assert not (tmp_path / "i").exists()
    least = str(refused.value).rsplit("give ", 1)[1].split(" MiB")[0].replace(",", "")
    with pytest.raises(ConfigError, match="expected a size"):
        build_vectors(vectors, None, tmp_path / "i", plain=PLAIN, ram_budget="much")
    # Other tests' memory comes and goes in this process.
    build_vectors(vectors, None, tmp_path / "i", plain=PLAIN, ram_budget=(int(least) + 200) << 20)
    assert (tmp_path / "i" / "CURRENT").exists()


def test_very_many_lists_are_found_by_a_graph_and_nearly_the_same(vectors, monkeypatch):
    codes = BOOKS.encode(vectors)
    exact = clusters.cluster_documents(BOOKS, codes, 200)
    monkeypatch.setattr(clusters, "MAX_BRUTE_FORCE_LISTS", 50)
    documents = sources.DecodedCodes(BOOKS, codes)
    ours = [np.concatenate(list(clusters.assign_clusters(documents, exact.centroids))) for _ in range(2)]
    monkeypatch.setattr(clusters, "MAX_BRUTE_FORCE_LISTS", 1_000)
    all_compared = np.concatenate(list(clusters.assign_clusters(documents, exact.centroids)))
    assert (ours[0] == ours[1]).all()
    # Several centroids are as near as each other: there are fewer different codes than lists.
    by_graph, by_all = (np.square(documents[:] - exact.centroids[of]).sum(axis=1) for of in (ours[0], all_compared))
    assert (by_graph <= by_all + 1e-6).mean() > 0.97


def test_documents_stand_by_cluster_as_a_stable_sort_puts_them(monkeypatch):
    monkeypatch.setattr(clusters, "SORT_BLOCK_ROWS", 7)
    of = np.random.default_rng(0).integers(0, 9, 100).astype(np.int32)
    of[of == 4] = 5  # an empty one
    order, offsets = np.empty(100, dtype=np.int32), clusters.compute_offsets(of, 9)
    clusters.write_order(of, offsets, order)
    np.testing.assert_array_equal(order, np.argsort(of, kind="stable"))
    np.testing.assert_array_equal(np.diff(offsets), np.bincount(of, minlength=9))


def test_a_build_without_checkpoints_leaves_no_files(tmp_path, vectors):
    build_index(tmp_path / "i", codebooks=BOOKS, codes=BOOKS.encode(vectors), vectors=vectors, engine="lists")
    names = {path.name for path in (tmp_path / "i" / "000001").iterdir()}
    assert names == {
        *("manifest.json", "codes.npy", "codebooks.safetensors", "order.npy", "centroids.npy", "lists.npy"),
        *("vectors.npy", "vectors.checks.npy"),
    }
    assert not WorkFolder(tmp_path).resumable or not (tmp_path / "i" / ".work").exists()
