"""Client and AsyncClient: the same operations with synchronous and asynchronous I/O."""

import asyncio
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Mapping, Sequence
from types import ModuleType, TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

import numpy.typing as npt

from bidr.client.requests import Reply, RequestBuilder, RequestSteps, SearchParams, address_index
from bidr.client.retry import Retry
from bidr.client.transport import make_attempts
from bidr.data.types import Document, DocumentPage, to_python_scalar
from bidr.errors import ConfigError, MissingExtraError
from bidr.search.types import QueryVectors, SearchOptions, SearchResult, Texts
from bidr.utils.array_types import Floats
from bidr.utils.deprecation import DeprecatedAlias

T = TypeVar("T")
URL, TIMEOUT = "http://127.0.0.1:8000", 15.0


class _BaseClient:
    """Parameters of both clients.

    url:        address of `bidr serve`.
    key:        read or write key, if the server has keys.
    index:      name of one of several indexes of the server; None: the first.
    candidates: default number of candidates of a search; None: the default of the server.
    lexical, lexical_weight: default of a search; None: as the served model recommends.
    timeout:    seconds for one attempt; retries: see `Retry`.
    options:    further arguments of httpx.Client, such as `verify` or `limits`.
    """

    def __init__(
        self,
        url: str = URL,
        key: str | None = None,
        *,
        index: str | None = None,
        candidates: int | None = None,
        lexical: int | None = None,
        lexical_weight: float | None = None,
        timeout: float = TIMEOUT,
        retry: Retry | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise ConfigError(f"url: given {url!r}, expected one such as {URL}; a folder is opened by bidr.open_index")
        self.url, self._retry, self._builder = url.rstrip("/"), retry or Retry(), RequestBuilder()
        self.index_name = index
        self.candidates, self.lexical, self.lexical_weight = candidates, lexical, lexical_weight
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._http_options: dict[str, Any] = {"base_url": self.url, "timeout": timeout, "headers": headers, **options}

    def load_results(self, results: list[SearchResult]) -> list[SearchResult]:
        """Return the results unchanged; counterpart of `Searcher.load_results`."""
        return results

    answers = DeprecatedAlias("Client.answers", "load_results")

    def _make_params(self, k: int, candidates: int | None, options: SearchOptions) -> SearchParams:
        defaults = SearchParams(k, self.candidates, lexical=self.lexical, lexical_weight=self.lexical_weight)
        overrides: dict[str, Any] = {"candidates": candidates, **options}
        params = defaults._replace(**{name: value for name, value in overrides.items() if value is not None})
        return SearchParams(*map(to_python_scalar, params))


class Client(_BaseClient):
    """Client of a served index. Use it in a `with` block; threads may share one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._http = _import_httpx().Client(**self._http_options)
        # An unclosed client would leave connections, and warnings when the interpreter exits.
        self._close = weakref.finalize(self, self._http.close)

    __init__.__doc__ = _BaseClient.__doc__

    @overload
    def search(
        self, query: str, k: int = 10, candidates: int | None = None, **options: Unpack[SearchOptions]
    ) -> SearchResult: ...

    @overload
    def search(
        self, query: Texts, k: int = 10, candidates: int | None = None, **options: Unpack[SearchOptions]
    ) -> list[SearchResult]: ...

    def search(
        self, query: str | Texts, k: int = 10, candidates: int | None = None, **options: Unpack[SearchOptions]
    ) -> SearchResult | list[SearchResult]:
        """Return the best k documents for a query text, or for each of many; options: see `SearchOptions`."""
        texts = [query] if isinstance(query, str) else query
        results = self._run(self._builder.search_texts(texts, self._make_params(k, candidates, options)))
        return results[0] if isinstance(query, str) else results

    def search_vectors(
        self,
        queries: QueryVectors | npt.ArrayLike,
        k: int = 10,
        candidates: int | None = None,
        **options: Unpack[SearchOptions],
    ) -> list[SearchResult]:
        """Return the best k documents for each query vector; options: see `SearchOptions`."""
        return self._run(self._builder.search_vectors(queries, self._make_params(k, candidates, options)))

    def search_reranked(
        self,
        query: str,
        k: int = 10,
        candidates: int | None = None,
        *,
        rerank: int = 50,
        **options: Unpack[SearchOptions],
    ) -> SearchResult:
        """Return the best k documents for a text, the best `rerank` hits ordered by the server's cross-encoder."""
        params = self._make_params(k, candidates, options)._replace(rerank=rerank)
        return self._run(self._builder.search_texts([query], params))[0]

    def more_like(
        self, ids: str | Collection[str], k: int = 10, candidates: int | None = None, **options: Unpack[SearchOptions]
    ) -> SearchResult:
        """Return the documents most like one document, or like the mean of several, without these."""
        names = [ids] if isinstance(ids, str) else ids
        return self._run(self._builder.more_like(names, self._make_params(k, candidates, options)))

    def add(self, documents: Sequence[Document], vectors: Floats | None = None, *, replace: bool = True) -> int:
        """Add documents and return their number; existing ids are replaced, or refused with replace=False."""
        return self._run(self._builder.add(documents, vectors, replace))

    def delete(self, ids: Collection[str], *, missing_ok: bool = False) -> int:
        """Delete documents by id and return their number."""
        return self._run(self._builder.delete(ids, missing_ok))

    def delete_where(self, filter: Any) -> int:
        """Delete the documents that match a filter, in one commit; return how many."""
        return self._run(self._builder.delete_where(filter))

    def set_attributes(self, changes: Mapping[str, Mapping[str, Any]], *, missing_ok: bool = False) -> int:
        """Change attributes by id, such as {"doc-1": {"price": 3, "stock": None}}; None removes one."""
        return self._run(self._builder.set_attributes(changes, missing_ok))

    def set_attributes_where(self, filter: Any, values: Mapping[str, Any]) -> int:
        """Change attributes of the documents that match a filter; return how many."""
        return self._run(self._builder.set_attributes_where(filter, values))

    def count(self, filter: Any = None) -> int:
        """Count the documents, or those that match a filter."""
        return self._run(self._builder.count(filter))

    def list_documents(
        self, filter: Any = None, limit: int | None = None, cursor: str | None = None, *, text: bool = True
    ) -> DocumentPage:
        """List documents without a query, page by page (see `OpenIndex.list_documents`)."""
        return self._run(self._builder.list_documents(filter, limit, cursor, text))

    def scroll(self, filter: Any = None, *, text: bool = True) -> Iterator[Document]:
        """Iterate over all documents, or those that match a filter, in constant memory."""
        cursor: str | None = None
        while True:
            page = self.list_documents(filter, None, cursor, text=text)
            yield from page.documents
            if (cursor := page.cursor) is None:
                return

    def get(self, ids: Collection[str]) -> dict[str, Document]:
        """Return documents by id, without those that do not exist."""
        return self._run(self._builder.get(ids))

    def index(self) -> Reply:
        """Describe the served index: documents, RAM, disk, model, limits."""
        return self._run(self._builder.index())

    def indexes(self) -> list[dict[str, Any]]:
        """List the named indexes of the server."""
        return self._run(self._builder.indexes())

    def create_index(self, name: str, dim: int, **options: Any) -> None:
        """Create an index without documents, on a server with --root.

        Args:
            name: its name.
            dim: dimensions of its vectors.
            **options: metric, bytes_per_doc, codewords and fit_documents (see `bidr.create_index`).
        """
        self._run(self._builder.create_index(name, {"dim": dim, **options}))

    def drop_index(self, name: str) -> None:
        """Drop an index that was created over HTTP."""
        self._run(self._builder.drop_index(name))

    def schema(self) -> list[dict[str, Any]]:
        """Describe the attributes: name, type, number of documents, examples or range."""
        return self._run(self._builder.schema())

    def close(self) -> None:
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _run(self, steps: RequestSteps[T]) -> T:
        transport_error, attempts = (
            _import_httpx().TransportError,
            make_attempts(address_index(steps, self.index_name), self._retry, self.url),
        )
        try:
            attempt = next(attempts)
            while True:
                if attempt.wait:
                    time.sleep(attempt.wait)
                try:
                    outcome = self._http.request(**attempt.arguments)
                except transport_error as error:
                    outcome = error
                attempt = attempts.send(outcome)
        except StopIteration as done:
            value: T = done.value
            return value


class AsyncClient(_BaseClient):
    """Asynchronous client of a served index. Use it in an `async with` block."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._http = _import_httpx().AsyncClient(**self._http_options)
        self._closer: AsyncGenerator[None, None] | None = None
        self._closed = False

    __init__.__doc__ = _BaseClient.__doc__

    @overload
    async def search(
        self, query: str, k: int = 10, candidates: int | None = None, **options: Unpack[SearchOptions]
    ) -> SearchResult: ...

    @overload
    async def search(
        self, query: Texts, k: int = 10, candidates: int | None = None, **options: Unpack[SearchOptions]
    ) -> list[SearchResult]: ...

    async def search(
        self, query: str | Texts, k: int = 10, candidates: int | None = None, **options: Unpack[SearchOptions]
    ) -> SearchResult | list[SearchResult]:
        """As `Client.search`."""
        texts = [query] if isinstance(query, str) else query
        results = await self._run(self._builder.search_texts(texts, self._make_params(k, candidates, options)))
        return results[0] if isinstance(query, str) else results

    async def search_vectors(
        self,
        queries: QueryVectors | npt.ArrayLike,
        k: int = 10,
        candidates: int | None = None,
        **options: Unpack[SearchOptions],
    ) -> list[SearchResult]:
        """As `Client.search_vectors`."""
        return await self._run(self._builder.search_vectors(queries, self._make_params(k, candidates, options)))

    async def search_reranked(
        self,
        query: str,
        k: int = 10,
        candidates: int | None = None,
        *,
        rerank: int = 50,
        **options: Unpack[SearchOptions],
    ) -> SearchResult:
        """As `Client.search_reranked`."""
        params = self._make_params(k, candidates, options)._replace(rerank=rerank)
        return (await self._run(self._builder.search_texts([query], params)))[0]

    async def more_like(
        self, ids: str | Collection[str], k: int = 10, candidates: int | None = None, **options: Unpack[SearchOptions]
    ) -> SearchResult:
        """As `Client.more_like`."""
        names = [ids] if isinstance(ids, str) else ids
        return await self._run(self._builder.more_like(names, self._make_params(k, candidates, options)))

    async def add(self, documents: Sequence[Document], vectors: Floats | None = None, *, replace: bool = True) -> int:
        """As `Client.add`."""
        return await self._run(self._builder.add(documents, vectors, replace))

    async def delete(self, ids: Collection[str], *, missing_ok: bool = False) -> int:
        """As `Client.delete`."""
        return await self._run(self._builder.delete(ids, missing_ok))

    async def delete_where(self, filter: Any) -> int:
        """As `Client.delete_where`."""
        return await self._run(self._builder.delete_where(filter))

    async def set_attributes(self, changes: Mapping[str, Mapping[str, Any]], *, missing_ok: bool = False) -> int:
        """As `Client.set_attributes`."""
        return await self._run(self._builder.set_attributes(changes, missing_ok))

    async def set_attributes_where(self, filter: Any, values: Mapping[str, Any]) -> int:
        """As `Client.set_attributes_where`."""
        return await self._run(self._builder.set_attributes_where(filter, values))

    async def count(self, filter: Any = None) -> int:
        """As `Client.count`."""
        return await self._run(self._builder.count(filter))

    async def list_documents(
        self, filter: Any = None, limit: int | None = None, cursor: str | None = None, *, text: bool = True
    ) -> DocumentPage:
        """As `Client.list_documents`."""
        return await self._run(self._builder.list_documents(filter, limit, cursor, text))

    async def scroll(self, filter: Any = None, *, text: bool = True) -> AsyncIterator[Document]:
        """As `Client.scroll`."""
        cursor: str | None = None
        while True:
            page = await self.list_documents(filter, None, cursor, text=text)
            for document in page.documents:
                yield document
            if (cursor := page.cursor) is None:
                return

    async def get(self, ids: Collection[str]) -> dict[str, Document]:
        """As `Client.get`."""
        return await self._run(self._builder.get(ids))

    async def index(self) -> Reply:
        """As `Client.index`."""
        return await self._run(self._builder.index())

    async def indexes(self) -> list[dict[str, Any]]:
        """As `Client.indexes`."""
        return await self._run(self._builder.indexes())

    async def create_index(self, name: str, dim: int, **options: Any) -> None:
        """As `Client.create_index`."""
        await self._run(self._builder.create_index(name, {"dim": dim, **options}))

    async def drop_index(self, name: str) -> None:
        """As `Client.drop_index`."""
        await self._run(self._builder.drop_index(name))

    async def schema(self) -> list[dict[str, Any]]:
        """As `Client.schema`."""
        return await self._run(self._builder.schema())

    async def close(self) -> None:
        self._closed = True
        if self._closer is not None:
            await self._closer.aclose()
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _open(self) -> None:
        """Open connections of this event loop; they are closed with it at the latest."""
        if self._http.is_closed and not self._closed:  # closed with the loop of an earlier asyncio.run
            self._http, self._closer = _import_httpx().AsyncClient(**self._http_options), None
        if self._closer is None:
            self._closer = _close_with_loop(self._http)
            await anext(self._closer)

    async def _run(self, steps: RequestSteps[T]) -> T:
        await self._open()
        transport_error, attempts = (
            _import_httpx().TransportError,
            make_attempts(address_index(steps, self.index_name), self._retry, self.url),
        )
        try:
            attempt = next(attempts)
            while True:
                if attempt.wait:
                    await asyncio.sleep(attempt.wait)
                try:
                    outcome = await self._http.request(**attempt.arguments)
                except transport_error as error:
                    outcome = error
                attempt = attempts.send(outcome)
        except StopIteration as done:
            value: T = done.value
            return value


async def _close_with_loop(http: Any) -> AsyncGenerator[None, None]:
    """Close a client when the event loop ends, which closes its unfinished asynchronous generators."""
    try:
        yield
    finally:
        await http.aclose()


def _import_httpx() -> ModuleType:
    try:
        import httpx
    except ImportError as error:
        raise MissingExtraError("bidr.Client", "httpx", "client") from error
    return httpx
