"""What is whole of a damaged index is saved, what is lost is listed, and the damaged one is not touched."""

import errno
import json
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import HARMS, delete, flip_byte, truncate, zero_block
from sample_index import clustered, small_index
from sample_live_index import DIM, built, contents, described, some, writer

from bidr.errors import BidrError, ConfigError, IndexFolderError, StorageError
from bidr.index.live.live_reader import LiveIndex
from bidr.index.live.wal import ACKNOWLEDGED, LOG, RECORD, get_log_start, pack_mark, write_log
from bidr.index.live.wal_record import WalRecord, decode_record, encode_record
from bidr.index.repair.salvage import RepairReport
from bidr.index.repair.wal_salvage import salvage_log
from bidr.index.storage.manifest import ModelReference
from bidr.pipeline.repair import repair_index
from bidr.search.searcher import Searcher
from bidr.search.types import QueryVectors

COUNT = 250
GOLDEN = sorted(path.parent for path in (Path(__file__).parents[2] / "laws" / "golden").glob("*/*/CURRENT"))
# Files of a segment that hold what nothing else does; all others are made anew.
STORED = ("vectors.npy", "ids.blob", "documents.blob", "attributes.blob", "order.npy")


def made(folder: Path, count: int = COUNT, **options: Any) -> Path:
    """Two segments, deleted rows, a log of three records."""
    index = built(folder, count, lexical="prepend", given=described(count), **options)
    with writer(index) as live:
        live.add(described(count + 8)[count:], some(range(count, count + 8))[1])
        live.delete(["doc-1", f"doc-{count + 1}"])
        live.flush()
        live.add(*some([5, 4000]))
        live.delete(["doc-3"])
        live.add(*some([4001]))
    return index


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return made(tmp_path_factory.mktemp("repair") / "index", engine="lists")


@pytest.fixture
def index(whole, tmp_path) -> Path:
    return shutil.copytree(whole, tmp_path / "index")


def ranked(index: Path) -> list[list[tuple[str, float]]]:
    """Every document for some questions, best first."""
    questions = np.stack([clustered(1, DIM, seed=number)[0] for number in (5, 77, 150)])
    with LiveIndex.open(index, ef=10**6) as opened:
        searcher, count = Searcher(opened), opened.count
        found = searcher.load_results(searcher.search_vectors(QueryVectors(questions, questions), count, count))
    return [[(answer.id, round(float(answer.score), 5)) for answer in one] for one in found]


def state_of(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_mode, path.read_bytes()) for path in files}


def lost_ids(report: RepairReport) -> list[str | None]:
    if report.lost_file is None:
        return []
    return [json.loads(line)["id"] for line in Path(report.lost_file).read_text().splitlines()]


def check_repair(index: Path, before: dict[str, tuple], **options: Any) -> RepairReport:
    """Repair, and compare: each document is as it was, or listed."""
    untouched, out = state_of(index), index.parent / "new"
    report = repair_index(index, out, **options)
    assert state_of(index) == untouched
    with LiveIndex.open(out) as opened:
        opened.verify()
    after = contents(out)
    assert len(after) == report.saved
    assert {name: before.get(name) for name in after} == after
    listed = lost_ids(report)
    gone = before.keys() - after.keys()
    assert len(gone - set(listed)) == report.unnamed
    assert len(gone) == report.lost
    assert report.is_complete == (not gone and report.verified)
    shutil.rmtree(out)
    for path in (report.lost_file, report.again_file):
        if path is not None:
            Path(path).unlink()
    return report


def test_an_intact_index_is_saved_completely(index):
    before = ranked(index)
    repair_index(index, index.parent / "new")
    assert [sorted(one) for one in ranked(index.parent / "new")] == [sorted(one) for one in before]
    check_repair(shutil.move(index.parent / "new", index.parent / "again"), contents(index))


DERIVED = ("codes.npy", "lists.npy", "ids.offsets.npy", "documents.offsets.npy", "vectors.checks.npy", "manifest.json")


