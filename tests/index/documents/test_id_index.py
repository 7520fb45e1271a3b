"""Ids are sorted and checked in bounded memory, with the same files and refusals as in one piece."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bidr.data import id_map
from bidr.data.dataset import Dataset, check_corpus
from bidr.data.types import Document
from bidr.data.vector_ids import open_id_source
from bidr.errors import DataError
from bidr.index.cost_model.build_memory import BYTES_PER_ID, ID_BUFFER_BYTES
from bidr.index.documents import id_index
from bidr.index.documents.document_store import write_documents
from bidr.index.documents.id_index import HASHES, ROWS, IdIndex, hash_string
from bidr.index.storage.manifest import FileEntry
from bidr.utils.external_sort import ExternalSorter
from bidr.utils.files import NewFile

RECORD = np.dtype([("hash", "<u8"), ("row", "<u4")])


class Folder:
    """Files of an index that has nothing but ids."""

    def __init__(self, path: Path) -> None:
        self.path, self.count = path, 0

    def write(self, given: list[str], count: int | None = None) -> None:
        self.count = len(given)
        create = lambda name: NewFile(self.path / name, must_be_new=False)  # noqa: E731
        write_documents(create, self.path, given, count or len(given), lambda rows: None, texts=False)

    def open(self) -> IdIndex:
        entries = {path.name: FileEntry(*_entry(path)) for path in self.path.iterdir()}
        return IdIndex(self.path, type("Manifest", (), {"files": entries})(), self.count)


def _entry(path: Path) -> tuple[int, str]:
    from bidr.index.storage.manifest import hash_bytes

    return path.stat().st_size, hash_bytes(path.read_bytes())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """So little memory that a few hundred ids go through the disk many times."""
    monkeypatch.setattr(id_index, "IDS_PER_BLOCK", 16)
    monkeypatch.setattr(id_index, "RECORDS_IN_MEMORY", 40)
    monkeypatch.setattr(id_map, "IDS_PER_BLOCK", 16)
    monkeypatch.setattr(id_map, "RECORDS_IN_MEMORY", 40)


@pytest.mark.parametrize("held", [1, 37, 10**6])
def test_records_are_returned_by_hash_bucket(tmp_path, held):
    random = np.random.default_rng(0)
    given = np.empty(2_000, dtype=RECORD)
    given["hash"], given["row"] = random.integers(0, 1 << 63, 2_000) * 2, np.arange(2_000)
    with ExternalSorter(RECORD, tmp_path / "not" / "there", held) as spill:
        for start in range(0, 2_000, 61):
            spill.add(given[start : start + 61])
        ranges = list(spill.iter_buckets())
    found = np.concatenate(ranges)
    assert [set((part["hash"] >> np.uint64(56)).tolist()) <= {number} for number, part in enumerate(ranges)] == [
        True
    ] * 256
    assert (found == given[np.argsort(given["hash"] >> np.uint64(56), kind="stable")]).all()
    assert list(tmp_path.iterdir()) == []


def test_ids_are_found_after_spilling(tmp_path, small):
    given = [f"{row * 7919:x}" for row in range(777)]
    folder = Folder(tmp_path)
    folder.write(given)
    hashes, rows = np.load(tmp_path / HASHES), np.load(tmp_path / ROWS)
    expected = np.array([hash_string(name) for name in given], dtype=np.uint64)
    np.testing.assert_array_equal(hashes, np.sort(expected))
    np.testing.assert_array_equal(expected[rows], hashes)
    found = folder.open()
    assert [found.find(name) for name in given] == list(range(777))
    assert found.find("absent") is None


@pytest.mark.parametrize(("given", "count", "said"), [
    ([*(f"{row}" for row in range(300)), "17"], 301, "rows 17 and 300 have the same id"),
    ([f"{row}" for row in range(300)], 301, "300 given, but codes for 301"),
    ([f"{row}" for row in range(300)], 299, "more than the 299 with codes"),
])  # fmt: skip
def test_wrong_numbers_of_ids_and_duplicates_are_refused(tmp_path, small, given, count, said):
    with pytest.raises(DataError, match=said):
        Folder(tmp_path).write(given, count)


def test_hash_collisions_are_no_duplicates(tmp_path, small, monkeypatch):
    monkeypatch.setattr(id_index, "hash_string", len)
    given = ["a", "b", "cc", "dd", "e"]
    folder = Folder(tmp_path)
    folder.write(given)
    assert [folder.open().find(name) for name in given] == [0, 1, 2, 3, 4]
    with pytest.raises(DataError, match="rows 1 and 2 have the same id"):
        Folder(tmp_path).write(["a", "b", "b"])


def test_duplicates_are_found_among_hash_collisions(tmp_path, small, monkeypatch):
    monkeypatch.setattr(id_index, "hash_string", len)
    monkeypatch.setattr(id_map.xxhash, "xxh3_64_intdigest", len)
    given = ["cc", "a", "b", "dd", "a", "b"]
    assert id_map.IdMap(given).find_duplicate() == (1, 4)
    assert id_map.scan_ids(lambda: iter(given), tmp_path).duplicate_rows == (1, 4)
    with pytest.raises(DataError, match="rows 1 and 4 have the same id"):
        Folder(tmp_path).write(given)
    assert (
        id_map.IdMap(given[:4]).find_duplicate()
        is id_map.scan_ids(lambda: iter(given[:4]), tmp_path).duplicate_rows
        is None
    )


def test_id_sources_are_validated_and_fingerprinted_as_streams(tmp_path, small):
    given = [f"{row}" for row in range(500)]
    path = tmp_path / "ids.txt"
    path.write_text("\n".join(given) + "\n")
    np.save(tmp_path / "ids.npy", np.array(given))
    listed = [open_id_source(each, 500, "documents", tmp_path) for each in (given, path, str(tmp_path / "ids.npy"))]
    assert [list(each) for each in listed] == [given] * 3
    assert list(listed[1]) == given, "a second time too"
    assert len({each.fingerprint for each in listed}) == 1
    assert open_id_source([*given[:-1], "x"], 500, "documents", tmp_path).fingerprint != listed[0].fingerprint
    with pytest.raises(DataError, match="ids: id '3' is that of rows 3 and 499"):
        open_id_source([*given[:-1], "3"], 500, "documents", tmp_path)
    with pytest.raises(DataError, match="has 500 ids for 501 documents"):
        open_id_source(path, 501, "documents", tmp_path)


def test_a_corpus_with_duplicate_ids_is_refused(tmp_path, small):
    documents = [Document(f"{row}", "", "text") for row in range(200)]
    check_corpus(Dataset.from_records("made", documents), tmp_path)
    with pytest.raises(DataError, match="201: document id '5' is that of made documents number 6"):
        check_corpus(Dataset.from_records("made", [*documents, documents[5]]), tmp_path)


PROBE = """
import sys
from pathlib import Path
from memory_probe import memory
from bidr.utils.files import NewFile
from bidr.index.documents import id_index
from bidr.index.documents.document_store import write_documents
from bidr.data import id_map
from bidr.data.vector_ids import open_id_source
from bidr.data.types import Document

