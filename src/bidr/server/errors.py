"""HTTP errors: status, machine-readable kind, and what is wrong, given, expected, and to do."""

from typing import Any

from bidr.errors import (
    BidrError,
    ConfigError,
    DataError,
    DetailedError,
    IndexFolderError,
    ModelError,
    SearchTimeoutError,
    StorageError,
    to_short_json,
)

MAX_CHARS = 200
DEADLINE_MESSAGE = "the request exceeded its deadline"


class HTTPError(BidrError):
    """Base of errors that are sent to the client.

    `given` and `expected` are prose, or are serialized as JSON if they are not strings. Callers pass strings of the
    client through `to_short_json`, so that "5" and 5 look different.
    """

    status, kind = 400, "bad_request"

    def __init__(
        self, message: str, *, given: Any = None, expected: Any = None, hint: str = "", headers: tuple[Any, ...] = ()
    ) -> None:
        super().__init__(message)
        self.message, self.hint, self.headers = _escape_surrogates(message), _escape_surrogates(hint), headers
        self.given, self.expected = _to_text(given), _to_text(expected)


class Unauthorized(HTTPError):
    """The key is missing or invalid."""

    status, kind = 401, "unauthorized"


class Forbidden(HTTPError):
    """Not allowed with this key, or on this server."""

    status, kind = 403, "forbidden"


class NotFound(HTTPError):
    """No such path or document."""

    status, kind = 404, "not_found"


class MethodNotAllowed(HTTPError):
    """The path has no such method."""

    status, kind = 405, "method_not_allowed"


class RequestTimeout(HTTPError):
    """The request did not arrive in time."""

    status, kind = 408, "slow_request"


class IndexConflict(HTTPError):
    """The request does not match the state of the index."""

    status, kind = 409, "conflict"


class PayloadTooLarge(HTTPError):
    """A body beyond the limit."""

    status, kind = 413, "too_large"


class UnsupportedMediaType(HTTPError):
    """Unsupported content type."""

    status, kind = 415, "unsupported_type"


class HeaderFieldsTooLarge(HTTPError):
    """A request line and headers beyond the limit."""

    status, kind = 431, "head_too_large"


class Unimplemented(HTTPError):
    """An HTTP feature that this server does not support."""

    status, kind = 501, "not_implemented"


class InvalidRequest(HTTPError):
    """An invalid value."""

    status, kind = 422, "invalid"


class TooManyRequests(HTTPError):
    """The rate limit of a client is exceeded."""

    status, kind = 429, "rate_limited"

    def __init__(self, message: str, retry_after: float = 1.0, **details: Any) -> None:
        super().__init__(message, headers=make_retry_after(retry_after), **details)


class InternalError(HTTPError):
    """A fault of the server; details are in its log only."""

    status, kind = 500, "internal"


class Overloaded(HTTPError):
    """Overloaded or not ready; the client should retry."""

    status, kind = 503, "overloaded"

    def __init__(
        self, retry_after: float = 1.0, message: str = "too many requests are waiting", **details: Any
    ) -> None:
        super().__init__(message, headers=make_retry_after(retry_after), **details)
        self.retry_after = retry_after


class DeadlineExceeded(HTTPError):
    """The deadline of a request has passed."""

    status, kind = 504, "deadline"


def make_method_error(method: str, allowed: str) -> MethodNotAllowed:
    """Return the error for an unsupported method, with the Allow header."""
    return MethodNotAllowed(
        "the path has no such method",
        given=method,
        expected=allowed,
        hint="GET /openapi.json lists the methods of each path",
        headers=((b"allow", allowed.encode()),),
    )


def make_retry_after(seconds: float) -> tuple[tuple[bytes, bytes], ...]:
    """Return the Retry-After header, in whole seconds."""
    return ((b"retry-after", str(max(1, round(seconds))).encode()),)


def to_http_error(error: BaseException) -> HTTPError | None:
    """Convert an error of the library for the client; None for faults, whose details stay in the log."""
    if isinstance(error, HTTPError):
        return error
    if isinstance(error, DetailedError):
        return InvalidRequest(error.what, given=error.given, expected=error.expected, hint=error.hint)
    if isinstance(error, ConfigError | DataError):
        return InvalidRequest(str(error))
    if isinstance(error, SearchTimeoutError):
        return DeadlineExceeded(
            DEADLINE_MESSAGE, hint="use fewer conditions, fewer queries at once, or fewer candidates"
        )
    if isinstance(error, IndexFolderError | ModelError | StorageError):
        return Overloaded(5.0, "the index cannot be read or written at the moment", hint="the server's log says why")
    return None


def to_error_body(error: HTTPError) -> dict[str, Any]:
    """Return the JSON body of an error response."""
    return {
        "error": {
            "type": error.kind,
            "message": error.message,
            "given": error.given,
            "expected": error.expected,
            "hint": error.hint or None,
        }
    }


def _to_text(value: Any) -> str | None:
    if value is None:
        return None
    text = _escape_surrogates(value if isinstance(value, str) else to_short_json(value, MAX_CHARS))
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 3] + "..."


def _escape_surrogates(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
