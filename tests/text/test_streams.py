"""Lines of plain and compressed files."""

import builtins
import sys
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from made_text import COMPRESS

from bidr.errors import DataError, MissingExtra
from bidr.text import streams

SUFFIXES = list(COMPRESS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("streams")


@given(
    content=st.lists(st.text(st.characters(exclude_characters="\r\n\ufeff", codec="utf-8"))),
    suffix=st.sampled_from(SUFFIXES),
)
def test_every_compression_gives_the_lines_that_were_written(folder: Path, content: list[str], suffix: str) -> None:
    path = folder / f"any{suffix}"
    path.write_bytes(COMPRESS[suffix]("\n".join(content).encode()))
    expected = [(n, line) for n, line in enumerate(content, start=1) if line and not line.isspace()]
    assert list(streams.lines(path)) == expected


def test_windows_line_ends_and_byte_order_mark_are_no_part_of_a_line(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert list(streams.lines(tmp_path / "a")) == [(1, "one"), (2, "two")]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_find_takes_the_exact_name_with_or_without_a_compression(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"corpus.jsonl{suffix}").touch()
    assert streams.find(tmp_path, "corpus.jsonl") == tmp_path / f"corpus.jsonl{suffix}"
    assert streams.find(tmp_path, "corpus") is None


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
@pytest.mark.parametrize("kept", [0.5, 0.99])
def test_truncated_file_is_an_error_that_names_it(tmp_path: Path, suffix: str, kept: float) -> None:
    path = tmp_path / f"a{suffix}"
    whole = COMPRESS[suffix]("\n".join(str(n * 7919) for n in range(50_000)).encode())
    path.write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(DataError, match=r"a\.\w+ is truncated or damaged after line \d+ .*again"):
        list(streams.lines(path))


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_file_that_is_not_what_its_name_says(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"plain text, not compressed at all")
    with pytest.raises(DataError, match="truncated or damaged after line 0"):
        list(streams.lines(path))


def test_zstd_frames_one_after_another_are_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a.zst"
    path.write_bytes(b"".join(zstandard.ZstdCompressor().compress(part) for part in (b"one\ntw", b"o\n")))
    assert [line for _, line in streams.lines(path)] == ["one", "two"]


def test_bytes_that_are_not_utf8_are_named_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"fine\nbad \xe9 byte\n")
    with pytest.raises(DataError, match="a line 2: byte 0xe9 is not UTF-8"):
        list(streams.lines(tmp_path / "a"))


def test_missing_file_and_folder_in_place_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing does not exist"):
        list(streams.lines(tmp_path / "nothing"))
    with pytest.raises(DataError, match="cannot be read"):
        list(streams.lines(tmp_path))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_first_line_comes_before_the_end_is_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    numbers = "\n".join(str(n * 7919) for n in range(120_000)).encode()
    content = COMPRESS[suffix](numbers)
    # What follows the first half is unreadable, so whoever reads the file whole before the first line fails.
    path.write_bytes(content[: len(content) // 2] + b"\xff" * 1000)
    stream = streams.lines(path)
    assert next(stream) == (1, "0")
    with pytest.raises(DataError):
        list(stream)


def test_without_zstandard_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.zst").write_bytes(COMPRESS[".zst"](b"x"))
    original = builtins.__import__

    def refuse(name: str, *rest: object) -> object:
        if name == "zstandard":
            raise ImportError(name)
        return original(name, *rest)

    monkeypatch.delitem(sys.modules, "zstandard")
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtra, match=r"a\.zst needs the package 'zstandard'.*bidr\[data\]"):
        list(streams.lines(tmp_path / "a.zst"))
