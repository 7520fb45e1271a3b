"""Damage for tests: what a disk or a program may do to a file."""

from collections.abc import Callable
from pathlib import Path

Harm = Callable[[Path, int], None]


def flip_byte(path: Path, at: int, flip: int = 0x10) -> None:
    content = bytearray(path.read_bytes())
    content[at % len(content)] ^= flip
    path.write_bytes(content)


def zero_block(path: Path, at: int, size: int = 4_096) -> None:
    content = bytearray(path.read_bytes())
    start = at % len(content) // size * size
    content[start : start + size] = bytes(len(content[start : start + size]))
    path.write_bytes(content)


def truncate(path: Path, at: int) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: at % len(content)])


def delete(path: Path, at: int) -> None:
    path.unlink()


HARMS: tuple[Harm, ...] = (flip_byte, zero_block, truncate, delete)
