import errno
import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from sample_index import clustered, documents, random_codebooks, small_index

from bidr.errors import ConfigError, IndexFolderError, StorageError
from bidr.index.builder.build import build_index
from bidr.index.engines.engine_files import RAM_FILES, load_engine
from bidr.index.reader import IndexReader
from bidr.index.storage import commit as generation
from bidr.index.storage import manifest as folder_module
from bidr.index.storage.commit import lock_and_begin_generation
from bidr.index.storage.manifest import FileEntry, Manifest, hash_bytes, parse_manifest, render_manifest

FEW = 6


def contents(index: Path) -> tuple[list[str], bytes]:
    """What an index says, after a check of every byte."""
    with IndexReader.open(index) as reader:
        reader.verify()
        rows = np.arange(reader.count)
        return reader.documents.ids(rows), reader.vectors.read(rows).tobytes()


def entries(index: Path) -> list[str]:
    return sorted(entry.name for entry in index.iterdir() if entry.name not in (".lock", ".next"))


@pytest.fixture
def index(tmp_path):
    small_index(tmp_path / "index")
    return tmp_path / "index"


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x01
    path.write_bytes(content)


def test_every_flipped_byte_of_manifest_and_current_is_found(index):
    for path in (index / "CURRENT", index / "000001" / "manifest.json"):
        whole = path.read_bytes()
        for offset in range(len(whole)):
            flip(path, offset)
            with pytest.raises(IndexFolderError, match=r"CURRENT|manifest\.json"):
                IndexReader.open(index)
            path.write_bytes(whole)
        for size in range(0, len(whole), 7):
            path.write_bytes(whole[:size])
            with pytest.raises(IndexFolderError):
                IndexReader.open(index)
            path.write_bytes(whole)
    contents(index)


@pytest.mark.parametrize("engine", ["scan", "lists", "hnsw"])
def test_every_flipped_byte_of_files_loaded_into_ram_is_detected_on_opening(tmp_path, engine):
    small_index(tmp_path / "index", count=20, engine=engine)
    for name in RAM_FILES[engine]:
        path = tmp_path / "index" / "000001" / name
        for offset in range(0, path.stat().st_size, 37):
            flip(path, offset)
            with pytest.raises(IndexFolderError, match=f"{name}: damaged"):
                IndexReader.open(tmp_path / "index")
            flip(path, offset)


