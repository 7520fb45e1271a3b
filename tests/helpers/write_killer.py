"""A writer that is ended at its n-th write to the disk."""

import pytest

from bidr.utils import files


class Killed(BaseException):
    """Nothing but a test catches it."""


class Kill:
    """Ends whoever writes at the n-th write from now on, half of it written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, self.error = -1, Killed
        real = files.write_all

        def write_all(handle: int, content: bytes) -> None:
            self.left -= 1
            if self.left == 0:
                real(handle, content[: len(content) // 2])
                raise self.error()
            real(handle, content)

        monkeypatch.setattr(files, "write_all", write_all)

    def end(self) -> None:
        """At once."""
        raise self.error()
