"""The whole records of a damaged write-ahead log.

Each record has a checksum over its content and the checksum before it. Of a damaged record either its own checksum as
written, or the one computed, is what the next one goes on from; where neither is, the next two records that fit each
other are looked for, the second of which is then proved by the first.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bidr.errors import IndexFolderError
from bidr.index.live.wal import ACKNOWLEDGED, LOG, MARK, RECORD, DurabilityMark, get_log_start, parse_mark
from bidr.index.live.wal_record import WalRecord, decode_record
from bidr.index.repair.damaged_file import read_small

LARGEST_LOG = 1 << 36
LENGTH = struct.Struct("<I")
SAID_FIRST = b'{"documents": '


class SalvagedLog(NamedTuple):
    """The commits that are whole, in their order.

    doubtful: of damaged commits what can still be read: they add nothing, and what they delete or replace is gone.
    gaps:     how many places there are at which something is missing, up to what was acknowledged.
    missing:  how many acknowledged bytes are lost with them.
    """

    changes: list[WalRecord]
    doubtful: list["DoubtfulChange"]
    gaps: int
    missing: int


class DoubtfulChange(NamedTuple):
    """What a damaged record says.

    after: how many whole commits there are before it.
    ids:   of the documents that it added.
    """

    after: int
    ids: list[str]
    deleted_rows: dict[str, list[int]]
    removed_ids: list[str]


def _read_doubtful(content: bytes, after: int) -> list[DoubtfulChange]:
    """What of damaged records can still be read: all of a record that JSON says, or nothing of it."""
    changes, at = list[DoubtfulChange](), content.find(SAID_FIRST)
    while at >= 0:
        size = LENGTH.unpack_from(content, at - LENGTH.size)[0] if at >= LENGTH.size else 0
        try:
            about = json.loads(content[at : at + size])
            ids = [str(fields[0]) for fields in about["documents"]]
            deleted = {str(name): [int(row) for row in rows] for name, rows in about["deleted"].items()}
            changes.append(DoubtfulChange(after, ids, deleted, [str(each) for each in about["forgotten"]]))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            size = 1
        at = content.find(SAID_FIRST, at + size)
    return changes


class _Found(NamedTuple):
    """Where the next record that proves itself begins, and the checksum it goes on from.

    body: of the record in between, where that is proved to be whole nevertheless.
    """

    place: int
    chain: int
    body: bytes | None


def salvage_log(state: Path) -> SalvagedLog:
    """Read the log of a state as far as its records prove themselves."""
    content, acknowledged = read_small(state / LOG, LARGEST_LOG), _read_mark(state)
    if acknowledged is not None and acknowledged.sealed:
        content = content[: acknowledged.end]  # what follows was refused
    first, chain = get_log_start(state.name)
    bodies, doubtful, gaps, missing, place = list[bytes](), list[DoubtfulChange](), 0, 0, first
    while place < len(content):
        record = _read_record(content, place, chain)
        if record is not None:
            body, chain = record
            bodies.append(body)
            place += RECORD.size + len(body)
            continue
        following = _find_next(content, place, chain)
        if following is None:
            break
        if following.body is None:
            gaps, missing = gaps + 1, missing + following.place - place
            doubtful += _read_doubtful(content[place : following.place], len(bodies))
        else:
            bodies.append(following.body)
        place, chain = following.place, following.chain
    # What was never acknowledged is what a writer was cut off in.
    end = len(content) if acknowledged is None else acknowledged.end
    if end > place:
        gaps, missing = gaps + 1, missing + end - place
        doubtful += _read_doubtful(content[place:], len(bodies))
    changes = []
    for body in bodies:
        try:
            changes.append(decode_record(body, state / LOG))
        except IndexFolderError:
            gaps, missing = gaps + 1, missing + RECORD.size + len(body)
    return SalvagedLog(changes, doubtful, gaps, missing)


def _read_mark(state: Path) -> DurabilityMark | None:
    """How many bytes of the log were acknowledged, and whether it is sealed; None: nobody knows."""
    return parse_mark(read_small(state / ACKNOWLEDGED, MARK.size + 1))


def _read_record(content: bytes, place: int, chain: int) -> tuple[bytes, int] | None:
    """The record at a place, if it goes on from a checksum; with its own."""
    if place + RECORD.size > len(content):
        return None
    length, digest = RECORD.unpack_from(content, place)
    body = content[place + RECORD.size : place + RECORD.size + length]
    if not length or len(body) < length or _digest(content[place : place + LENGTH.size] + body, chain) != digest:
        return None
    return body, digest


def _find_next(content: bytes, place: int, chain: int) -> _Found | None:
    """Look for the record after a damaged one."""
    if place + RECORD.size <= len(content):
        length, digest = RECORD.unpack_from(content, place)
        end = place + RECORD.size + length
        body = content[place + RECORD.size : end]
        if length and len(body) == length:
            computed = _digest(content[place : place + LENGTH.size] + body, chain)
            if _read_record(content, end, digest):
                return _Found(end, digest, None)
            if _read_record(content, end, computed):  # its checksum alone is damaged
                return _Found(end, computed, body)
        for at in [*_beginnings(content, place), len(content)]:  # its length is damaged
            body = content[place + RECORD.size : at]
            if _digest(LENGTH.pack(len(body)) + body, chain) == digest:
                return _Found(at, digest, body)
            if at < len(content) and _read_record(content, at, digest):
                return _Found(at, digest, None)
    for at in _beginnings(content, place):
        length, digest = RECORD.unpack_from(content, at)
        after = at + RECORD.size + length
        if _read_record(content, after, digest):
            return _Found(after, digest, None)
    return None


def _beginnings(content: bytes, place: int) -> Iterator[int]:
    """Where later records may begin: before what all of them say first."""
    before = RECORD.size + LENGTH.size
    at = content.find(SAID_FIRST, place + before + 1)
    while at >= 0:
        yield at - before
        at = content.find(SAID_FIRST, at + 1)


def _digest(content: bytes, seed: int) -> int:
    from xxhash import xxh3_64_intdigest

    return xxh3_64_intdigest(content, seed=seed)
