"""Who is started, replaced and let go, with processes that only pretend."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest

from bidr.cli.serve import Serve
from bidr.errors import ConfigError
from bidr.index.engines import shared_memory as shared
from bidr.server import supervisor as module
from bidr.server.config import ApiKeys, ServerConfig
from bidr.server.encoding import EncodingConfig
from bidr.server.supervisor import Supervisor


class Process:
    """A child whose start and end the test decides."""

    pids = iter(range(1_000_000, 2_000_000))

    def __init__(self, kind, settings, listening):
        self.kind, self.config, self.started = kind, settings, 0.0
        self.is_ready = self.said = False
        self.is_alive, self.report, self.signals, self.process = True, {}, [], self
        self.pid, self.returncode = next(self.pids), -9

    def poll_ready(self):
        return self.said

    def send_signal(self, number):
        self.signals.append(number)
        self.is_alive = False

    def comes_up(self):
        self.said = self.is_ready = True

    def close(self):
        pass


@pytest.fixture
def renewed(tmp_path, monkeypatch):
    """A supervisor of two workers and a writer, and the keys that it reads when told to."""
    monkeypatch.setattr(module, "ChildProcess", Process)
    keys = [ApiKeys()]

    def again(settings):
        if isinstance(keys[0], Exception):
            raise keys[0]
        return ServerConfig(index=settings.index, keys=keys[0], runtime=settings.runtime)

    (tmp_path / "metrics").mkdir()
    made = Supervisor(ServerConfig(index=tmp_path / "index", workers=2, runtime=tmp_path), None, again)
    made.workers, made.writer = [made._start("worker"), made._start("worker")], made._start("writer")
    for child in (*made.workers, made.writer):
        child.comes_up()
    return made, keys


def renew(made):
    made.is_reload_requested = True
    made._poll()


def test_unreadable_keys_change_nothing(renewed, capfd):
    made, keys = renewed
    before, settings = list(made.workers), made.config
    keys[0] = ConfigError("line 3: expected 'read KEY'")
    renew(made)
    assert (made.workers, made.config, made._replacement) == (before, settings, None)
    told = json.loads(capfd.readouterr().err.splitlines()[-1])
    assert (told["event"], "line 3" in told["why"]) == ("renewal_failed", True)


def test_a_second_renewal_leaves_no_worker_with_the_keys_of_the_first(renewed):
    made, keys = renewed
    keys[0] = ApiKeys(read="of the first renewal")
    renew(made)
    late = made._replacement
    keys[0] = ApiKeys(read="of the second renewal")
    renew(made)
    assert late.signals == [signal.SIGTERM]
    for _ in range(2):
        made._replacement.comes_up()
        made._poll()
        made._poll()
    assert [child.config.keys.read for child in made.workers] == ["of the second renewal"] * 2
    assert made._replacement is None


def test_a_worker_that_dies_while_its_replacement_starts_is_not_started_twice(renewed):
    made, _ = renewed
    renew(made)
    coming = made._replacement
    made.workers[0].is_alive = False
    made._poll()
    coming.comes_up()
    made._poll()
    assert made.workers[0] is coming
    made._poll()
    made._replacement.comes_up()
    made._poll()
    made._poll()
    assert (len(made.workers), all(child.is_alive for child in made.workers), made.terminating) == (2, True, [])


def test_a_replacement_that_fails_does_not_keep_a_dead_worker_from_replacement_back(renewed):
    made, _ = renewed
    renew(made)
    made.workers[0].is_alive = False
    made._replacement.said = True
    made._poll()
    made._poll()
    assert (len(made.workers), all(child.is_alive for child in made.workers)) == (2, True)


def test_a_writer_that_keeps_ending_does_not_keep_workers_waiting(renewed, monkeypatch):
    made, _ = renewed
    monkeypatch.setattr(module, "MAX_BACKOFF_SECONDS", 1e9)
    for _ in range(20):
        made.writer.is_alive = False
        made._backoffs["writer"].restart_at = 0.0
        made._poll()
    dead = made.workers[1]
    dead.is_alive = False
    made._poll()
    assert made.workers[1].is_alive


def test_a_worker_that_ended_is_not_in_the_metrics(renewed, tmp_path):
    made, _ = renewed
    pid = made.workers[0].pid
    gauge, counter = (tmp_path / "metrics" / f"{name}_{pid}.db" for name in ("gauge_livesum", "counter"))
    for file in (gauge, counter):
        file.touch()
    made.workers[0].is_alive = False
    made._poll()
    assert (gauge.exists(), counter.exists()) == (False, True)


def test_codes_that_are_being_written_are_not_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr(shared, "_folder", tmp_path)
    source = tmp_path / "000001" / "codes.npy"
    source.parent.mkdir()
    source.touch()
    save = np.save
    monkeypatch.setattr(np, "save", lambda out, array: (save(out, array), shared.remove_unused({"000002"})))
    assert shared.load_shared(source, lambda: np.arange(3)).tolist() == [0, 1, 2]
    assert list(tmp_path.glob("000001-*.npy"))
    shared.remove_unused({"000002"})
    assert not list(tmp_path.glob("000001-*.npy"))
    unfinished = tmp_path / ".000002-codes.npy.77"
    unfinished.touch()
    shared.remove_unfinished(77)
    assert not unfinished.exists()


def test_defaults_where_the_system_does_not_say_which_cores_are_ours(monkeypatch):
    """As on macOS."""
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert (EncodingConfig().parallel, Serve(index=Path("index")).threads) == (2, 3)
