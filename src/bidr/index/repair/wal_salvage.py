"""Read the undamaged records of a damaged write-ahead log.

Each record has a checksum over its content, chained to the checksum of the record before. After a damaged record the
chain continues from its stored checksum or from the computed one. If both are wrong, two consecutive records are
searched that fit each other: the first proves the second.
"""

import json
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bidr.errors import IndexFolderError
from bidr.index.live.wal import (
    ACKNOWLEDGED,
    LOG,
    MARK,
    RECORD,
    DurabilityMark,
    format_header,
    get_log_start,
    parse_mark,
)
from bidr.index.live.wal_record import WalRecord, decode_record
from bidr.index.repair.damaged_file import read_small
from bidr.utils.files import is_sparse

MAX_LOG_BYTES = 1 << 36
LENGTH = struct.Struct("<I")
RECORD_PREFIX, CHANGES_PREFIX = b'{"documents": ', b'{"attributes": '
RECORD_PREFIXES = re.compile(re.escape(RECORD_PREFIX) + b"|" + re.escape(CHANGES_PREFIX))


class SalvagedLog(NamedTuple):
    """Undamaged records of a log, in order.

    partial_records: what could be read of damaged records.
    gaps:            places at which acknowledged bytes are damaged.
    missing:         acknowledged bytes that are lost there.
    damaged:         extent of damage by file name.
    """

    records: list[WalRecord]
    partial_records: list["PartialRecord"]
    gaps: int
    missing: int
    damaged: dict[str, str]


class PartialRecord(NamedTuple):
    """The JSON header of a damaged record.

    preceding: number of undamaged records before it.
    ids:       ids of the documents that it added.
    """

    preceding: int
    ids: list[str]
    deleted_rows: dict[str, list[int]]
    removed_ids: list[str]


def _read_partial(content: bytes, preceding: int) -> list[PartialRecord]:
    """Read the JSON headers of damaged records, as far as they are undamaged."""
    records, offset = list[PartialRecord](), content.find(RECORD_PREFIX)
    while offset >= 0:
        size = LENGTH.unpack_from(content, offset - LENGTH.size)[0] if offset >= LENGTH.size else 0
        try:
            header = json.loads(content[offset : offset + size])
            ids = [str(fields[0]) for fields in header["documents"]]
            deleted_rows = {str(name): [int(row) for row in rows] for name, rows in header["deleted"].items()}
            records.append(PartialRecord(preceding, ids, deleted_rows, [str(name) for name in header["forgotten"]]))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            size = 1
        offset = content.find(RECORD_PREFIX, offset + size)
    return records


class _NextRecord(NamedTuple):
    """Offset of the next undamaged record, and the checksum that it is chained to.

    body: content of the record before it, if only its checksum or length is damaged.
    """

    offset: int
    chain: int
    body: bytes | None


def salvage_log(state: Path) -> SalvagedLog:
    """Read the undamaged records of the log of a state."""
    content, mark = read_small(state / LOG, MAX_LOG_BYTES), _read_mark(state)
    damaged = _describe_damage(state, content, mark)
    if mark is not None and mark.sealed:
        content = content[: mark.end]  # later records were refused
    offset, chain = get_log_start(state.name)
    bodies, partial_records, gaps, missing = list[bytes](), list[PartialRecord](), 0, 0
    while offset < len(content):
        record = _read_record(content, offset, chain)
        if record is not None:
            body, chain = record
            bodies.append(body)
            offset += RECORD.size + len(body)
            continue
        next_record = _find_next(content, offset, chain)
        if next_record is None:
            break
        if next_record.body is None:
            gaps, missing = gaps + 1, missing + next_record.offset - offset
            partial_records += _read_partial(content[offset : next_record.offset], len(bodies))
        else:
            bodies.append(next_record.body)
        offset, chain = next_record.offset, next_record.chain
    # Unacknowledged bytes after the last record are an interrupted write.
    end = len(content) if mark is None else mark.end
    if end > offset:
        gaps, missing = gaps + 1, missing + end - offset
        partial_records += _read_partial(content[offset:], len(bodies))
    records = []
    for body in bodies:
        try:
            records.append(decode_record(body, state / LOG))
        except IndexFolderError:
            gaps, missing = gaps + 1, missing + RECORD.size + len(body)
    if gaps:
        damaged.setdefault(LOG, f"{missing:,} bytes in {gaps} place{'s' if gaps > 1 else ''}")
    return SalvagedLog(records, partial_records, gaps, missing, damaged)


def _describe_damage(state: Path, content: bytes, mark: DurabilityMark | None) -> dict[str, str]:
    """Describe why the log cannot be opened, apart from damaged records."""
    header, damaged = format_header(state.name), dict[str, str]()
    try:
        status = os.stat(state / LOG)
        if is_sparse(status):
            allocated = 512 * status.st_blocks
            damaged[LOG] = f"sparse file: {status.st_size:,} bytes long, only {allocated:,} are allocated and were read"
        elif content[: len(header)] != header:
            damaged[LOG] = "its header"
    except OSError:
        damaged[LOG] = "missing"
    if mark is None:
        damaged[ACKNOWLEDGED] = "all of it" if (state / ACKNOWLEDGED).exists() else "missing"
    return damaged


def _read_mark(state: Path) -> DurabilityMark | None:
    """Read the durability mark; None if it is damaged."""
    return parse_mark(read_small(state / ACKNOWLEDGED, MARK.size + 1))


def _read_record(content: bytes, offset: int, chain: int) -> tuple[bytes, int] | None:
    """Read the record at an offset, with its checksum; None if it is not chained to `chain`."""
    if offset + RECORD.size > len(content):
        return None
    length, digest = RECORD.unpack_from(content, offset)
    body = content[offset + RECORD.size : offset + RECORD.size + length]
    if not length or len(body) < length or _hash(content[offset : offset + LENGTH.size] + body, chain) != digest:
        return None
    return body, digest


def _find_next(content: bytes, offset: int, chain: int) -> _NextRecord | None:
    """Find the record after a damaged one."""
    if offset + RECORD.size <= len(content):
        length, digest = RECORD.unpack_from(content, offset)
        end = offset + RECORD.size + length
        body = content[offset + RECORD.size : end]
        if length and len(body) == length:
            computed = _hash(content[offset : offset + LENGTH.size] + body, chain)
            if _read_record(content, end, digest):
                return _NextRecord(end, digest, None)
            if _read_record(content, end, computed):  # only its checksum is damaged
                return _NextRecord(end, computed, body)
        for start in [*_find_starts(content, offset), len(content)]:  # its length is damaged
            body = content[offset + RECORD.size : start]
            if _hash(LENGTH.pack(len(body)) + body, chain) == digest:
                return _NextRecord(start, digest, body)
            if start < len(content) and _read_record(content, start, digest):
                return _NextRecord(start, digest, None)
    for start in _find_starts(content, offset):
        length, digest = RECORD.unpack_from(content, start)
        end = start + RECORD.size + length
        if _read_record(content, end, digest):
            return _NextRecord(end, digest, None)
    return None


def _find_starts(content: bytes, offset: int) -> Iterator[int]:
    """Yield possible offsets of later records, by the first bytes of their JSON header."""
    distance = RECORD.size + LENGTH.size
    for match in re.finditer(RECORD_PREFIXES, content[offset + distance + 1 :]):
        yield match.start() + offset + 1


def _hash(content: bytes, seed: int) -> int:
    from xxhash import xxh3_64_intdigest

    return xxh3_64_intdigest(content, seed=seed)
