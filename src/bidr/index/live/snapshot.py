"""Copy one state of an index while a writer may have it open."""

import os
from pathlib import Path

from bidr.errors import REBUILD, ConfigError, IndexFolderError
from bidr.index.live.initial_codes import SETTINGS
from bidr.index.live.wal import ACKNOWLEDGED, LOG, WalReader, write_log
from bidr.index.storage.live_state import read_state
from bidr.index.storage.manifest import CURRENT, MANIFEST, read_current, resolve_generation
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
    """Write the current state to a new index folder.

    Immutable files become hard links where the file system allows it, so damage to one affects both. The complete
    records of the log are copied.

    Args:
        folder: The index.
        out: A folder that does not exist.
        copy: Copy all files instead.
    """
    if out.exists():
        raise ConfigError(f"{out} exists already; give a folder that does not exist")
    staging = out.with_name(f".{out.name}.{os.getpid()}.new")
    with storage_errors(out):
        try:
            resolve_generation(folder, lambda name, digest: _copy_state(folder, staging, name, digest, copy))
            os.rename(staging, out)
            try:
                sync_folder(out.parent)
            except OSError:
                remove(out)  # it would block another attempt
                raise
        except BaseException:
            remove(staging)
            raise
    return out


def _copy_state(folder: Path, staging: Path, name: str, digest: str, copy: bool) -> None:
    remove(staging)
    make_folder(staging)
    state = read_state(folder, name, digest)
    for segment in state.segments:
        _copy_folder(folder / segment.name, staging / segment.name, copy)
    if state.live:
        _copy_folder(folder / name, staging / name, copy, skip=(LOG, ACKNOWLEDGED))
        log = WalReader(folder / name)
        try:
            write_log(staging / name, name, log.read())
            if log.has_unacknowledged and read_current(folder) != (name, digest):
                raise IndexFolderError(f"{folder / name}: was replaced while its log was copied; try again")
        finally:
            log.close()
        sync_folder(staging / name)
    if (folder / SETTINGS).exists():
        _copy_file(folder / SETTINGS, staging / SETTINGS)
    write_atomically(staging / CURRENT, f"{name} {digest}\n".encode())


def _copy_folder(source: Path, target: Path, copy: bool, skip: tuple[str, ...] = ()) -> None:
    os.mkdir(target)
    try:
        names = [name for name in os.listdir(source) if name not in skip]
        for name in names:
            check_regular(os.stat(source / name))
            if copy or not _try_link(source / name, target / name):
                _copy_file(source / name, target / name)
    except FileNotFoundError as error:
        raise IndexFolderError(f"{source}: was removed while it was copied; try again") from error
    except OSError as error:
        if error.errno in DISK_ERRORS:
            raise
        raise IndexFolderError(f"{source / name}: cannot be copied ({error.strerror}); {REBUILD}") from error
    if MANIFEST not in names:
        raise IndexFolderError(f"{source}: has no {MANIFEST}; try again")
    sync_folder(target)


def _copy_file(source: Path, target: Path) -> None:
    """Copy a file; fsync by the same descriptor, as one opened later may miss a write error."""
    with source.open("rb") as content, NewFile(target) as out:
        while piece := content.read(BUFFER_BYTES):
            out.write(piece)


def _try_link(source: Path, target: Path) -> bool:
    """Create a hard link; False where that is not possible, as across file systems."""
    try:
        os.link(source, target)
    except OSError:
        return False
    return True
