"""Query strings are looked at once, and mean the same every time."""

import pytest

from bidr.server.errors import InvalidRequest
from bidr.server.limits import RequestLimits
from bidr.server.search_request import MAX_CACHED_QUERIES, RequestParser, ValidationContext

RULES = ValidationContext(RequestLimits(k=50, candidates=60), candidates=40, dim=4)


def test_a_parsed_query_string_is_cached():
    reading = RequestParser(RULES)
    first = reading.parse_params(b"k=5&text=false")
    assert first.options == (5, 40, None, False, False, None, None, 0.0, None)
    assert reading.parse_params(b"k=5&text=false") is first
    assert reading.parse_params(b"k=6").options[0] == 6
    assert RequestParser(RULES._replace(candidates=9)).parse_params(b"k=5&text=false").options[1] == 9


@pytest.mark.parametrize("raw", [b"k=51", b"k", b"k=1&k=2", b"a=1", b"text=yes", b"filter={", b"lexical=61", b"k=\xff"])
def test_an_invalid_query_string_is_refused_every_time(raw):
    reading = RequestParser(RULES)
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            reading.parse_params(raw)


def test_the_cache_of_query_strings_is_bounded():
    reading = RequestParser(RULES)
    for number in range(2 * MAX_CACHED_QUERIES):
        assert reading.parse_params(f"model={number}".encode()).options[5] == str(number)
        reading.parse_params(b"model=" + b"x" * 10_000)
        reading.parse_params(b"filter=%7B%22n%22%3A1%7D")
    assert len(reading._cache) == MAX_CACHED_QUERIES
    assert max(map(len, reading._cache)) < 300
    assert reading.parse_params(b"filter=%7B%22n%22%3A1%7D") is not reading.parse_params(b"filter=%7B%22n%22%3A1%7D")
