"""Logs of large texts: read whole, bounded, and never a record that cannot be written."""

import os

import pytest
from sample_live_index import built, contents, expected, some, writer

from bidr.errors import DataError
from bidr.index.engines.code_store import CodeStore
from bidr.index.live import drift
from bidr.index.live import wal_record as changes
from bidr.index.live import writer as writer_module
from bidr.index.live.live_reader import LiveIndex


def test_short_reads_of_the_log_are_continued(tmp_path, monkeypatch):
    """Linux gives 2 GiB less a page at most."""
    index, pread = built(tmp_path / "i"), os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, place: pread(file, min(size, 100), place))
    with writer(index) as live:
        live.add(*some([6, 7]))
        live.add(*some([8]))
        assert contents(live.view) == contents(index) == expected(range(9))
    LiveIndex.open(index).verify()


def test_large_texts_become_a_segment_as_many_documents_do(tmp_path, monkeypatch):
    monkeypatch.setattr(writer_module, "MAX_LOG_BYTES", 20_000)
    index = built(tmp_path / "i")
    documents, vectors = some(range(6, 10))
    with writer(index) as live:
        for number, document in enumerate(documents):
            live.add([document._replace(text="x" * 15_000)], vectors[number : number + 1])
            assert live.view.memtable.bytes > 15_000, "texts are held in RAM"
        assert len(live.view.memtable.documents) == 2
        assert len(live.view.segments) == 2
    assert len(contents(index)) == 10


def test_many_deletions_become_a_segment_too(tmp_path, monkeypatch):
    monkeypatch.setattr(writer_module, "MAX_LOG_BYTES", 300)
    index = built(tmp_path / "i", 12)
    with writer(index) as live:
        for number in range(11):
            live.delete([f"doc-{number}"])
            assert (live.view.generation / "log").stat().st_size < 600
    assert contents(index) == expected([11])


def test_a_too_large_commit_is_refused_and_the_writer_continues(tmp_path, monkeypatch):
    monkeypatch.setattr(changes, "MAX_RECORD_BYTES", 5_000)
    index = built(tmp_path / "i")
    documents, vectors = some([6, 7])
    with writer(index) as live:
        with pytest.raises(DataError, match=r"2 documents take .* bytes in the log, at most 5,000 .*fewer"):
            live.add([document._replace(text="x" * 4_000) for document in documents], vectors)
        live.add(documents, vectors)
    assert contents(index) == expected(range(8))


def test_a_look_for_drift_takes_no_memory_that_grows_with_the_index(tmp_path, monkeypatch):
    monkeypatch.setattr(drift, "MIN_DOCUMENTS", 4)
    monkeypatch.setattr(drift, "CODES_SAMPLED", 10)
    taken, real = [], CodeStore.unpack_codes

    def unpacked(self, *given):
        taken.append(len(real(self, *given)))
        return real(self, *given)

    monkeypatch.setattr(CodeStore, "unpack_codes", unpacked)
    with writer(built(tmp_path / "i", 100)) as live:
        live.add(*some(range(200, 206)))
        assert live.drift is not None
    assert taken == [10]
