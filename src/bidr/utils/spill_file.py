"""Anonymous temporary file for data that exceeds a memory bound."""

import os
import tempfile
from pathlib import Path
from typing import IO

from bidr.utils.files import storage_errors


class SpillFile:
    """Append-only anonymous file, created on the first write.

    Args:
        folder: where the file goes, or in the nearest existing parent.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._end = folder, 0
        self._file: IO[bytes] | None = None

    def append(self, content: bytes | memoryview) -> int:
        """Write bytes and return their offset."""
        remaining, offset = memoryview(content).cast("B"), self._end
        with storage_errors(self.folder):
            if self._file is None:
                folder = next(path for path in (self.folder, *self.folder.absolute().parents) if path.is_dir())
                self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
            self._end += len(remaining)
            while len(remaining):
                remaining = remaining[self._file.write(remaining) :]
        return offset

    def read(self, offset: int, size: int) -> bytes:
        assert self._file is not None
        with storage_errors(self.folder):
            content = os.pread(self._file.fileno(), size, offset)
            if len(content) != size:
                raise OSError(f"{len(content)} bytes read, {size} were written")
        return content

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
