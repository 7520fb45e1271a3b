import datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidr.index.filters.iso_time import NO_TIME, parse_quoted_times, parse_time

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
ZONES = st.integers(-23 * 60, 23 * 60).map(lambda minutes: datetime.timezone(datetime.timedelta(minutes=minutes)))


def count_microseconds(time: datetime.datetime) -> int:
    return (time - EPOCH) // datetime.timedelta(microseconds=1)


@given(st.datetimes(timezones=st.one_of(ZONES, st.just(datetime.UTC))), st.sampled_from("T "))
@settings(max_examples=200, deadline=None)
def test_times_are_those_of_datetime(time, separator):
    assert parse_time(time.isoformat(separator)) == count_microseconds(time)
    assert parse_time(time.replace(tzinfo=None).isoformat()) == count_microseconds(time.replace(tzinfo=datetime.UTC))
    assert parse_time(time.date().isoformat()) == count_microseconds(
        datetime.datetime.combine(time.date(), datetime.time(), datetime.UTC)
    )


@given(st.text("0123456789-:.,TtZz +", max_size=32))
@settings(max_examples=300, deadline=None)
def test_what_datetime_refuses_is_no_time(text):
    try:
        datetime.datetime.fromisoformat(text)
    except ValueError:
        assert parse_time(text.replace(",", ".")) is None or "t" in text or "z" in text or "24:" in text


@pytest.mark.parametrize(
    "text",
    ["", "2024", "2024-02-30", "2023-02-29", "1900-02-29", "2024-13-01", "2024-01-01T", "2024-01-01T24:00",
     "2024-01-01T10", "2024-01-01T10:00:", "2024-01-01T10:00:00.", "2024-01-01T10:00+1", "2024-01-01T10:00+24:00",
     "2024-01-01T10:00Zx", "2024-01-01x10:00", "0000-01-01", "２024-01-01", "2024-01-01T10:00:00" + "0" * 60],
)  # fmt: skip
def test_other_strings_are_no_times(text):
    assert parse_time(text) is None


def test_a_damaged_offset_is_noticed():
    blob, times = np.frombuffer(b'"2024-01-01"x', dtype=np.uint8), np.empty(1, dtype=np.int64)
    assert parse_quoted_times(blob, np.array([0, 12], dtype="<u8"), times)
    assert times[0] == parse_time("2024-01-01") != NO_TIME
    for offsets in ([0, 14], [13, 2], [1 << 63, 12]):
        assert not parse_quoted_times(blob, np.array(offsets, dtype="<u8"), times)
