"""What the server answers when it does not answer: a status, a kind, and what a person needs to put it right."""

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

LONGEST = 200
DEADLINE_MESSAGE = "the time for this request is over"


class HTTPError(BidrError):
    """A request that is not answered. `status` and `kind` are for programs, the rest for people.

    What is given and expected are words, or, if they are not strings, written as JSON. A string of the client's JSON is
    put through `written` by whoever raises this, so that "5" is told from 5.
    """

    status, kind = 400, "bad_request"

    def __init__(
        self, message: str, *, given: Any = None, expected: Any = None, hint: str = "", headers: tuple[Any, ...] = ()
    ) -> None:
        super().__init__(message)
        self.message, self.hint, self.headers = _escape_surrogates(message), _escape_surrogates(hint), headers
        self.given, self.expected = _short(given), _short(expected)


class Unauthorized(HTTPError):
    """No key was given where one is needed, or a wrong one."""

    status, kind = 401, "unauthorized"


class Forbidden(HTTPError):
    """The key, or the server, does not allow it."""

    status, kind = 403, "forbidden"


class NotFound(HTTPError):
    """Nothing of that name."""

    status, kind = 404, "not_found"


class MethodNotAllowed(HTTPError):
    """The path has no such method."""

    status, kind = 405, "method_not_allowed"


class RequestTimeout(HTTPError):
    """The request did not arrive in time."""

    status, kind = 408, "slow_request"


class IndexConflict(HTTPError):
    """The index is not what the request takes it for."""

    status, kind = 409, "conflict"


class PayloadTooLarge(HTTPError):
    """A body beyond the limit."""

    status, kind = 413, "too_large"


class UnsupportedMediaType(HTTPError):
    """A body of another content type."""

    status, kind = 415, "unsupported_type"


class HeaderFieldsTooLarge(HTTPError):
    """A request line and headers beyond the limit."""

    status, kind = 431, "head_too_large"


class Unimplemented(HTTPError):
    """A feature of HTTP that this server does not have."""

    status, kind = 501, "not_implemented"


class InvalidRequest(HTTPError):
    """A value that cannot work."""

    status, kind = 422, "invalid"


class TooManyRequests(HTTPError):
    """More requests than one client may send."""

    status, kind = 429, "rate_limited"

    def __init__(self, message: str, retry_after: float = 1.0, **told: Any) -> None:
        super().__init__(message, headers=retry(retry_after), **told)


class InternalError(HTTPError):
    """A fault of the server; what it was is in its log."""

    status, kind = 500, "internal"


class Overloaded(HTTPError):
    """More requests than can be answered, or not ready yet: to be tried again."""

    status, kind = 503, "overloaded"

    def __init__(self, retry_after: float = 1.0, message: str = "too many requests are waiting", **told: Any) -> None:
        super().__init__(message, headers=retry(retry_after), **told)
        self.retry_after = retry_after


class DeadlineExceeded(HTTPError):
    """The time for a request is over."""

    status, kind = 504, "deadline"


def make_method_error(given: str, allowed: str) -> MethodNotAllowed:
    """The refusal of a method, with the header that names those there are."""
    return MethodNotAllowed(
        "the path has no such method",
        given=given,
        expected=allowed,
        hint="GET /openapi.json says what each path takes",
        headers=((b"allow", allowed.encode()),),
    )


def retry(seconds: float) -> tuple[tuple[bytes, bytes], ...]:
    """The header that says when to come again, in whole seconds."""
    return ((b"retry-after", str(max(1, round(seconds))).encode()),)


def to_http_error(error: BaseException) -> HTTPError | None:
    """What an error of the library says to a client; None: a fault of the server, of which nothing is told."""
    if isinstance(error, HTTPError):
        return error
    if isinstance(error, DetailedError):
        return InvalidRequest(error.what, given=error.given, expected=error.expected, hint=error.hint)
    if isinstance(error, ConfigError | DataError):
        return InvalidRequest(str(error))
    if isinstance(error, SearchTimeoutError):
        return DeadlineExceeded(
            DEADLINE_MESSAGE, hint="ask with fewer conditions, fewer queries at once, or fewer candidates"
        )
    if isinstance(error, IndexFolderError | ModelError | StorageError):
        return Overloaded(5.0, "the index cannot be read or written at the moment", hint="the server's log says why")
    return None


def to_error_body(error: HTTPError) -> dict[str, Any]:
    """The body of the answer."""
    return {
        "error": {
            "type": error.kind,
            "message": error.message,
            "given": error.given,
            "expected": error.expected,
            "hint": error.hint or None,
        }
    }


def _short(value: Any) -> str | None:
    if value is None:
        return None
    shown = value if isinstance(value, str) else to_short_json(value, LONGEST)
    shown = _escape_surrogates(shown)
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 3] + "..."


def _escape_surrogates(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
