"""Sending with retries, independent of synchronous or asynchronous I/O, and parsing of responses."""

import time
from collections.abc import Generator
from itertools import count
from typing import Any, NamedTuple, TypeVar

from bidr.client.errors import Unavailable, to_service_error
from bidr.client.requests import Reply, RequestSpec, RequestSteps
from bidr.client.retry import RETRIED_STATUSES, Retry, is_retryable, parse_retry_after

T = TypeVar("T")


class Attempt(NamedTuple):
    """Arguments of httpx.request, and seconds to wait before it."""

    arguments: dict[str, Any]
    wait: float


Attempts = Generator[Attempt, Any, T]


def make_attempts(steps: RequestSteps[T], retry: Retry, url: str) -> Attempts[T]:
    """Yield all attempts of an operation; receives the response or the connection error of each."""
    try:
        request = next(steps)
        while True:
            request = steps.send((yield from _send_with_retries(request, retry, url)))
    except StopIteration as done:
        value: T = done.value
        return value


def _send_with_retries(request: RequestSpec, retry: Retry, url: str) -> Attempts[Reply]:
    started, wait, arguments = time.monotonic(), 0.0, _make_arguments(request)
    for number in count():
        outcome = yield Attempt(arguments, wait)
        is_error = isinstance(outcome, Exception)
        if not is_error and outcome.status_code not in RETRIED_STATUSES:
            break
        delay = None
        if not is_error or is_retryable(request, outcome):
            retry_after = None if is_error else parse_retry_after(outcome)
            delay = retry.compute_delay(number, retry_after, time.monotonic() - started)
        if delay is None:
            if is_error:
                reason = f"{type(outcome).__name__}: {outcome}"
                raise Unavailable(f"{url} cannot be reached ({reason}); is `bidr serve` running?") from outcome
            break
        wait = delay
    return _parse_reply(outcome)


def _make_arguments(request: RequestSpec) -> dict[str, Any]:
    arguments: dict[str, Any] = {"method": request.method, "url": request.path}
    if request.params:
        arguments["params"] = request.params
    if request.body:
        arguments |= {"content": request.body, "headers": {"content-type": request.type}}
    return arguments


def _parse_reply(response: Any) -> Reply:
    """Return the JSON body of a response; raises ServiceError for error responses."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if response.status_code != 200:
        raise to_service_error(response.status_code, body)
    if not isinstance(body, dict):
        raise Unavailable(f"{response.url} is no bidr server: its answer is not a JSON object", 200)
    return body