def test_a_flipped_byte_on_disk_is_one_typed_error_and_verify_finds_it(index):
    """Vectors and texts are not read whole on opening: damage there may show late, but never as another error."""
    named = set()
    for path in (index / "000001").iterdir():
        if path.name in ("manifest.json", *RAM_FILES["scan"]):
            continue
        step = max(1, path.stat().st_size // 150)
        for offset in range(0, path.stat().st_size, step):
            flip(path, offset)
            try:
                with IndexReader.open(index) as reader:
                    with pytest.raises(IndexFolderError, match=path.name):
                        reader.verify()
                    for row in range(reader.count):
                        reader.documents.document(row)
                    reader.vectors.read(np.arange(reader.count))
            except IndexFolderError as error:
                named.add((path.name.partition(".")[0], path.name.partition(".")[0] in str(error)))
            flip(path, offset)
    assert named == {("ids", True), ("documents", True), ("vectors", True)}


def test_truncated_and_missing_files_are_named_with_both_sizes(index):
    for path in sorted((index / "000001").iterdir()):
        if path.name == "manifest.json":
            continue
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        with pytest.raises(IndexFolderError, match=rf"{path.name}: {len(whole) - 1:,} bytes, expected {len(whole):,}"):
            IndexReader.open(index)
        path.unlink()
        with pytest.raises(IndexFolderError, match=rf"{path.name}: missing"):
            IndexReader.open(index)
        path.write_bytes(whole)


def manifest_of(index: Path) -> Manifest:
    path = index / "000001" / "manifest.json"
    return parse_manifest(path.read_bytes(), path)


def put_manifest(index: Path, content: bytes) -> None:
    (index / "000001" / "manifest.json").write_bytes(content)
    (index / "CURRENT").write_text(f"000001 {hash_bytes(content)}\n")


@pytest.mark.parametrize("version", [0, 1, 4, "2", None])
def test_another_format_is_refused_by_name(index, monkeypatch, version):
    fields = json.loads(render_manifest(manifest_of(index)))["manifest"]
    put_manifest(index, folder_module.render_fields({**fields, "format": version}))
    with pytest.raises(IndexFolderError, match=rf"index format {version!r}, this version of bidr reads format 2"):
        IndexReader.open(index)


@pytest.mark.parametrize("name", ["../codes.npy", "a/b", "/etc/passwd", ".hidden", "", ".."])
def test_file_names_with_folders_are_refused(index, name):
    manifest = manifest_of(index)
    fields = json.loads(render_manifest(manifest))["manifest"]
    fields["files"][name] = {"size": 1, "xxh3": "0" * 32}
    put_manifest(index, folder_module.render_fields(fields))
    with pytest.raises(IndexFolderError, match="bare name"):
        IndexReader.open(index)


@pytest.mark.parametrize("change", [{"count": 0}, {"dim": "x"}, {"metric": "l2"}, {"unknown": 1}, {"files": 3}])
def test_a_manifest_of_another_hand_is_refused(index, change):
    fields = json.loads(render_manifest(manifest_of(index)))["manifest"]
    put_manifest(index, folder_module.render_fields({**fields, **change}))
    with pytest.raises(IndexFolderError, match=r"manifest\.json"):
        IndexReader.open(index)


@pytest.mark.parametrize(("engine", "named"), [("hnsw", "graph.npy"), ("lists", "centroids.npy"), ("ivf", "ivf")])
def test_an_engine_whose_files_are_not_there_is_refused(index, engine, named):
    fields = json.loads(render_manifest(manifest_of(index)))["manifest"]
    put_manifest(index, folder_module.render_fields({**fields, "engine": engine}))
    with pytest.raises(IndexFolderError, match=named):
        IndexReader.open(index)


def test_links_as_earlier_versions_wrote_them_are_refused(tmp_path):
    small_index(tmp_path / "i", engine="hnsw")
    (generation,) = (tmp_path / "i").glob("0*")
    np.save(generation / "graph.npy", np.zeros((manifest_of(tmp_path / "i").count, 82), dtype=np.uint8))
    with pytest.raises(IndexFolderError, match=r"graph\.npy: links of single documents.*build the index again"):
        load_engine(generation, "hnsw")


def test_no_index_and_a_file_for_a_folder(tmp_path):
    with pytest.raises(IndexFolderError, match="no index here"):
        IndexReader.open(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(IndexFolderError, match="no index here"):
        IndexReader.open(tmp_path / "file")
    with pytest.raises(IndexFolderError, match="expected a folder"):
        small_index(tmp_path / "file")


def test_generations_are_numbered_and_keep_limits_old_ones(tmp_path):
    index = tmp_path / "index"
    for number, keep in enumerate((0, 0, 1, 2, 1), start=1):
        assert small_index(index, seed=number, keep=keep).name == f"{number:06d}"
    assert entries(index) == ["000004", "000005", "CURRENT"]
    with pytest.raises(ConfigError, match="keep"):
        small_index(index, keep=-1)


def test_a_reader_keeps_its_generation(index):
    before = contents(index)
    with IndexReader.open(index) as reader:
        small_index(index, seed=2)
        assert not reader.generation.exists()
        rows = np.arange(reader.count)
        assert (reader.documents.ids(rows), reader.vectors.read(rows).tobytes()) == before
        assert reader.documents.document(3) == documents(4)[3]
    assert contents(index) != before


def test_two_writers_at_once_are_refused(index, monkeypatch):
    monkeypatch.setattr(generation, "WRITER_WAIT_SECONDS", 0.1)
    with lock_and_begin_generation(index), pytest.raises(IndexFolderError, match="another writer has this index"):
        small_index(index)
    contents(index)


def test_leftovers_are_ignored_and_removed_by_the_next_writer(index):
    before = contents(index)
    for name in (".000002.4711.new", "000002", "000007"):
        shutil.copytree(index / "000001", index / name)
    (index / ".CURRENT.4711.new").write_text("000002 x")
    (index / "notes.txt").write_text("not ours")
    assert contents(index) == before
    small_index(index, seed=3)
    assert entries(index) == ["000002", "CURRENT", "notes.txt"]
    assert contents(index) != before


def test_a_damaged_current_is_repaired_by_building_again(index):
    (index / "CURRENT").write_text("rubbish")
    small_index(index, seed=3)
    contents(index)
    assert entries(index) == ["000002", "CURRENT"]


def step_hooks(monkeypatch, act) -> None:
    """Call `act` before every step of the writer that touches the disk."""
    for holder, name in ((os, "write"), (os, "fsync"), (os, "rename"), (os, "replace")):
        real = getattr(holder, name)

        def step(*given, _real=real, _name=name, **options):
            act(_name, *given)
            return _real(*given, **options)

        monkeypatch.setattr(holder, name, step)


def count_steps(tmp_path) -> int:
    steps: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        step_hooks(patch, lambda name, *_: steps.append(name))
        small_index(tmp_path / "counted", FEW)
    return len(steps)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_whatever_step_the_disk_refuses_the_old_index_is_served(tmp_path, number):
    index = tmp_path / "index"
    small_index(index, FEW)
    before = contents(index)
    total, refused = count_steps(tmp_path), 0
    for fails_at in range(total):
        steps = iter(range(10_000))

        def refuse(name, *_, steps=steps, fails_at=fails_at):
            if next(steps) == fails_at:
                raise OSError(number, os.strerror(number))

        with pytest.MonkeyPatch.context() as patch:
            step_hooks(patch, refuse)
            try:
                small_index(index, FEW, seed=9)
            except StorageError:
                refused += 1
        # The last step, the folder's fsync, comes after CURRENT was replaced: by then the new index is whole.
        assert (contents(index) == before) == (fails_at < total - 1)
        if fails_at == total - 1:
            break
        assert len([name for name in entries(index) if name != "CURRENT"]) == 1
    assert refused == total
    small_index(index, FEW, seed=10)
    assert len(entries(index)) == 2


def test_killed_at_any_step_the_folder_opens_old_or_new(tmp_path):
    vectors, codebooks = clustered(FEW, 16, seed=9), random_codebooks(16, 4)
    codes = codebooks.encode(vectors)
    small_index(tmp_path / "new", FEW, seed=9)
    new = contents(tmp_path / "new")
    total, seen = count_steps(tmp_path), set()
    for dies_at in range(total + 1):
        index = tmp_path / f"index{dies_at}"
        small_index(index, FEW)
        old = contents(index)
        if (child := os.fork()) == 0:
            _die_at(index, dies_at, {"codebooks": codebooks, "codes": codes, "vectors": vectors})
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (-signal.SIGKILL if dies_at < total else 0)
        found = contents(index)
        assert found in (old, new)
        seen.add(found == new)
        small_index(index, FEW, seed=9)
        assert len(entries(index)) == 2
    assert seen == {False, True}


def _die_at(index: Path, dies_at: int, arrays: dict) -> None:
    steps = iter(range(10_000))

    def die(name, *_):
        if next(steps) == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    step_hooks(pytest.MonkeyPatch(), die)
    build_index(index, documents=documents(FEW), engine="scan", **arrays)
    os._exit(0)


def test_everything_is_durable_before_it_is_named(tmp_path, monkeypatch):
    """The order that survives a power cut: files, their folder, the rename, its folder, and only then CURRENT."""
    log: list[tuple[str, str]] = []

    def note(name, *given):
        where = given[0]
        path = os.readlink(f"/proc/self/fd/{where}") if name in ("write", "fsync") else str(where)
        log.append((name, Path(path).name if "000001" not in Path(path).name else "generation"))

    step_hooks(monkeypatch, note)
    small_index(tmp_path / "index")
    rename, replace = (
        log.index(("rename", "generation")),
        next(i for i, (name, _) in enumerate(log) if name == "replace"),
    )
    for name in {name for step, name in log if step == "write" and "CURRENT" not in name}:
        last_write = max(i for i, entry in enumerate(log) if entry == ("write", name))
        assert last_write < log.index(("fsync", name)) < rename
    *writes, pointer = [i for i, entry in enumerate(log) if entry[0] == "write"]
    assert max(writes) < log.index(("fsync", "generation")) < rename
    assert rename < log.index(("fsync", "index")) < pointer < replace
    assert log[-1] == ("fsync", "index")


def test_a_manifest_renders_and_parses_to_itself(tmp_path):
    files = {"a.bin": FileEntry(3, "0" * 32)}
    manifest = Manifest(
        count=1, dim=2, code_dim=3, books=1, words=16, engine="scan", ef_construction=1, model=None, files=files
    )
    assert parse_manifest(render_manifest(manifest), tmp_path) == manifest


def test_another_model_is_refused_with_both_fingerprints(index, tmp_path):
    IndexReader.open(index, expect_model="fp-a").close()
    with pytest.raises(IndexFolderError, match=r"fp-a \(runs/a\).*fp-b"):
        IndexReader.open(index, expect_model="fp-b")
    small_index(tmp_path / "plain", model=None)
    with pytest.raises(IndexFolderError, match="without a model"):
        IndexReader.open(tmp_path / "plain", expect_model="fp-b")