@pytest.mark.parametrize(
    ("harm", "names"),
    [
        (flip_byte, STORED + DERIVED),
        (zero_block, ("vectors.npy", "ids.offsets.npy", "documents.blob", "manifest.json")),
        pytest.param(zero_block, STORED + DERIVED, marks=pytest.mark.slow),
        pytest.param(truncate, STORED + DERIVED, marks=pytest.mark.slow),
        pytest.param(delete, STORED + DERIVED, marks=pytest.mark.slow),
    ],
)
def test_whatever_is_damaged_is_saved_or_listed(index, harm, names):
    """Of each file that holds what nothing else does, and of one of each other kind."""
    before, chance = contents(index), random.Random(harm.__name__)
    for name in names:
        path = index / "000001" / name
        content = path.read_bytes()
        harm(path, chance.randrange(len(content)))
        report = check_repair(index, before)
        if name not in STORED or (name == "order.npy" and harm is flip_byte):
            assert report.saved == len(before), name
        path.write_bytes(content)


def test_a_flipped_byte_costs_the_documents_of_its_block_alone(index):
    before = contents(index)
    for name in ("documents.blob", "attributes.blob"):
        path = index / "000001" / name
        content = path.read_bytes()
        flip_byte(path, len(content) // 2)
        report = check_repair(index, before)
        assert 0 < report.lost < 90, name
        assert report.partly_whole == report.lost
        assert check_repair_kept(index, before).saved == len(before)
        path.write_bytes(content)
    flip_byte(index / "000001" / "ids.blob", 900)
    assert check_repair(index, before).unnamed == 1


def check_repair_kept(index: Path, before: dict[str, tuple]) -> RepairReport:
    """Documents without text or attributes stay: with their own vectors, and the rest of them as it was."""
    out = index.parent / "kept"
    report = repair_index(index, out, keep_incomplete=True)
    after = contents(out)
    incomplete = [name for name in after if after[name] != before[name]]
    assert set(incomplete) <= set(lost_ids(report))
    assert report.incomplete >= len(incomplete) > 0
    assert all(after[name][3] == before[name][3] for name in after)
    assert all(after[name][2] in (before[name][2], None) for name in incomplete)
    shutil.rmtree(out)
    Path(str(report.lost_file)).unlink()
    return report


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["scan", "lists", "hnsw"])
@pytest.mark.parametrize("harm", HARMS)
def test_any_file_of_any_engine_may_be_damaged(tmp_path, engine, harm):
    index = made(tmp_path / "index", 400, engine=engine)
    """A third of the files with each kind of damage, other ones with each."""
    before, chance = contents(index), random.Random(engine)
    files = sorted(path for path in index.rglob("*") if path.is_file() and not path.name.startswith("."))
    for path in files[HARMS.index(harm) % 3 :: 3]:
        content = path.read_bytes()
        harm(path, chance.randrange(len(content)))
        if path.name in (LOG, "000001.deleted"):  # what came back is told of
            report = repair_index(index, tmp_path / "new")
            assert report.saved >= len(before) - 3
            assert not report.certain or contents(tmp_path / "new") == before
            for left in tmp_path.glob("new*"):
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        else:
            check_repair(index, before)
        path.write_bytes(content)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 20))])
def test_several_files_may_be_damaged_at_once(index, seed):
    before, chance = contents(index), random.Random(seed)
    for path in chance.sample(sorted(index.glob("00000[13]/*")), 6):
        chance.choice(HARMS)(path, chance.randrange(path.stat().st_size))
    check_repair(index, before)


