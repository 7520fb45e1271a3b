"""A copy of one state of an index while its writer goes on."""

import os
from pathlib import Path

from bidr.errors import REBUILD, ConfigError, IndexFolderError
from bidr.index.live.wal import ACKNOWLEDGED, LOG, LogReader, write_log
from bidr.index.storage.live_state import read_state
from bidr.index.storage.manifest import CURRENT, MANIFEST, current_generation, settled
from bidr.utils.files import (
    BUFFER_BYTES,
    DISK_ERRORS,
    NewFile,
    check_regular,
    make_folder,
    remove,
    storage_errors,
    sync_folder,
    write_atomically,
)


def write_snapshot(folder: Path, out: Path, *, copy: bool = False) -> Path:
    """Put the state in force into a new folder, which is an index like any other.

    What never changes is linked where the file system can, else copied; of the log what is whole is copied. Linked
    files are those of the index under a second name: what damages one damages both.
    copy: copy all of them, byte for byte.
    """
    if out.exists():
        raise ConfigError(f"{out} exists already; give a folder that does not")
    aside = out.with_name(f".{out.name}.{os.getpid()}.new")
    with storage_errors(out):
        try:
            settled(folder, lambda name, digest: _copy_state(folder, aside, name, digest, copy))
            os.rename(aside, out)
            try:
                sync_folder(out.parent)
            except OSError:
                remove(out)  # or it could not be taken again
                raise
        except BaseException:
            remove(aside)
            raise
    return out


def _copy_state(folder: Path, aside: Path, name: str, digest: str, copy: bool) -> None:
    remove(aside)
    make_folder(aside)
    state = read_state(folder, name, digest)
    for segment in state.segments:
        _copy(folder / segment.name, aside / segment.name, copy)
    if state.live:
        _copy(folder / name, aside / name, copy, without=(LOG, ACKNOWLEDGED))
        log = LogReader(folder / name)
        try:
            write_log(aside / name, name, log.read())
            if log.unconfirmed and current_generation(folder) != (name, digest):
                raise IndexFolderError(f"{folder / name}: was replaced while its log was copied; try again")
        finally:
            log.close()
        sync_folder(aside / name)
    write_atomically(aside / CURRENT, f"{name} {digest}\n".encode())


def _copy(source: Path, target: Path, copy: bool, without: tuple[str, ...] = ()) -> None:
    os.mkdir(target)
    try:
        names = [name for name in os.listdir(source) if name not in without]
        for name in names:
            check_regular(os.stat(source / name))
            if copy or not _linked(source / name, target / name):
                _copy_file(source / name, target / name)
    except FileNotFoundError as error:
        raise IndexFolderError(f"{source}: went away while it was copied; try again") from error
    except OSError as error:
        if error.errno in DISK_ERRORS:
            raise
        raise IndexFolderError(f"{source / name}: cannot be copied ({error.strerror}); {REBUILD}") from error
    if MANIFEST not in names:
        raise IndexFolderError(f"{source}: has no {MANIFEST}; try again")
    sync_folder(target)


def _copy_file(source: Path, target: Path) -> None:
    """Copy a file and flush it by the same descriptor: one opened later may not be told of a failed write."""
    with source.open("rb") as content, NewFile(target) as out:
        while piece := content.read(BUFFER_BYTES):
            out.write(piece)


def _linked(source: Path, target: Path) -> bool:
    """Whether a file could be given a second name; across file systems it cannot."""
    try:
        os.link(source, target)
    except OSError:
        return False
    return True
