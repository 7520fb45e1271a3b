"""Folders of text, Markdown and HTML files, in chunks that keep the titles of their sections."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from bidr.data.compressed_file import open_compressed
from bidr.data.line_reader import MAX_LINE_BYTES, file_errors, strip_compression_suffix
from bidr.data.tabular_source import RecordSource
from bidr.data.text_chunks import Chunking, split_text
from bidr.errors import DataError

TITLE_SEPARATOR = " > "
COLUMNS = ("id", "title", "text", "path", "position")


class Section(NamedTuple):
    """A part of a document below one heading, with the headings above it."""

    titles: tuple[str, ...]
    text: str


class TextFolderSource(RecordSource):
    """Text files as chunks: id "path#position", the headings above it as title, path and position as attributes."""

    unit = "chunk"

    def __init__(self, name: str, where: str, files: Sequence[Path], root: Path, chunking: Chunking) -> None:
        super().__init__(name, where)
        self.files, self.root, self.chunking = tuple(files), root, chunking.check()

    @property
    def columns(self) -> list[str]:
        return list(COLUMNS)

    def read(self, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        number = 0
        for file in self.files:
            path = _get_relative_path(file, self.root)
            self.starts[str(file)] = number
            for position, (title, text) in enumerate(_iter_chunks(file, self.chunking), start=1):
                number += 1
                yield (
                    number,
                    {"id": f"{path}#{position}", "title": title, "text": text, "path": path, "position": position},
                )


def _get_relative_path(file: Path, root: Path) -> str:
    try:
        return file.relative_to(root).as_posix()
    except ValueError:
        return PurePosixPath(file).name


def _iter_chunks(file: Path, chunking: Chunking) -> Iterator[tuple[str, str]]:
    text = read_text(file)
    parse = SECTION_PARSERS[PurePosixPath(strip_compression_suffix(file)).suffix.lower()]
    for section in parse(text):
        title = TITLE_SEPARATOR.join(section.titles)
        for chunk in split_text(section.text, chunking):
            yield title, chunk


def read_text(file: Path) -> str:
    """Read a UTF-8 file of bounded size, with "\\n" as line ends."""
    with file_errors(file, lambda: 1), open_compressed(file) as content:
        data = content.read(MAX_LINE_BYTES + 1)
        if len(data) > MAX_LINE_BYTES:
            raise DataError(f"{file}: longer than {MAX_LINE_BYTES:,} bytes, expected shorter files; divide it")
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")


def parse_plain(text: str) -> Iterator[Section]:
    """Yield a plain text as one section."""
    yield Section((), text)


def parse_markdown(text: str) -> Iterator[Section]:
    """Yield the sections of a Markdown text; a title in its front matter comes before the headings."""
    body, title = _split_front_matter(text)
    lines = body.split("\n")
    titles: list[tuple[int, str]] = [(0, title)] if title else []
    start = 0
    for level, heading, first, end in _iter_headings(body):
        yield from _make_section(titles, "\n".join(lines[start:first]))
        titles = [entry for entry in titles if entry[0] < level] + [(level, heading)]
        start = end
    yield from _make_section(titles, "\n".join(lines[start:]))


def _make_section(titles: list[tuple[int, str]], text: str) -> Iterator[Section]:
    if text and not text.isspace():
        names = [name for _, name in titles if name]
        yield Section(
            tuple(name for number, name in enumerate(names) if number == 0 or name != names[number - 1]), text
        )


def _iter_headings(text: str) -> Iterator[tuple[int, str, int, int]]:
    """Yield level, text, first line and end of each heading outside lists and quotes."""
    tokens = _make_markdown_parser().parse(text)
    for token, content in pairwise(tokens):
        if token.type == "heading_open" and token.level == 0 and token.map:
            yield int(token.tag[1:]), _strip_markup(content.content), *token.map


@cache
def _make_markdown_parser() -> Any:
    """Make a parser of blocks alone: inline markup stays as it is, and parsing takes a tenth of the time."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark")
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser


def _strip_markup(heading: str) -> str:
    """Return a heading without links, emphasis and code marks."""
    without_links = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[*`]+|\s*\{#[^}]*\}$", "", without_links).strip()


def _split_front_matter(text: str) -> tuple[str, str]:
    """Return a text without YAML front matter, and the title in it."""
    match = re.match(r"---[ \t]*\n(.*?\n)?(?:---|\.\.\.)[ \t]*(?:\n|$)", text, re.DOTALL)
    if match is None:
        return text, ""
    title = re.search(r"^title:[ \t]*(.+?)[ \t]*$", match[1] or "", re.MULTILINE)
    return text[match.end() :], title[1].strip("\"'") if title else ""


_SKIPPED_ELEMENTS = frozenset({"script", "style", "template", "noscript", "svg", "nav", "head"})
_BLOCK_ELEMENTS = frozenset(
    [
        "address",
        "article",
        "aside",
        "blockquote",
        "dd",
        "details",
        "div",
        "dl",
        "dt",
        "figcaption",
        "figure",
        "footer",
        "form",
        "header",
        "hr",
        "li",
        "main",
        "ol",
        "p",
        "pre",
        "section",
        "table",
        "tbody",
        "tfoot",
        "thead",
        "tr",
        "ul",
    ]
)
_BREAK = "\0"
"""Stands for the border of a block, beside the line ends of preformatted text."""
_HEADINGS = {f"h{level}": level for level in range(1, 7)}


class _HtmlSections(HTMLParser):
    """Collects the visible text of a page by headings."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.sections: list[Section] = []
        self.titles: list[tuple[int, str]] = []
        self.page_title = ""
        self._parts: list[str] = []
        self._heading: tuple[int, list[str]] | None = None
        self._skipped: list[str] = []
        self._in_title = False
        self._preformatted = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "title" and not self.page_title:
            self._in_title = True
        elif tag in _SKIPPED_ELEMENTS:
            self._skipped.append(tag)
        elif tag in _HEADINGS and not self._skipped:
            self.finish_section()
            self._heading = (_HEADINGS[tag], [])
        elif tag == "br":
            self._parts.append("\n")
        elif tag in _BLOCK_ELEMENTS:
            self._parts.append(_BREAK)
        elif tag in ("td", "th"):
            self._parts.append(" ")
        elif tag == "body":
            self._skipped.clear()
        self._preformatted += tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        self._in_title = self._in_title and tag != "title"
        if tag in self._skipped:
            del self._skipped[self._skipped.index(tag) :]
        elif tag in _HEADINGS and self._heading is not None:
            level, parts = self._heading
            self.titles = [entry for entry in self.titles if entry[0] < level]
            self.titles.append((level, " ".join("".join(parts).split())))
            self._heading = None
        elif tag in _BLOCK_ELEMENTS:
            self._parts.append(_BREAK)
        self._preformatted = max(self._preformatted - (tag == "pre"), 0)

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.page_title += data
        elif self._skipped:
            return
        elif self._heading is not None:
            self._heading[1].append(data)
        else:
            data = data.replace(_BREAK, "")
            self._parts.append(data if self._preformatted else re.sub(r"\s+", " ", data))

    def finish_section(self) -> None:
        """End the section at a heading or at the end of the page."""
        text = re.sub(rf"[\s{_BREAK}]*{_BREAK}[\s{_BREAK}]*", "\n\n", "".join(self._parts)).strip()
        self._parts = []
        page = [(0, " ".join(self.page_title.split()))] if self.page_title.strip() else []
        self.sections += _make_section([*page, *self.titles], text)


def parse_html(text: str) -> Iterator[Section]:
    """Yield the sections of the visible text of a page, below its title and headings."""
    parser = _HtmlSections()
    parser.feed(text)
    parser.close()
    parser.finish_section()
    yield from parser.sections


SECTION_PARSERS = {
    ".txt": parse_plain,
    ".text": parse_plain,
    ".md": parse_markdown,
    ".markdown": parse_markdown,
    ".html": parse_html,
    ".htm": parse_html,
}
"""The parser of each suffix."""