@pytest.mark.parametrize("kept", GOLDEN, ids=lambda folder: folder.name)
def test_indexes_of_earlier_formats_are_repaired(kept, tmp_path):
    """They know of small files only whether they are whole."""
    index = shutil.copytree(kept, tmp_path / "index")
    before = contents(index)
    check_repair(index, before)
    for name, at in (("ids.blob", 100), ("order.npy", -5), ("codes.npy", 150), ("ids.offsets.npy", 200)):
        path = index / "000001" / name
        if path.exists():
            content = path.read_bytes()
            flip_byte(path, at)
            report = check_repair(index, before)
            assert report.lost == report.unnamed == (name == "ids.blob"), name
            path.write_bytes(content)
    flip_byte(index / "000001" / "vectors.npy", 4_096 + 100)  # all of them are in one block
    if len(before) == 96:
        with pytest.raises(IndexFolderError, match="none of its documents is undamaged"):
            repair_index(index, tmp_path / "new")
    else:
        report = check_repair(index, before)
        assert report.reasons["vector"] == report.lost > 50


def test_the_survivors_are_found_and_ranked_as_before(index):
    before = ranked(index)
    flip_byte(index / "000001" / "vectors.npy", 5_000)
    flip_byte(index / "000001" / "codes.npy", 300)
    report = repair_index(index, index.parent / "new")
    assert report.reasons["vector"] == report.lost > 0
    gone = set(lost_ids(report))
    for one, found in zip(before, ranked(index.parent / "new"), strict=True):
        assert sorted(found) == sorted(answer for answer in one if answer[0] not in gone)
    again = [json.loads(line) for line in Path(str(report.again_file)).read_text().splitlines()]
    assert {each["_id"] for each in again} == gone
    assert {each["text"] for each in again} <= {each.text for each in described(COUNT)}


def test_a_search_by_codes_finds_the_same_candidates(tmp_path):
    """Codes that are made anew are those that were there."""
    index = small_index(tmp_path / "index", 300, model=None).parent
    with LiveIndex.open(index) as opened:
        before = opened.latest().segments[0].get_codes(np.arange(300))
    zero_block(index / "000001" / "codes.npy", 0)
    repair_index(index, tmp_path / "new")
    with LiveIndex.open(tmp_path / "new") as opened:
        after = opened.latest().segments[0].get_codes(np.arange(300))
    assert (before == after).mean() > 0.99


def test_lost_codebooks_are_fitted_again_where_no_model_has_them(tmp_path):
    index = small_index(tmp_path / "index", 300, model=None).parent
    before = contents(index)
    delete(index / "000001" / "codebooks.safetensors", 0)
    report = check_repair(index, before)
    assert any("trained" in note for note in report.notes)


