"""Old names of attributes, which warn."""

import warnings
from typing import Any


class DeprecatedAlias:
    """Class attribute of version 0.1 (`Class.name`) that is named otherwise now. To be removed in 0.3."""

    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new

    def __get__(self, instance: Any, owner: type) -> Any:
        message = f"{self._old} is now {owner.__name__}.{self._new}; the old name goes in version 0.3"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(owner if instance is None else instance, self._new)
