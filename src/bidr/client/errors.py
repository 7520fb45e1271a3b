"""Errors of a server, as the exceptions that the same call raises locally."""

from typing import Any

from bidr.errors import BidrError, ConfigError, DataError, IndexFolderError, ModelError


class ServiceError(BidrError):
    """A server answered with an error, or not at all. `status`: HTTP status (None: no response); `kind`: error type."""

    def __init__(self, message: str, status: int | None = None, kind: str = "") -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


class Rejected(ServiceError, ConfigError, DataError):
    """The request is invalid; caught by `except ConfigError` and `except DataError` as for a local index."""


class NotAllowed(ServiceError, ConfigError):
    """The key is missing, invalid or lacks permission, or the server is read-only."""


class Conflict(ServiceError, ModelError, DataError):
    """The request does not match the index: another model, or existing ids."""


class Unavailable(ServiceError, IndexFolderError):
    """No successful response, after all retries."""


KINDS: dict[int, type[ServiceError]] = {401: NotAllowed, 403: NotAllowed, 409: Conflict}


def to_service_error(status: int, body: Any) -> ServiceError:
    """Convert an error response to an exception."""
    details = body.get("error") if isinstance(body, dict) else None
    fields: dict[str, Any] = details if isinstance(details, dict) else {}
    message = str(fields.get("message") or f"the server answered with status {status} and no reason")
    for name in ("given", "expected"):
        if fields.get(name) is not None:
            message += f"{',' if name == 'expected' and fields.get('given') else ':'} {name} {fields[name]}"
    if fields.get("hint"):
        message += f"; {fields['hint']}"
    kind = KINDS.get(status) or (Rejected if 400 <= status < 500 and status not in (408, 429) else Unavailable)
    return kind(message, status, str(fields.get("type") or ""))
