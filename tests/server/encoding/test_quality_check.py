"""What 8 bits lose is told by the whole encoder's own scores."""

import numpy as np
import pytest
from sample_index import clustered
from sample_server import DIM, made

from bidr.index.live.live_reader import LiveIndex
from bidr.search.searcher import Searcher
from bidr.search.types import QueryVectors
from bidr.server.encoding import quality_check as parity


@pytest.fixture(scope="module", params=[None, 8])
def searcher(tmp_path_factory, request):
    """Of whole vectors, and of such that are cut off."""
    folder = tmp_path_factory.mktemp("parity") / "index"
    return Searcher(LiveIndex.open(made(folder, count=300, dims=request.param)))


def judged(searcher, monkeypatch, whole, small):
    """The parity of encoders that give these vectors."""
    given = {"whole": whole, "small": small}
    monkeypatch.setattr(parity, "_encode_role", lambda name, role, texts: QueryVectors(given[name], given[name]))
    return parity._measure_parity(searcher, "queries", ["text"] * len(whole), "whole", "small")


def test_the_same_vectors_lose_nothing(searcher, monkeypatch):
    own = clustered(20, DIM, 5)
    found = judged(searcher, monkeypatch, own, own)
    assert (found.loss, found.agreement) == (0, 1)
    assert found.holds


def test_what_is_lost_is_the_score_of_the_answers(searcher, monkeypatch):
    whole, other = clustered(8, DIM, 5), clustered(8, DIM, 6)
    found = judged(searcher, monkeypatch, whole, other)
    view = searcher.reader.latest()
    vectors = np.zeros((view.count, view.manifest.stored_dim), np.float32)
    places = np.arange(view.count)
    vectors[view.rows_of(places)] = view.vectors.read(places)
    wanted, got = (searcher.search_vectors(QueryVectors(each, each), 10).rows for each in (whole, other))
    best, worse = (
        np.array([vectors[own] @ query for own, query in zip(rows, view.manifest.truncate(whole), strict=True)])
        for rows in (wanted, got)
    )
    expected = ((best - worse).sum(1) / np.abs(best).sum(1)).mean()
    assert found.loss == pytest.approx(expected, abs=1e-4)
    assert found.loss > 0.01
    assert not found.holds
    assert not parity.NOT_MEASURED.holds
