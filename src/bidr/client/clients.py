"""Client and AsyncClient: the same operations, sent one way or the other."""

import asyncio
import time
from collections.abc import Collection, Sequence
from types import ModuleType, TracebackType
from typing import Any, Self, TypeVar, overload

import numpy.typing as npt

from bidr.client.asking import Asking, Question, Reply, Request, Steps
from bidr.client.errors import Unavailable, error_of
from bidr.client.retry import AGAIN, Retry, may_repeat, told_wait
from bidr.codes.codebooks import Floats
from bidr.errors import ConfigError, MissingExtra
from bidr.search import Answers, QueryVectors, Texts
from bidr.text.records import Document

T = TypeVar("T")
URL, TIMEOUT = "http://127.0.0.1:8000", 15.0


class _Settings:
    """What both clients are made with.

    url:        where `bidr serve` listens.
    key:        the server's read or write key, where it has one.
    candidates: how many documents are read from disk for a query, unless a search says; None: as the server does.
    timeout:    seconds for one attempt; retries: see `Retry`.
    options:    further arguments of httpx.Client, such as `verify` or `limits`.
    """

    def __init__(
        self,
        url: str = URL,
        key: str | None = None,
        *,
        candidates: int | None = None,
        timeout: float = TIMEOUT,
        retry: Retry | None = None,
        **options: Any,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"url: given {url!r}, expected one such as {URL}; a folder is opened by bidr.open_index")
        self.url, self.candidates, self._retry, self._asking = url.rstrip("/"), candidates, retry or Retry(), Asking()
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._given: dict[str, Any] = {"base_url": self.url, "timeout": timeout, "headers": headers, **options}

    def answers(self, found: list[Answers]) -> list[Answers]:
        """What `search_vectors` found, as it is: a local searcher makes answers of it here."""
        return found

    def _question(self, k: int, candidates: int | None, filter: Any, codes_only: bool) -> Question:
        return Question(k, self.candidates if candidates is None else candidates, filter, codes_only)

    def _failed(self, error: Exception) -> Unavailable:
        return Unavailable(f"{self.url} cannot be reached ({type(error).__name__}: {error}); is `bidr serve` running?")


class Client(_Settings):
    """A served index. Use it in a `with` block; threads may share one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._http = _httpx().Client(**self._given)

    __init__.__doc__ = _Settings.__doc__

    @overload
    def search(self, query: str, k: int = 10, candidates: int | None = None, *, filter: Any = None) -> Answers: ...

    @overload
    def search(
        self, query: Texts, k: int = 10, candidates: int | None = None, *, filter: Any = None
    ) -> list[Answers]: ...

    def search(
        self,
        query: str | Texts,
        k: int = 10,
        candidates: int | None = None,
        *,
        filter: Any = None,
        codes_only: bool = False,
    ) -> Answers | list[Answers]:
        """The k best documents for a question, or for each of many. codes_only: as the codes alone rank them."""
        texts = [query] if isinstance(query, str) else list(query)
        found = self._run(self._asking.by_texts(texts, self._question(k, candidates, filter, codes_only)))
        return found[0] if isinstance(query, str) else found

    def search_vectors(
        self,
        queries: QueryVectors | npt.ArrayLike,
        k: int = 10,
        candidates: int | None = None,
        *,
        filter: Any = None,
        codes_only: bool = False,
    ) -> list[Answers]:
        """The k best documents for each vector, of the model that made the documents'."""
        return self._run(self._asking.by_vectors(queries, self._question(k, candidates, filter, codes_only)))

    def add(self, documents: Sequence[Document], vectors: Floats | None = None, *, replace: bool = True) -> int:
        """Add documents, how many; one whose id is there is replaced, or refused with replace=False."""
        return self._run(self._asking.add(documents, vectors, replace))

    def delete(self, ids: Collection[str], *, missing_ok: bool = False) -> int:
        """Take documents out of the index; how many."""
        return self._run(self._asking.delete(list(ids), missing_ok))

    def get(self, ids: Collection[str]) -> dict[str, Document]:
        """Documents by id; those that are not there are left out."""
        return self._run(self._asking.get(list(ids)))

    def index(self) -> Reply:
        """What is served: documents, RAM, disk, model, limits."""
        return self._run(self._asking.index())

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _run(self, steps: Steps[T]) -> T:
        try:
            request = next(steps)
            while True:
                request = steps.send(self._send(request))
        except StopIteration as done:
            value: T = done.value
            return value

    def _send(self, request: Request) -> Reply:
        started, number = time.monotonic(), 0
        while True:
            told, failed = None, None
            try:
                response = self._http.request(**_arguments(request))
            except _httpx().TransportError as error:
                failed = error
                if not may_repeat(request, error):
                    raise self._failed(error) from error
            else:
                if response.status_code not in AGAIN:
                    return _reply(response)
                told = told_wait(response)
            wait = self._retry.delay(number, told, time.monotonic() - started)
            if wait is None:
                if failed is not None:
                    raise self._failed(failed) from failed
                return _reply(response)
            number += 1
            time.sleep(wait)


