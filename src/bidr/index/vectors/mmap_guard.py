"""A mapped file that may be cut off while it is open: looking at what is gone then would be a signal, not an error."""

import mmap
from pathlib import Path
from time import monotonic

from bidr.errors import REBUILD, IndexFolderError

# Asking the system takes as long as a look at ten rows, so it is not asked for each.
CHECK_INTERVAL = 0.001


class MmapGuard:
    """Asks for the sizes of files, once in ASKED_EVERY seconds at most."""

    def __init__(self, *files: tuple[Path, mmap.mmap | None]) -> None:
        """None stands for a file that there is not."""
        self._files = [(path, mapped, len(mapped)) for path, mapped in files if mapped is not None]
        self._asked = 0.0

    def look(self) -> None:
        """Refuse a file that is shorter than it was."""
        now = monotonic()
        if now - self._asked > CHECK_INTERVAL:
            for path, mapped, expected in self._files:
                size = mapped.size()
                if size < expected:
                    raise IndexFolderError(
                        f"{path}: {size:,} bytes, {expected:,} when it was opened: cut off since; {REBUILD}"
                    )
            self._asked = now
