"""Division of long texts into chunks of bounded length that overlap, at the ends of paragraphs where possible."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from bidr.errors import ConfigError

DEFAULT_CHUNK_CHARS, DEFAULT_OVERLAP_CHARS = 1_000, 100
_SEPARATORS = (
    re.compile(r"\n[ \t]*\n\s*"),  # paragraphs
    re.compile(r"\n"),  # lines
    re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])"),  # sentences
    re.compile(r"\s+"),  # words
)


class Chunking(NamedTuple):
    """Length of chunks and of what each repeats of the one before, in characters. size 0: whole sections."""

    size: int = DEFAULT_CHUNK_CHARS
    overlap: int = DEFAULT_OVERLAP_CHARS

    def check(self) -> "Chunking":
        """Raise ConfigError for lengths that make no chunks."""
        for name, value in (("chunk_size", self.size), ("chunk_overlap", self.overlap)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ConfigError(f"{name}: given {value!r}, expected a whole number of characters, 0 or more")
        if self.size and self.overlap > self.size // 2:
            raise ConfigError(
                f"chunk_overlap: given {self.overlap} for chunks of {self.size} characters, expected at most half of "
                "chunk_size"
            )
        return self


def split_text(text: str, chunking: Chunking) -> Iterator[str]:
    """Yield the chunks of a text, without space at their ends; none of an empty text."""
    start, end = _strip_span(text, 0, len(text))
    while start < end:
        if not chunking.size or end - start <= chunking.size:
            yield text[start:end]
            return
        cut, next_start = _find_cut(text, start, start + chunking.size)
        yield text[start:cut].rstrip()
        overlapped = _find_overlap(text, start, cut, chunking.overlap) if chunking.overlap else next_start
        start, _ = _strip_span(text, min(overlapped, next_start), end)


def _strip_span(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


def _find_cut(text: str, start: int, limit: int) -> tuple[int, int]:
    """Return the end of a chunk and the start of what follows: the last boundary in its second half, or the limit."""
    for separator in _SEPARATORS:
        first = start + max((limit - start) // 2, 1)
        ends = [match for match in separator.finditer(text, first, limit + 1) if match.start() <= limit]
        if ends:
            return ends[-1].span()
    return limit, limit


def _find_overlap(text: str, start: int, cut: int, overlap: int) -> int:
    """Return where the next chunk starts: at a word, within `overlap` characters of the end of this one."""
    earliest = max(cut - overlap, start + 1)
    word = re.compile(r"(?<=\s)\S").search(text, earliest, cut)
    return word.start() if word else cut