class Some:
    def __init__(self, count): self.count = count
    def __iter__(self): return (f"document-{row:09d}" for row in range(self.count))

def described(count):
    return (Document(name, "", "", {"of": row % 50}) for row, name in enumerate(Some(count)))

folder, count = Path(sys.argv[1]), int(sys.argv[2])
id_index.RECORDS_IN_MEMORY = id_map.RECORDS_IN_MEMORY = int(sys.argv[3])

def write(count):
    listed = open_id_source(Some(count), count, "documents", folder)
    create = lambda name: NewFile(folder / name, must_be_new=False)
    given = described(count) if "described" in sys.argv else listed
    write_documents(create, folder, given, count, lambda rows: None, texts=False)

write(100_000)
Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the imports
before = memory("VmRSS", "status")
write(count)
print(memory("VmHWM", "status") - before)
"""


def measure_peak(folder: Path, count: int, held: int, *more: str) -> int:
    """Bytes that writing so many ids takes in a process of its own."""
    command = [sys.executable, "-c", PROBE, str(folder), str(count), str(held), *more]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2] / "helpers"), *sys.path])}
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout)


def test_memory_stays_within_the_bound(tmp_path):
    took = measure_peak(tmp_path, 400_000, 1 << 14)
    print(took)
    assert took < 8 << 20, "20 bytes an id or more were held"


def test_attributes_take_little_more_memory_than_their_values(tmp_path):
    took = measure_peak(tmp_path, 300_000, 1 << 14, "described")
    print(took)
    assert took < (8 << 20) + 40 * 300_000, "their texts were held"


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_ids(tmp_path):
    for count in (1_000_000, 3_000_000):
        took = measure_peak(tmp_path, count, id_index.RECORDS_IN_MEMORY)
        print(f"{count:,} ids: {took >> 20} MiB")
        assert took <= ID_BUFFER_BYTES + BYTES_PER_ID * count
