"""Compaction within a budget, and after a kill: it goes on, or begins again, and leaves nothing behind."""

import random
from pathlib import Path

import pytest
from sample_live_index import built, contents, expected, some, writer
from write_killer import Kill, Killed

import bidr
from bidr.errors import ConfigError, StorageError
from bidr.index.builder import build as building
from bidr.index.builder import coarse_clustering as clusters
from bidr.index.builder import journal as working
from bidr.index.cost_model.build_memory import estimate_build_peaks, read_anonymous_memory
from bidr.index.live import compaction
from bidr.index.live.compaction import predict_merged_shape, predict_peak_ram
from bidr.index.live.live_reader import LiveIndex
from bidr.index.vectors import vector_writer as vector_writing
from bidr.utils import files


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> Kill:
    """Everything in small pieces, each durable at once."""
    monkeypatch.setattr(working, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(files, "BUFFER_BYTES", 1 << 9)
    monkeypatch.setattr(clusters, "MIN_ORDERED_DOCUMENTS", 150)
    for module in (building, vector_writing):
        monkeypatch.setattr(module, "WRITE_ROWS", 128)  # a block of the file
    monkeypatch.setattr(compaction, "ROWS_PER_BLOCK", 64)
    monkeypatch.setattr(compaction, "MIN_RESUMABLE_DOCUMENTS", 0)
    return Kill(monkeypatch)


def changed(folder: Path, engine: str = "scan") -> dict:
    """An index with several segments, deleted documents and a log; what it holds."""
    built(folder, 200, engine=engine)
    with writer(folder) as live:
        live.add(*some(range(200, 260)))
        live.flush()
        live.add(*some(range(40, 80), 1))
        live.delete([f"doc-{row}" for row in range(90, 130)])
        live.flush()
        live.add(*some([300]))
    return contents(folder)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def clean(folder: Path) -> None:
    """There is one segment, its state, and nothing else."""
    found = names(folder)
    assert found[:2] == [".lock", ".next"]
    assert found[-1] == "CURRENT"
    assert len(found) == 5, found


def segment(folder: Path) -> dict[str, bytes]:
    with LiveIndex.open(folder) as index:
        (part,) = index.latest().segments
        return {path.name: path.read_bytes() for path in (folder / part.entry.name).iterdir()}


@pytest.mark.parametrize("engine", ["scan", "lists", "hnsw"])
def test_a_compaction_killed_at_any_write_resumes_to_the_same_bytes(tmp_path, kill, engine):
    wanted = changed(tmp_path / "alone", engine)
    assert changed(tmp_path / "killed", engine) == wanted
    with writer(tmp_path / "alone") as live:
        live.compact()
    chance, times, done = random.Random(0), 0, False
    while not done:
        kill.left = chance.randint(1, 62)  # names take some 60 with the log, and begin again
        try:
            bidr.compact(tmp_path / "killed")
            done = True
        except Killed:
            times += 1
            kill.left = -1
            assert contents(tmp_path / "killed") == wanted
        assert times < 100, "it does not get on"
    kill.left = -1
    assert times >= 3
    clean(tmp_path / "alone")
    clean(tmp_path / "killed")
    assert contents(tmp_path / "killed") == wanted
    assert segment(tmp_path / "killed") == segment(tmp_path / "alone")


def stopped(folder: Path, kill: Kill, at: int) -> None:
    kill.left = at
    with pytest.raises(Killed):
        bidr.compact(folder)
    kill.left = -1
    assert ".compact" in names(folder)


def test_what_is_done_is_not_done_again(tmp_path, kill, monkeypatch):
    wanted = changed(tmp_path / "i")
    written, real = [], building._IndexBuild.write_documents

    def named(self: building._IndexBuild, given: object) -> None:
        before = self.work.find_complete_step("names", [given.stamp, self.count]) is not None
        written.append(before)
        real(self, given)

    monkeypatch.setattr(building._IndexBuild, "write_documents", named)
    stopped(tmp_path / "i", kill, 75)
    bidr.compact(tmp_path / "i")
    # Of the log, and of all: when it was killed, and when it went on with what was there.
    assert written[-1] is True
    assert contents(tmp_path / "i") == wanted
    clean(tmp_path / "i")


@pytest.mark.parametrize("change", ["added", "deleted", "replaced"])
@pytest.mark.parametrize("at", [40, 75])
def test_nothing_of_another_state_gets_in(tmp_path, kill, change, at):
    wanted = changed(tmp_path / "i", "lists")
    stopped(tmp_path / "i", kill, at)
    with writer(tmp_path / "i") as live:
        if change == "added":
            live.add(*some([400]))
            wanted |= expected([400])
        elif change == "deleted":
            live.delete(["doc-7"])
            del wanted["doc-7"]
        else:
            live.add(*some([7], 3))
            wanted |= expected([7], 3)
    assert contents(tmp_path / "i") == wanted
    bidr.compact(tmp_path / "i")
    assert contents(tmp_path / "i") == wanted
    clean(tmp_path / "i")


def test_files_of_a_committed_compaction_are_not_overwritten(tmp_path, kill, monkeypatch):
    """The segment in force and the work that made it share their files, if that was killed before it was removed."""
    wanted = changed(tmp_path / "i", "lists")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", lambda path, to: kill.end())
        with pytest.raises(Killed):
            bidr.compact(tmp_path / "i")
    assert ".compact" in names(tmp_path / "i")
    with writer(tmp_path / "i") as live:
        live.add(*some([400]))
    wanted |= expected([400])
    for at in (15, 40, 60):
        stopped(tmp_path / "i", kill, at)
        assert contents(tmp_path / "i") == wanted
    bidr.compact(tmp_path / "i")
    assert contents(tmp_path / "i") == wanted
    clean(tmp_path / "i")


def test_what_fails_leaves_nothing(tmp_path, kill):
    wanted = changed(tmp_path / "i")
    kill.left, kill.error = 75, lambda: OSError(28, "full")
    with pytest.raises(StorageError, match="no space left"):
        bidr.compact(tmp_path / "i")
    kill.left = -1
    assert ".compact" not in names(tmp_path / "i")
    assert contents(tmp_path / "i") == wanted


def test_of_few_documents_it_begins_again_and_leaves_nothing(tmp_path, kill, monkeypatch):
    wanted = changed(tmp_path / "i")
    stopped(tmp_path / "i", kill, 75)  # when it had more
    monkeypatch.setattr(compaction, "MIN_RESUMABLE_DOCUMENTS", 20_000)
    kill.left = 40
    with pytest.raises(Killed):
        bidr.compact(tmp_path / "i")
    kill.left = -1
    assert contents(tmp_path / "i") == wanted
    bidr.compact(tmp_path / "i")
    assert contents(tmp_path / "i") == wanted
    clean(tmp_path / "i")


def test_a_new_build_removes_the_work_of_a_killed_compaction(tmp_path, kill):
    changed(tmp_path / "i")
    stopped(tmp_path / "i", kill, 75)
    built(tmp_path / "i", 20)
    assert names(tmp_path / "i") == [".lock", ".next", names(tmp_path / "i")[2], "CURRENT"]


def test_an_insufficient_budget_is_refused_before_any_work(tmp_path):
    wanted, before = changed(tmp_path / "i"), names(tmp_path / "i")
    for budget, said in (("1MiB", "step: opening"), ("much", "expected a size")):
        with pytest.raises(ConfigError, match=said):
            bidr.compact(tmp_path / "i", ram_budget=budget)
    with (
        writer(tmp_path / "i") as live,
        pytest.raises(ConfigError, match="compacting this index takes up to") as refused,
    ):
        live.compact(ram_budget="100MiB")
    assert names(tmp_path / "i") == before
    least = int(str(refused.value).rsplit("give ", 1)[1].split(" MiB")[0].replace(",", ""))
    bidr.compact(tmp_path / "i", ram_budget=(least + 200) << 20)  # other tests' memory comes and goes in this process
    assert contents(tmp_path / "i") == wanted
    clean(tmp_path / "i")


def test_a_budget_counts_the_index_that_is_open(tmp_path):
    changed(tmp_path / "i")
    with LiveIndex.open(tmp_path / "i") as index:
        view = index.latest()
        held = sum(view.ram_bytes.values())
        peaks = predict_peak_ram(view)
        assert view.ram_bytes.keys() >= {"codes", "deleted", "codebooks", "log"}
        alone = estimate_build_peaks(
            predict_merged_shape(view),
            fits_codebooks=False,
            has_ids=True,
            has_attributes=True,
        )
        beside = held + compaction.POSITION_BYTES * view.count + compaction.DELETED_BYTES * 200
    assert min(peaks.values()) >= compaction.BASE + held
    assert {step: peaks[step] - alone[step] for step in ("names", "vectors")} == {"names": beside, "vectors": beside}
    assert {"names", "vectors", "opening", "log"} <= peaks.keys()


def test_automatic_merges_stay_within_the_budget_or_are_skipped(tmp_path):
    """What would take more is not merged and said once; nothing is lost, and a budget that does merges again."""
    built(tmp_path, 20)
    told = list[str]()
    with writer(tmp_path, segments=2, ram_budget="100MiB", warn=told.append) as live:
        for start in range(20, 60, 10):
            live.add(*some(range(start, start + 10)))
            live.flush()
        view = live.view
        assert len(view.segments) == 5
        least = max(predict_peak_ram(view, view.segments[1:]).values())
        assert predict_merged_shape(view, view.segments[1:]).count == 40
    assert len(told) == 1
    assert "3 segments are not merged" in told[0]
    assert "merging its segments takes up to" in told[0]
    enough = 2 * least + read_anonymous_memory()  # what this process holds already is counted
    with writer(tmp_path, segments=2, ram_budget=enough, warn=told.append) as live:
        live.flush()
        assert len(live.view.segments) == 2
    assert len(told) == 1
    assert contents(tmp_path) == expected(range(60))
    with pytest.raises(ConfigError, match="ram_budget: given 'lots', expected a size"):
        writer(tmp_path, ram_budget="lots")
