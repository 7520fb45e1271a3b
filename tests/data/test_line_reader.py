"""Lines of plain and compressed files."""

import builtins
import lzma
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from sample_datasets import COMPRESS

from bidr.data import line_reader
from bidr.errors import DataError, MissingExtraError

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
    assert list(line_reader.read_lines(path)) == expected


def test_carriage_returns_and_byte_order_marks_are_removed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert list(line_reader.read_lines(tmp_path / "a")) == [(1, "one"), (2, "two")]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_find_file_accepts_compression_suffixes(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"corpus.jsonl{suffix}").touch()
    assert line_reader.find_file(tmp_path, "corpus.jsonl") == tmp_path / f"corpus.jsonl{suffix}"
    assert line_reader.find_file(tmp_path, "corpus") is None


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
@pytest.mark.parametrize("kept", [0.5, 0.99])
def test_truncated_file_is_an_error_that_names_it(tmp_path: Path, suffix: str, kept: float) -> None:
    path = tmp_path / f"a{suffix}"
    whole = COMPRESS[suffix]("\n".join(str(n * 7919) for n in range(50_000)).encode())
    path.write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(DataError, match=r"a\.\w+ is truncated or damaged after line \d+ .*again"):
        list(line_reader.read_lines(path))


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_a_wrong_suffix_is_an_error(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"plain text, not compressed at all")
    with pytest.raises(DataError, match="truncated or damaged after line 0"):
        list(line_reader.read_lines(path))


def test_concatenated_zstd_frames_are_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a.zst"
    path.write_bytes(b"".join(zstandard.ZstdCompressor().compress(part) for part in (b"one\ntw", b"o\n")))
    assert [line for _, line in line_reader.read_lines(path)] == ["one", "two"]


def test_bytes_that_are_not_utf8_are_named_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"fine\nbad \xe9 byte\n")
    with pytest.raises(DataError, match="a line 2: byte 0xe9 is not UTF-8"):
        list(line_reader.read_lines(tmp_path / "a"))


