"""JSON files of records: one object a line, or one array of objects."""

import codecs
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from bidr.data.compressed_file import CHUNK_BYTES, open_compressed
from bidr.data.line_reader import MAX_LINE_BYTES, file_errors
from bidr.data.readers.frame import SAMPLED_RECORDS
from bidr.data.record_sources import read_json_objects
from bidr.data.tabular_source import RecordSource
from bidr.data.validation import format_value
from bidr.errors import DataError

SUFFIXES = (".jsonl", ".ndjson", ".json")
_SPACE = " \t\r\n"


class JsonSource(RecordSource):
    """Files of JSON objects."""

    unit, varying = "record", True

    def __init__(self, name: str, where: str, files: Sequence[Path]) -> None:
        super().__init__(name, where)
        self.files = tuple(files)

    @cached_property
    def columns(self) -> list[str]:
        return list({name: None for _, row in islice(self.read(()), SAMPLED_RECORDS) for name in row})

    def read(self, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        number = 0
        for path in self.files:
            self.starts[str(path)] = number
            for row in _read_array(path) if _is_array(path) else (row for _, row in read_json_objects(path)):
                number += 1
                yield number, row


def _is_array(path: Path) -> bool:
    """Return whether a file begins with a bracket."""
    with file_errors(path, lambda: 1), open_compressed(path) as file:
        start = file.read(CHUNK_BYTES).removeprefix(codecs.BOM_UTF8).lstrip()
    return start[:1] == b"["


def _read_array(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of an array, holding one at a time."""
    number, decoder, text = 0, json.JSONDecoder(), _TextBuffer(path)
    with file_errors(path, lambda: number), open_compressed(path) as file:
        text.open(file)
        text.take("[")
        while not text.starts_with("]"):
            if number:
                text.take(",")
            value = text.decode(decoder)
            number += 1
            if not isinstance(value, dict):
                raise DataError(f"{path} record {number} is {format_value(value)}, expected an object")
            yield value


class _TextBuffer:
    """The next part of a file of JSON."""

    def __init__(self, path: Path) -> None:
        self.path, self.text, self.position, self.is_complete = path, "", 0, False

    def open(self, file: Any) -> None:
        """Start with an open file."""
        self._file, self._decoder = file, codecs.getincrementaldecoder("utf-8-sig")()

    def starts_with(self, mark: str) -> bool:
        """Return whether the next character other than space is `mark`."""
        while True:
            while self.position < len(self.text) and self.text[self.position] in _SPACE:
                self.position += 1
            if self.position < len(self.text):
                return self.text[self.position] == mark
            if not self._read_more():
                raise DataError(f"{self.path}: the array has no end; copy or download the file again")

    def take(self, mark: str) -> None:
        """Skip a mark that must come next."""
        if not self.starts_with(mark):
            raise DataError(
                f"{self.path}: {self.text[self.position]!r} where {mark!r} was expected; write one array of objects, "
                "or one object a line"
            )
        self.position += 1

    def decode(self, decoder: json.JSONDecoder) -> Any:
        """Decode the next value, reading as much of the file as it takes."""
        self.starts_with("")
        while True:
            try:
                value, end = decoder.raw_decode(self.text, self.position)
            except (ValueError, RecursionError) as error:
                if len(self.text) - self.position <= MAX_LINE_BYTES and self._read_more():
                    continue
                raise DataError(f"{self.path}: not valid JSON ({error}); expected an array of objects") from error
            self.position = end
            return value

    def _read_more(self) -> bool:
        content = self._file.read(max(CHUNK_BYTES, len(self.text) - self.position))
        self.text = self.text[self.position :] + self._decoder.decode(content, final=not content)
        self.position = 0
        return bool(content)
