"""What a server refused, as the errors that the same call raises locally."""

from typing import Any

from bidr.errors import BidrError, ConfigError, DataError, IndexFolderError, ModelError


class ServiceError(BidrError):
    """A server answered with an error, or not at all. `status` is HTTP's (None: no answer), `kind` its own word."""

    def __init__(self, message: str, status: int | None = None, kind: str = "") -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


class Rejected(ServiceError, ConfigError, DataError):
    """What was sent cannot work: what `except ConfigError` and `except DataError` catch of a local index."""


class NotAllowed(ServiceError, ConfigError):
    """The key is missing or wrong, or may not do this, or the server only reads."""


class Conflict(ServiceError, ModelError, DataError):
    """The index is not what the request takes it for: another model's, or ids are there already."""


class Unavailable(ServiceError, IndexFolderError):
    """No answer in time, after all retries."""


KINDS: dict[int, type[ServiceError]] = {401: NotAllowed, 403: NotAllowed, 409: Conflict}


def to_service_error(status: int, body: Any) -> ServiceError:
    """The error that an answer tells of."""
    found = body.get("error") if isinstance(body, dict) else None
    told: dict[str, Any] = found if isinstance(found, dict) else {}
    message = str(told.get("message") or f"the server answered with status {status} and no reason")
    for name in ("given", "expected"):
        if told.get(name) is not None:
            message += f"{',' if name == 'expected' and told.get('given') else ':'} {name} {told[name]}"
    if told.get("hint"):
        message += f"; {told['hint']}"
    kind = KINDS.get(status) or (Rejected if 400 <= status < 500 and status not in (408, 429) else Unavailable)
    return kind(message, status, str(told.get("type") or ""))
