"""A filter of many conditions stops when the time of its request is over, in segments and in the log."""

import time
from types import SimpleNamespace

import pytest
from sample_index import clustered
from sample_server import DIM, made, opened, search, vector

from bidr.data.types import Document
from bidr.errors import SearchTimeoutError
from bidr.index.documents import attribute_columns as attributes
from bidr.index.live import memtable as memory
from bidr.server.errors import DeadlineExceeded, to_http_error
from bidr.server.limits import RequestLimits
from bidr.server.write_batcher import AddJob, WriteBatcher
from bidr.utils import deadline
from bidr.utils.deadline import check_deadline, deadline_scope

CONDITIONS = {"or": [{"n": number} for number in range(200)]}


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """With documents in a segment and in the log."""
    folder = made(tmp_path_factory.mktemp("late") / "index")
    writing = WriteBatcher(folder, None, lambda model: None)
    new = [Document(f"new-{number}", "", "", {"n": number}) for number in range(200)]
    assert writing.apply([AddJob(new, clustered(200, DIM, 5), True)])[0]["added"] == 200
    writing.release()
    return folder


def test_the_deadline_applies_within_its_scope_only():
    check_deadline()
    with pytest.raises(SearchTimeoutError), deadline_scope(time.monotonic() - 1):
        check_deadline()
    check_deadline()
    assert isinstance(to_http_error(SearchTimeoutError("over")), DeadlineExceeded)


@pytest.mark.parametrize(("where", "name"), [(attributes.AttributeColumns, "_mark_values"), (memory, "match_filter")])
def test_a_filter_stops_between_its_conditions(index, monkeypatch, capfd, where, name):
    """On the thread of the event loop nothing else could stop it. The clock is that of the search: 10 s a condition."""
    service = opened(index, limits=RequestLimits(seconds=100), threads=0)
    real, done = getattr(where, name), []
    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 10 * len(done)))

    def slow(*given):
        done.append(given)
        return real(*given)

    assert search(service, vectors=[vector(1)], filter={"n": 7}).status_code == 200
    monkeypatch.setattr(where, name, slow)
    found = search(service, vectors=[vector(1)], filter=CONDITIONS)
    assert (found.status_code, found.json()["error"]["message"]) == (504, "the request exceeded its deadline")
    assert 1 < len(done) < 100
    assert "fault" not in capfd.readouterr().err
