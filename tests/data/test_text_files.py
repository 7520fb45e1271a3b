"""Folders of text, Markdown and HTML files become chunks with the titles of their sections."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidr.data.dataset import load
from bidr.data.readers.text_files import Section, parse_html, parse_markdown
from bidr.data.text_chunks import Chunking, split_text
from bidr.errors import ConfigError, DataError

MARKDOWN = """---
title: "Guide"
tags: [a]
---
# Guide
Introduction.

## Install *it* [now](https://example.org)
```
# no heading
```
Steps.

> # quoted

Setext
======
More.
"""


def test_markdown_keeps_the_titles_above_each_section() -> None:
    sections = list(parse_markdown(MARKDOWN))
    assert [section.titles for section in sections] == [("Guide",), ("Guide", "Install it now"), ("Guide", "Setext")]
    assert sections[0].text.strip() == "Introduction."
    assert "# no heading" in sections[1].text
    assert "> # quoted" in sections[1].text
    assert sections[2].text.strip() == "More."


def test_text_before_a_heading_and_levels_that_are_skipped_are_kept() -> None:
    sections = list(parse_markdown("before\n\n### Deep\nx\n# Top\ny\n## Next\nz"))
    assert [(section.titles, section.text.strip()) for section in sections] == [
        ((), "before"),
        (("Deep",), "x"),
        (("Top",), "y"),
        (("Top", "Next"), "z"),
    ]


def test_html_gives_visible_text_by_headings() -> None:
    page = (
        "<!doctype html><html><head><title>Page &amp; more</title><style>p {x}</style></head><body><nav>menu</nav>"
        "<h1>Page &amp; more</h1><p>One <b>two</b>\n three&nbsp;four<br>five</p><script>if (a<b) {}</script>"
        "<ul><li>first<li>second</ul><pre>def f():\n    return 1</pre>"
        "<h2>Table</h2><table><tr><td>a<td>b<tr><td>c<td>d</table></body></html>"
    )
    first, second = parse_html(page)
    assert first == Section(("Page & more",), "One two three four\nfive\n\nfirst\n\nsecond\n\ndef f():\n    return 1")
    assert (second.titles, second.text) == (("Page & more", "Table"), "a b\n\nc d")


def test_a_folder_becomes_chunks_with_path_and_position(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config.txt").write_text("hidden", encoding="utf-8")
    (tmp_path / "a.md").write_text(MARKDOWN, encoding="utf-8")
    (tmp_path / "sub" / "b.txt").write_text("\ufeffwords " * 400, encoding="utf-8")
    (tmp_path / "empty.txt").write_text("\n", encoding="utf-8")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    documents = list(load(tmp_path).corpus)
    assert [document.id for document in documents] == [
        *("a.md#1", "a.md#2", "a.md#3", "sub/b.txt#1", "sub/b.txt#2", "sub/b.txt#3")
    ]
    assert documents[1].title == "Guide > Install it now"
    assert documents[4].attributes == {"path": "sub/b.txt", "position": 2}
    assert all(len(document.text) <= 1_000 for document in documents)
    whole = list(load(tmp_path, chunk_size=0).corpus)
    assert [document.id for document in whole][-1] == "sub/b.txt#1"


def test_one_file_and_a_pattern_are_read_too(tmp_path: Path) -> None:
    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text(f"# {name}\ntext", encoding="utf-8")
    assert [document.id for document in load(tmp_path / "a.md").corpus] == ["a.md#1"]
    for pattern in (f"{tmp_path}/*.md", tmp_path / "*.md"):
        assert [document.id for document in load(pattern).corpus] == ["a.md#1", "b.md#1"]


@given(st.text(alphabet="ab .\n!。", max_size=400), st.integers(2, 40), st.data())
def test_chunks_are_bounded_and_hold_every_word(text: str, size: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(0, size // 2))
    chunks = list(split_text(text, Chunking(size, overlap)))
    assert all(0 < len(chunk) <= size and chunk == chunk.strip() for chunk in chunks)
    start = 0
    for chunk in chunks:  # every chunk is a part of the text, none begins before the last, and only space is between
        place = text.find(chunk, max(start - overlap - size, 0))
        assert place >= 0
        start = place + len(chunk)
    letters = "".join(text.split())
    if not overlap:
        assert "".join("".join(chunk.split()) for chunk in chunks) == letters


def test_chunks_end_at_paragraphs_and_overlap_by_words() -> None:
    text = "one two three.\n\nfour five six. seven eight nine ten"
    assert list(split_text(text, Chunking(24, 0))) == ["one two three.", "four five six.", "seven eight nine ten"]
    assert list(split_text("aa bb cc dd ee ff", Chunking(8, 3))) == ["aa bb cc", "cc dd ee", "ee ff"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk_size": -1}, r"chunk_size: given -1, expected a whole number"),
        ({"chunk_size": "x"}, r"chunk_size: given 'x'"),
        ({"chunk_size": 100, "chunk_overlap": 60}, r"chunk_overlap: given 60 .*at most half"),
        ({"text_column": "text"}, r"text_column: given for .*fixed names"),
    ],
)
def test_wrong_options_of_chunks_are_refused(options: dict[str, object], message: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x", encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, **options)  # type: ignore[arg-type]


def test_files_that_are_not_utf8_or_hold_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\n")
    with pytest.raises(DataError, match=r"has no documents"):
        list(load(tmp_path).corpus)
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match=r"a\.txt line 1: byte 0xe9 is not UTF-8"):
        list(load(tmp_path).corpus)
