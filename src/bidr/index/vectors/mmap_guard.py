"""Detect truncation of mapped files: touching a page beyond the end raises SIGBUS, not an exception."""

import mmap
from pathlib import Path
from time import monotonic

from bidr.errors import REBUILD, IndexFolderError

CHECK_INTERVAL = 0.001
"""Seconds between two checks: fstat takes as long as scoring ten rows."""


class MmapGuard:
    """Compare the sizes of mapped files with those at opening, once in CHECK_INTERVAL at most."""

    def __init__(self, *files: tuple[Path, mmap.mmap | None]) -> None:
        """Watch files by path and mapping; None stands for a file that does not exist."""
        self._files = [(path, mapped, len(mapped)) for path, mapped in files if mapped is not None]
        self._last_check = 0.0

    def check_sizes(self) -> None:
        """Raise IndexFolderError for a file that became shorter."""
        now = monotonic()
        if now - self._last_check > CHECK_INTERVAL:
            for path, mapped, expected in self._files:
                size = mapped.size()
                if size < expected:
                    raise IndexFolderError(
                        f"{path}: truncated while open ({size:,} bytes, {expected:,} when opened); {REBUILD}"
                    )
            self._last_check = now
