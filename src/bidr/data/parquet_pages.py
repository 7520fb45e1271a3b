"""Page sizes of Parquet files, read from the page headers.

Arrow decompresses a page whole, whatever size its header states, and repeats a dictionary's value for every row that
refers to it: without these sizes a file of some KB could take all memory.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO

# https://parquet.apache.org/docs/file-format/data-pages/: headers are structs in Thrift's compact protocol.
UNCOMPRESSED_SIZE, COMPRESSED_SIZE = 2, 3
HEADER_BYTES, MAX_HEADER_BYTES = 1 << 13, 1 << 24
MAX_DEPTH = 8
BOOLEANS, BYTE, INTEGERS, DOUBLE, BINARY, LISTS, STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12


def find_largest_page(path: Path, metadata: Any, columns: Collection[str]) -> int:
    """Return the largest uncompressed size of a page in the named columns, in bytes.

    Args:
        metadata: `metadata` of the ParquetFile.

    Raises:
        ValueError: for a header that cannot be read, or sizes that no page can have.
    """
    largest = 0
    with path.open("rb") as file:
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            for number in range(row_group.num_columns):
                chunk = row_group.column(number)
                if chunk.path_in_schema.partition(".")[0] in columns:
                    largest = max(largest, _find_largest_in_chunk(file, chunk))
    return largest


def _find_largest_in_chunk(file: BinaryIO, chunk: Any) -> int:
    offset, largest = chunk.data_page_offset, 0
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        offset = min(offset, chunk.dictionary_page_offset)
    end = offset + chunk.total_compressed_size
    while offset < end:
        header_bytes, sizes = _read_header(file, offset)
        uncompressed, compressed = sizes.get(UNCOMPRESSED_SIZE, -1), sizes.get(COMPRESSED_SIZE, -1)
        if uncompressed < 0 or compressed < 0:
            raise ValueError(f"a page at byte {offset} has no valid size")
        largest = max(largest, uncompressed)
        offset += header_bytes + compressed
    return largest


def _read_header(file: BinaryIO, offset: int) -> tuple[int, dict[int, int]]:
    """Return the length of a page header and its integer fields by number."""
    window = HEADER_BYTES
    while True:
        file.seek(offset)
        parser = _CompactParser(file.read(window))
        try:
            fields = parser.read_struct()
        except IndexError as error:
            if len(parser.content) < window or window >= MAX_HEADER_BYTES:
                raise ValueError(f"a page header at byte {offset} is cut off") from error
            window = MAX_HEADER_BYTES
            continue
        return parser.position, fields


class _CompactParser:
    """Reads the integers of a struct in Thrift's compact protocol and skips all else; IndexError at the end."""

    def __init__(self, content: bytes) -> None:
        self.content, self.position = content, 0

    def read_struct(self, depth: int = 0) -> dict[int, int]:
        """Read a struct: its integer fields by number."""
        if depth > MAX_DEPTH:
            raise ValueError("a page header is nested too deeply")
        fields: dict[int, int] = {}
        number = 0
        while head := self._read_byte():
            number = number + (head >> 4) if head >> 4 else self._read_integer()
            kind = head & 15
            if kind in INTEGERS:
                fields[number] = self._read_integer()
            elif kind not in BOOLEANS:  # a boolean field is all in its type
                self._skip(kind, depth)
        return fields

    def _skip(self, kind: int, depth: int) -> None:
        if kind in BOOLEANS or kind == BYTE:
            self._advance(1)
        elif kind in INTEGERS:
            self._read_varint()
        elif kind == DOUBLE:
            self._advance(8)
        elif kind == BINARY:
            self._advance(self._read_varint())
        elif kind in LISTS:
            head = self._read_byte()
            for _ in range(head >> 4 if head >> 4 < 15 else self._read_varint()):
                self._skip(head & 15, depth + 1)
        elif kind == STRUCT:
            self.read_struct(depth + 1)
        else:
            raise ValueError(f"a page header has a value of type {kind}, which no page header has")

    def _advance(self, count: int) -> None:
        self.position += count
        if self.position > len(self.content):
            raise IndexError

    def _read_byte(self) -> int:
        self._advance(1)
        return self.content[self.position - 1]

    def _read_varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._read_byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError("a page header has a number of more than 64 bits")

    def _read_integer(self) -> int:
        """Read a zigzag-encoded integer."""
        value = self._read_varint()
        return (value >> 1) ^ -(value & 1)
