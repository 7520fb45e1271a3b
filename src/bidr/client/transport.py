"""How requests go out, whoever waits for them: what is sent, what is tried again, and what an answer says."""

import time
from collections.abc import Generator
from itertools import count
from typing import Any, NamedTuple, TypeVar

from bidr.client.errors import Unavailable, to_service_error
from bidr.client.requests import Reply, Request, RequestSteps
from bidr.client.retry import RETRIED_STATUSES, Retry, is_retryable, parse_retry_after

T = TypeVar("T")


class Attempt(NamedTuple):
    """Send a request (arguments of httpx's), after so many seconds."""

    arguments: dict[str, Any]
    wait: float


Attempts = Generator[Attempt, Any, T]


def make_attempts(steps: RequestSteps[T], retry: Retry, url: str) -> Attempts[T]:
    """All attempts of an operation: each gets the response, or the exception that broke the connection."""
    try:
        request = next(steps)
        while True:
            request = steps.send((yield from _sent(request, retry, url)))
    except StopIteration as done:
        value: T = done.value
        return value


def _sent(request: Request, retry: Retry, url: str) -> Attempts[Reply]:
    started, wait, arguments = time.monotonic(), 0.0, _arguments(request)
    for number in count():
        found = yield Attempt(arguments, wait)
        broken = isinstance(found, Exception)
        if not broken and found.status_code not in RETRIED_STATUSES:
            break
        again = None
        if not broken or is_retryable(request, found):
            again = retry.delay(number, None if broken else parse_retry_after(found), time.monotonic() - started)
        if again is None:
            if broken:
                why = f"{type(found).__name__}: {found}"
                raise Unavailable(f"{url} cannot be reached ({why}); is `bidr serve` running?") from found
            break
        wait = again
    return _reply(found)


def _arguments(request: Request) -> dict[str, Any]:
    arguments: dict[str, Any] = {"method": request.method, "url": request.path}
    if request.params:
        arguments["params"] = request.params
    if request.body:
        arguments |= {"content": request.body, "headers": {"content-type": request.type}}
    return arguments


def _reply(response: Any) -> Reply:
    """The body of an answer, or the error that it tells of."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if response.status_code != 200:
        raise to_service_error(response.status_code, body)
    if not isinstance(body, dict):
        raise Unavailable(f"{response.url} is no bidr server: its answer is not a JSON object", 200)
    return body