def test_missing_file_and_folder_in_place_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing does not exist"):
        list(line_reader.read_lines(tmp_path / "nothing"))
    with pytest.raises(DataError, match="cannot be read"):
        list(line_reader.read_lines(tmp_path))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_lines_stream(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    numbers = "\n".join(str(n * 7919) for n in range(120_000)).encode()
    content = COMPRESS[suffix](numbers)
    # What follows the first half is unreadable, so whoever reads the file whole before the first line fails.
    path.write_bytes(content[: len(content) // 2] + b"\xff" * 1000)
    stream = line_reader.read_lines(path)
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
    with pytest.raises(MissingExtraError, match=r"a\.zst needs the package 'zstandard'.*'\.\[data\]'"):
        list(line_reader.read_lines(tmp_path / "a.zst"))


PACKED = [".gz", ".xz", ".zst"]
PADDING = {".gz": b"\0\0\0", ".xz": b"\0" * 8, ".zst": b"\x50\x2a\x4d\x18\x03\0\0\0abc"}
"""What may stand between two members: zeros, and of zstd a frame to be skipped."""


def read(path: Path) -> list[str]:
    return [line for _, line in line_reader.read_lines(path)]


@given(
    parts=st.lists(st.binary(max_size=40), min_size=1, max_size=4), suffix=st.sampled_from(PACKED), pad=st.booleans()
)
def test_concatenated_members_are_one_file(folder: Path, parts: list[bytes], suffix: str, pad: bool) -> None:
    path, padding = folder / f"members{suffix}", PADDING[suffix] if pad else b""
    content = b"x" + b"".join(part.hex().encode() + b"\n" for part in parts)
    cuts = range(0, len(content), 7)
    path.write_bytes(b"".join(COMPRESS[suffix](content[at : at + 7]) + padding for at in cuts))
    assert read(path) == [line for line in content.decode().split("\n") if line]


@given(garbage=st.binary(min_size=1, max_size=20), suffix=st.sampled_from(PACKED))
def test_trailing_garbage_is_an_error(folder: Path, garbage: bytes, suffix: str) -> None:
    path = folder / f"garbage{suffix}"
    path.write_bytes(COMPRESS[suffix](b"one\ntwo\n") + garbage)
    zeros = not garbage.strip(b"\0")
    if zeros and (suffix == ".gz" or (suffix == ".xz" and len(garbage) % 4 == 0)):
        assert read(path) == ["one", "two"], "padding"
        return
    with pytest.raises(DataError, match="truncated or damaged after line 2"):
        read(path)


@pytest.mark.parametrize("garbage", [b"garbage after the stream", b"\0\0\0"])
def test_trailing_garbage_of_an_xz_file_is_named_with_the_command_that_cuts_it_off(
    tmp_path: Path, garbage: bytes
) -> None:
    path = tmp_path / "a.xz"
    path.write_bytes(COMPRESS[".xz"](b"one\n") + garbage)
    with pytest.raises(DataError, match=r"after its end .* xz -dc --single-stream a\.xz \| xz > NEW\.xz"):
        read(path)


@pytest.mark.parametrize("suffix", PACKED)
def test_every_truncation_is_detected(tmp_path: Path, suffix: str) -> None:
    path, whole = tmp_path / f"a{suffix}", COMPRESS[suffix](b"one line\n" * 3 + b"and another")
    for kept in range(1, len(whole)):
        path.write_bytes(whole[:kept])
        with pytest.raises(DataError, match="truncated or damaged"):
            read(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_line_beyond_the_limit_is_refused(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_reader, "MAX_LINE_BYTES", 100)
    path = tmp_path / f"a{suffix}"
    path.write_bytes(COMPRESS[suffix](b"x" * 99 + b"\n" + b"y" * 100))
    assert read(path) == ["x" * 99, "y" * 100]
    path.write_bytes(COMPRESS[suffix](b"x" * 99 + b"\n" + b"y" * 101))
    with pytest.raises(DataError, match=r"line 2: longer than 100 bytes"):
        read(path)


def test_windows_beyond_the_limit_are_refused_and_those_of_xz_9_and_zstd_19_are_not(tmp_path: Path) -> None:
    ends = bytearray(zstandard.ZstdCompressor(write_content_size=False).compress(b"one\n"))
    ends[5] = (31 - 10) << 3  # the window descriptor: 2 GiB
    (tmp_path / "a.zst").write_bytes(ends)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 30}]
    (tmp_path / "a.xz").write_bytes(lzma.compress(b"one\n", filters=filters))
    for suffix in (".zst", ".xz"):
        with pytest.raises(DataError, match=r"needs a window above 134,217,728 bytes.*compress it again"):
            read(tmp_path / f"a{suffix}")
    (tmp_path / "a.zst").write_bytes(zstandard.ZstdCompressor(level=22).compress(b"one\n"))
    (tmp_path / "a.xz").write_bytes(lzma.compress(b"one\n", preset=9))
    assert read(tmp_path / "a.zst") == read(tmp_path / "a.xz") == ["one"]


@pytest.mark.parametrize("suffix", [".zst", *(pytest.param(each, marks=pytest.mark.slow) for each in (".gz", ".xz"))])
def test_one_line_of_a_gibibyte_takes_little_memory(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"corpus.jsonl{suffix}"
    packers = {".gz": lambda: zlib.compressobj(1, wbits=31), ".xz": lambda: lzma.LZMACompressor(preset=0)}
    packer = packers.get(suffix, lambda: zstandard.ZstdCompressor().compressobj())()
    with path.open("wb") as out:
        out.write(packer.compress(b'{"_id": "1", "text": "'))
        for _ in range(1024):
            out.write(packer.compress(b"a" * (1 << 20)))
        out.write(packer.compress(b'"}\n') + packer.flush())
    assert path.stat().st_size < 8 << 20
    done = subprocess.run([sys.executable, "-c", READ_ALONE, str(path)], capture_output=True, text=True, check=True)
    grown, *message = done.stdout.splitlines()
    assert "line 1: longer than 67,108,864 bytes" in message[0]
    assert int(grown) < 200 << 20, "a gibibyte is never held"


READ_ALONE = """
import resource, sys
from pathlib import Path
import zstandard
from bidr.errors import DataError
from bidr.data.readers import beir
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    list(beir.read_documents(Path(sys.argv[1])))
except DataError as error:
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10)
    print(error)
"""
