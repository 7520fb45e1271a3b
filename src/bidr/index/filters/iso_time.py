"""Parse ISO 8601 dates and times to microseconds since 1970 (UTC); one grammar for columns and single strings.

YYYY-MM-DD, optionally followed by T or a space, HH:MM[:SS[.fraction]], and Z, +HH:MM, +HHMM or +HH. Without an offset
the time is UTC. Digits beyond microseconds are ignored. Compiled, because a column may hold millions of distinct times.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.utils.jit import njit_cached

NO_TIME = -(1 << 63)
"""Result for a string that is not a time."""
MAX_TIME = (1 << 62) - 1
DAY, HOUR, MINUTE, SECOND = 86_400_000_000, 3_600_000_000, 60_000_000, 1_000_000
MAX_CHARS = 64
NO_DAYS = -(1 << 31)
_ZERO, _NINE, _COLON, _HYPHEN = (ord(character) for character in "09:-")


@njit_cached()
def _parse_digits(text: Any, start: int, count: int) -> int:
    """Return the number of `count` digits; -1 if one is missing."""
    number = 0
    if start + count > len(text):
        return -1
    for at in range(start, start + count):
        if text[at] < _ZERO or text[at] > _NINE:
            return -1
        number = 10 * number + (text[at] - _ZERO)
    return number


@njit_cached()
def _count_days(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01 in the Gregorian calendar; NO_DAYS for a date that does not exist."""
    if year < 1 or month < 1 or month > 12 or day < 1:
        return NO_DAYS
    is_leap = (year % 4 == 0 and year % 100 != 0) or year % 400 == 0
    last = 31
    if month in (4, 6, 9, 11):
        last = 30
    elif month == 2:
        last = 29 if is_leap else 28
    if day > last:
        return NO_DAYS
    shifted = year - 1 if month <= 2 else year  # years begin in March, so that the leap day is the last one
    era = shifted // 400
    year_of_era = shifted - 400 * era
    day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return 146_097 * era + 365 * year_of_era + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468


@njit_cached()
def _parse_clock(text: Any) -> tuple[int, int]:
    """Parse HH:MM[:SS[.fraction]] from character 11 on: microseconds (NO_TIME: none), and where it ends."""
    size = len(text)
    hour, minute, second, fraction, at = _parse_digits(text, 11, 2), -1, 0, 0, 16
    if size >= 16 and text[13] == _COLON:
        minute = _parse_digits(text, 14, 2)
    if size > 16 and text[16] == _COLON:
        second, at = _parse_digits(text, 17, 2), 19
        if size > 19 and text[19] in (46, 44):  # ".", ","
            at, weight = 20, SECOND // 10
            while at < size and _ZERO <= text[at] <= _NINE:
                fraction += weight * (text[at] - _ZERO)
                weight //= 10
                at += 1
            if at == 20:
                return NO_TIME, at
    if not (0 <= hour <= 23 and 0 <= minute <= 59 and 0 <= second <= 59):
        return NO_TIME, at
    return hour * HOUR + minute * MINUTE + second * SECOND + fraction, at


@njit_cached()
def _parse_offset(text: Any, at: int) -> int:
    """Parse the offset from UTC at a character: microseconds, NO_TIME if there is something else."""
    rest = len(text) - at
    if rest == 0 or (rest == 1 and text[at] in (90, 122)):  # "Z", "z"
        return 0
    if text[at] not in (43, 45):  # "+", "-"
        return NO_TIME
    hours, minutes = _parse_digits(text, at + 1, 2), 0
    if rest == 6 and text[at + 3] == _COLON:
        minutes = _parse_digits(text, at + 4, 2)
    elif rest == 5:
        minutes = _parse_digits(text, at + 3, 2)
    elif rest != 3:
        return NO_TIME
    if not (0 <= hours <= 23 and 0 <= minutes <= 59):
        return NO_TIME
    offset = hours * HOUR + minutes * MINUTE
    return offset if text[at] == 43 else -offset


@njit_cached()
def _parse_bytes(text: Any) -> int:
    """Parse the bytes of one string; NO_TIME if it is not a time."""
    size = len(text)
    if size < 10 or size > MAX_CHARS or text[4] != _HYPHEN or text[7] != _HYPHEN:
        return NO_TIME
    days = _count_days(_parse_digits(text, 0, 4), _parse_digits(text, 5, 2), _parse_digits(text, 8, 2))
    if days == NO_DAYS or (size > 10 and text[10] not in (84, 116, 32)):  # "T", "t", " "
        return NO_TIME
    if size == 10:
        return days * DAY
    clock, at = _parse_clock(text)
    offset = _parse_offset(text, at) if clock != NO_TIME else NO_TIME
    return NO_TIME if offset == NO_TIME else days * DAY + clock - offset


@njit_cached()
def parse_quoted_times(blob: Any, offsets: Any, times: Any) -> bool:
    """Parse strings in JSON quotes, concatenated in `blob`; False if an offset is not within it."""
    for number in range(len(times)):
        start, end = np.int64(offsets[number]), np.int64(offsets[number + 1])
        if start < 0 or end > len(blob) or end < start:
            return False
        times[number] = _parse_bytes(blob[start + 1 : end - 1]) if end - start > 2 else NO_TIME
    return True


def parse_time(text: str) -> int | None:
    """Parse one string to microseconds since 1970 (UTC); None if it is not an ISO 8601 date or time."""
    # Most strings are none, and calling the kernel takes a microsecond.
    if not 10 <= len(text) <= MAX_CHARS or text[4] != "-" or not text.isascii():
        return None
    time = int(_parse_bytes(np.frombuffer(text.encode(), dtype=np.uint8)))
    return None if time == NO_TIME else time


def warm_up() -> None:
    """Compile the kernels for the arrays of columns, which are read-only."""
    parse_time("2024-01-01")
    blob: npt.NDArray[Any] = np.frombuffer(b'"2024-01-01"', dtype=np.uint8)
    offsets = np.frombuffer(np.array([0, 12], dtype="<u8").tobytes(), dtype="<u8")
    parse_quoted_times(blob, offsets, np.empty(1, dtype=np.int64))