def test_lost_codebooks_are_copied_from_the_model_which_must_be_named(tmp_path):
    index = small_index(tmp_path / "index", 300, model=ModelReference("fp-a", str(tmp_path / "gone"))).parent
    before = contents(index)
    flip_byte(index / "000001" / "codebooks.safetensors", 500)
    with pytest.raises(IndexFolderError, match="--model"):
        repair_index(index, tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index"]
    check_repair(index, before, refit=True)


def test_damaged_codes_are_copied_without_their_model(tmp_path):
    index = small_index(tmp_path / "index", 300, model=ModelReference("fp-a", str(tmp_path / "gone"))).parent
    before = contents(index)
    flip_byte(index / "000001" / "codes.npy", 300)
    report = check_repair(index, before)
    assert any("damaged codes are copied" in note and "--model" in note for note in report.notes)


def test_where_is_refused_before_anything_is_written(index, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(index)
    untouched = state_of(tmp_path)
    for out in (index, index / "new", index / "000001" / "new", tmp_path / "there", tmp_path / "link" / "new"):
        with pytest.raises(ConfigError):
            repair_index(index, out)
    for lost in (index / "lost.jsonl", tmp_path / "there", tmp_path / "new" / "lost.jsonl"):
        with pytest.raises(ConfigError):
            repair_index(index, tmp_path / "new", lost=lost)
    with pytest.raises(IndexFolderError, match="no such folder"):
        repair_index(tmp_path / "nowhere", tmp_path / "new")
    with pytest.raises(IndexFolderError, match="no index generation"):
        repair_index(tmp_path / "there", tmp_path / "new")
    with writer(index), pytest.raises(IndexFolderError, match="a writer has this index"):
        repair_index(index, tmp_path / "new")
    assert state_of(tmp_path).keys() == untouched.keys()


def test_a_repair_that_saves_nothing_leaves_no_files(index, tmp_path):
    for name in ("vectors.npy", "documents.blob"):
        for path in index.glob(f"0*/{name}"):
            path.unlink()
    (index / "000004" / LOG).unlink()
    with pytest.raises(BidrError, match="nothing"):
        repair_index(index, tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index"]


def test_lists_of_lost_documents_are_removed_if_the_new_index_fails(index, tmp_path, monkeypatch):
    flip_byte(index / "000001" / "vectors.npy", 5_000)

    def fail(*paths: Path) -> None:
        raise OSError(errno.EIO, "input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("bidr.index.repair.salvage.os.rename", fail)
        with pytest.raises(StorageError):
            repair_index(index, tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index"]
    assert repair_index(index, tmp_path / "new").lost


def changes(count: int) -> list[WalRecord]:
    found = []
    for number in range(count):
        documents, vectors = some([number, 100 + number])
        arrays = np.full((2, 4), number, np.uint8), vectors.astype(np.float16), np.zeros(2, np.float32)
        found.append(WalRecord(documents, True, *arrays, {"000001": [number]}, []))
    return found


def told(found: Sequence[WalRecord]) -> list[bytes]:
    return [encode_record(change) for change in found]


def test_all_records_of_a_log_but_the_damaged_one_are_read(tmp_path):
    state, given = tmp_path / "000002", changes(4)
    state.mkdir()
    write_log(state, state.name, told(given))
    content = (state / LOG).read_bytes()
    first = get_log_start(state.name)[0]
    assert told(salvage_log(state).records) == told(given)
    recovered = 0
    for offset in range(0, len(content), 7):
        flip_byte(state / LOG, offset, 0x41)
        found = salvage_log(state)
        kept = told(found.records)
        assert kept == [record for record in told(given) if record in kept]
        assert len(kept) >= 3
        assert (len(kept) == 4) == (found.gaps == 0)
        recovered += offset >= first and len(kept) == 4
        (state / LOG).write_bytes(content)
    assert recovered >= 4, "a checksum or a length that is damaged costs nothing"


@pytest.mark.parametrize("size", [64, 512])
def test_zeros_in_a_log_cost_the_records_that_they_touch_and_at_most_one_more(tmp_path, size):
    state, given = tmp_path / "000002", changes(8)
    state.mkdir()
    write_log(state, state.name, told(given))
    content = (state / LOG).read_bytes()
    for at in range(0, len(content) - size, size):
        zero_block(state / LOG, at, size)
        kept = told(salvage_log(state).records)
        assert kept == [record for record in told(given) if record in kept]
        assert len(kept) >= 4
        (state / LOG).write_bytes(content)


def test_what_a_damaged_record_deleted_does_not_come_back(tmp_path):
    state = tmp_path / "000002"
    state.mkdir()
    write_log(state, state.name, told(changes(3)))
    content = (state / LOG).read_bytes()
    body = told(changes(3))[1]
    flip_byte(state / LOG, content.index(body) + len(body) - 5)  # in its vectors
    found = salvage_log(state)
    assert told(found.records) == [told(changes(3))[0], told(changes(3))[2]]
    (partial,) = found.partial_records
    assert partial == (1, ["doc-1", "doc-101"], {"000001": [1]}, [])
    assert decode_record(body, state).deleted_rows == partial.deleted_rows


def test_documents_of_a_damaged_record_are_listed(index):
    before = contents(index)
    log = index / "000004" / LOG
    flip_byte(log, log.read_bytes().index(b'"shape"') + 25)  # among its codes
    report = repair_index(index, index.parent / "new")
    assert not report.certain
    assert not report.is_complete
    after = contents(index.parent / "new")
    assert {name: before[name] for name in after} == after
    assert before.keys() - after.keys() <= set(lost_ids(report)) <= {"doc-5", "doc-4000"}


def test_what_follows_the_end_of_a_sealed_log_is_not_saved(tmp_path):
    """It was refused, so it must not come back; and that it is left out is no damage."""
    state, records = tmp_path / "000002", told(changes(5))
    state.mkdir()
    write_log(state, state.name, records)
    end = get_log_start(state.name)[0] + sum(RECORD.size + len(record) for record in records[:3])
    for rest in (0, 1):  # whole records, or one that was cut off
        (state / LOG).write_bytes((state / LOG).read_bytes()[: -rest or None])
        (state / ACKNOWLEDGED).write_bytes(pack_mark(end, sealed=True))
        log = salvage_log(state)
        assert told(log.records) == records[:3]
        assert (log.partial_records, log.gaps, log.missing) == ([], 0, 0)


def test_a_sparse_log_is_read_up_to_its_allocated_size(tmp_path):
    """A terabyte of them costs nothing on the disk, and would not fit in memory."""
    state, records = tmp_path / "000002", told(changes(3))
    state.mkdir()
    write_log(state, state.name, records)
    os.truncate(state / LOG, 1 << 40)
    log = salvage_log(state)
    assert (told(log.records), log.gaps) == (records, 0)


def test_sparse_log_is_reported_as_damaged(index):
    """Such an index cannot be opened, so the report must not say that nothing is damaged."""
    before, log = contents(index), index / "000004" / LOG
    os.truncate(log, 1 << 40)
    report = repair_index(index, index.parent / "new")
    assert "sparse file: 1,099,511,627,776 bytes long" in report.damaged[f"000004/{LOG}"]
    assert report.is_complete
    assert contents(index.parent / "new") == before


@pytest.mark.parametrize(("name", "offset", "extent"), [(LOG, 3, "its header"), (ACKNOWLEDGED, 20, "all of it")])
def test_damage_that_prevents_opening_the_log_is_reported(index, name, offset, extent):
    before = contents(index)
    flip_byte(index / "000004" / name, offset)
    report = repair_index(index, index.parent / "new")
    assert report.damaged == {f"000004/{name}": extent}
    assert contents(index.parent / "new") == before


def test_what_could_not_be_compared_is_not_called_complete(tmp_path):
    """Without its manifest nothing proves the codes of a segment."""
    (small_index(tmp_path / "index") / "manifest.json").unlink()
    report = repair_index(tmp_path / "index", tmp_path / "new")
    assert (report.saved, report.lost) == (60, 0)
    assert not report.verified
    assert not report.is_complete


def changed_index(folder: Path) -> Path:
    """Attributes changed in the state and in the log."""
    index = built(folder, 40, described(40))
    with writer(index) as live:
        live.set_attributes({"doc-4": {"price": 1}, "doc-5": {"price": 1}})
        live.flush()
        live.add(*some([50]))
        live.set_attributes({"doc-5": {"price": 2}, "doc-50": {"price": 2}})
    return index


def test_changed_attributes_are_saved(tmp_path):
    index = changed_index(tmp_path / "index")
    before = contents(index)
    assert before["doc-5"][2]["price"] == 2
    report = check_repair(index, before)
    assert report.saved == 41
    assert report.certain


@pytest.mark.parametrize("file", ["000001.changed.npy", "000001.attributes.blob", LOG])
def test_damaged_changes_are_reported(tmp_path, file):
    index = changed_index(tmp_path / "index")
    before = contents(index)
    state = (index / "CURRENT").read_text().split()[0]
    flip_byte(index / state / file, -3)
    report = repair_index(index, tmp_path / "new")
    assert not report.certain
    assert any("attributes" in note or "log" in note for note in report.notes)
    after = contents(tmp_path / "new")
    assert before["doc-4"][3] == after["doc-4"][3]
    assert {name: fields[3] for name, fields in after.items()} == {name: fields[3] for name, fields in before.items()}