class AsyncClient(_Settings):
    """A served index, for programs with an event loop. Use it in an `async with` block."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._http = _httpx().AsyncClient(**self._given)

    __init__.__doc__ = _Settings.__doc__

    @overload
    async def search(
        self, query: str, k: int = 10, candidates: int | None = None, *, filter: Any = None
    ) -> Answers: ...

    @overload
    async def search(
        self, query: Texts, k: int = 10, candidates: int | None = None, *, filter: Any = None
    ) -> list[Answers]: ...

    async def search(
        self,
        query: str | Texts,
        k: int = 10,
        candidates: int | None = None,
        *,
        filter: Any = None,
        codes_only: bool = False,
    ) -> Answers | list[Answers]:
        """As `Client.search`."""
        texts = [query] if isinstance(query, str) else list(query)
        found = await self._run(self._asking.by_texts(texts, self._question(k, candidates, filter, codes_only)))
        return found[0] if isinstance(query, str) else found

    async def search_vectors(
        self,
        queries: QueryVectors | npt.ArrayLike,
        k: int = 10,
        candidates: int | None = None,
        *,
        filter: Any = None,
        codes_only: bool = False,
    ) -> list[Answers]:
        """As `Client.search_vectors`."""
        return await self._run(self._asking.by_vectors(queries, self._question(k, candidates, filter, codes_only)))

    async def add(self, documents: Sequence[Document], vectors: Floats | None = None, *, replace: bool = True) -> int:
        """As `Client.add`."""
        return await self._run(self._asking.add(documents, vectors, replace))

    async def delete(self, ids: Collection[str], *, missing_ok: bool = False) -> int:
        """As `Client.delete`."""
        return await self._run(self._asking.delete(list(ids), missing_ok))

    async def get(self, ids: Collection[str]) -> dict[str, Document]:
        """As `Client.get`."""
        return await self._run(self._asking.get(list(ids)))

    async def index(self) -> Reply:
        """As `Client.index`."""
        return await self._run(self._asking.index())

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _run(self, steps: Steps[T]) -> T:
        try:
            request = next(steps)
            while True:
                request = steps.send(await self._send(request))
        except StopIteration as done:
            value: T = done.value
            return value

    async def _send(self, request: Request) -> Reply:
        started, number = time.monotonic(), 0
        while True:
            told, failed = None, None
            try:
                response = await self._http.request(**_arguments(request))
            except _httpx().TransportError as error:
                failed = error
                if not may_repeat(request, error):
                    raise self._failed(error) from error
            else:
                if response.status_code not in AGAIN:
                    return _reply(response)
                told = told_wait(response)
            wait = self._retry.delay(number, told, time.monotonic() - started)
            if wait is None:
                if failed is not None:
                    raise self._failed(failed) from failed
                return _reply(response)
            number += 1
            await asyncio.sleep(wait)


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
        raise error_of(response.status_code, body)
    if not isinstance(body, dict):
        raise Unavailable(f"{response.url} is no bidr server: its answer is not a JSON object", 200)
    return body


def _httpx() -> ModuleType:
    try:
        import httpx
    except ImportError as error:
        raise MissingExtra("bidr.Client", "httpx", "client") from error
    return httpx
