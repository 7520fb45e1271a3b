"""Several indexes in one server: their routes, and handlers of /v1/indexes that list, create and drop them.

Named indexes are given when the server starts, or are the folders of --root. Every worker looks into that folder when
it refreshes, so it follows what the writer process creates and drops, and what other programs put there.
"""

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from bidr.errors import BidrError, to_short_json
from bidr.index.storage.manifest import CURRENT, read_current
from bidr.quantization.opq_config import PlainCodes
from bidr.server.config import ServerConfig
from bidr.server.errors import Forbidden, IndexConflict, InvalidRequest, NotFound
from bidr.server.http_messages import JSON, Request, Response, make_json_response
from bidr.server.index_holder import IndexHolder, describe_index
from bidr.server.json_logs import log
from bidr.server.search_request import check_int, parse_object
from bidr.server.writer_client import WriterClient

if TYPE_CHECKING:
    from bidr.server.app import SearchService

INDEX_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
PREFIX = "/v1/indexes"
FIELDS = ("dim", "metric", "bytes_per_doc", "codewords", "fit_documents")
MAX_DIM, MAX_FIT_DOCUMENTS = 1 << 14, 1_000_000
OpenHolder = Callable[[Path], IndexHolder]
Handler = Callable[[Request], Awaitable[Response]]


def list_folders(config: ServerConfig) -> dict[str, Path]:
    """Return the folders of all named indexes: those that were given, and those in the root folder."""
    folders = dict(config.indexes)
    for path in sorted(config.root.iterdir()) if config.root is not None and config.root.is_dir() else ():
        if INDEX_NAME.fullmatch(path.name) and (path / CURRENT).exists():
            folders.setdefault(path.name, path)
    return folders


class NamedWriter(WriterClient):
    """Submits the jobs of one index through the connection of the worker."""

    def __init__(self, writer: WriterClient, name: str) -> None:
        self._shared, self._name = writer, name

    async def submit(self, job: dict[str, Any], payload: bytes = b"") -> dict[str, Any]:
        return await self._shared.submit(job | {"index": self._name}, payload)


class IndexTable:
    """The named indexes of a worker."""

    def __init__(self, service: "SearchService", open_holder: OpenHolder) -> None:
        self._service, self._open_holder, self.config = service, open_holder, service.config
        self.services: dict[str, SearchService] = {}
        self._failed: dict[str, tuple[str, str]] = {}

    def refresh(self) -> bool:
        """Open and close indexes as they come and go, and refresh the open ones; return whether any came or went."""
        folders = list_folders(self.config)
        gone = self.services.keys() - folders
        for name in gone:
            service = self.services.pop(name)
            if service.holder is not self._service.holder:
                service.holder.close()
        opened = [name for name in folders.keys() - self.services if self._open(name, folders[name])]
        for service in list(self.services.values()):
            if service.holder is not self._service.holder:
                service.holder.refresh()
        return bool(gone or opened)

    def _open(self, name: str, folder: Path) -> bool:
        """Open an index; one that failed is tried again when it has another state."""
        current = None
        try:
            current = read_current(folder)
            if self._failed.get(name) == current:
                return False
            is_default = folder.resolve() == self._service.holder.folder.resolve()
            holder = self._service.holder if is_default else self._open_holder(folder)
        except (BidrError, OSError) as error:
            if current is not None:
                self._failed[name] = current
            log("not_opened", "warning", index=str(folder), why=str(error))
            return False
        self._failed.pop(name, None)
        writer = None if self._service.writer is None else NamedWriter(self._service.writer, name)
        self.services[name] = self._service.attach(holder, writer)
        return True

    def close(self) -> None:
        for service in self.services.values():
            if service.holder is not self._service.holder:
                service.holder.close()


class IndexEndpoint:
    """Handlers of /v1/indexes and /v1/indexes/NAME."""

    def __init__(self, service: "SearchService") -> None:
        self._service = service

    @property
    def _services(self) -> "dict[str, SearchService]":
        table = self._service.table
        return {} if table is None else table.services

    async def list_indexes(self, request: Request) -> Response:
        """Handle GET /v1/indexes."""
        return make_json_response(
            {
                "indexes": [
                    {
                        "name": name,
                        "documents": service.holder.current.view.count,
                        "dim": service.holder.current.dim,
                        "default": service.holder is self._service.holder,
                    }
                    for name, service in sorted(self._services.items())
                ]
            }
        )

    async def describe(self, request: Request) -> Response:
        """Handle GET /v1/indexes/NAME."""
        service = self._find(request)
        return make_json_response(describe_index(service.holder, asdict(service.limits)))

    async def create(self, request: Request) -> Response:
        """Handle PUT /v1/indexes/NAME: an index without documents."""
        writer = self._require_root()
        name = self._parse_name(request)
        if not INDEX_NAME.fullmatch(name):
            raise InvalidRequest(
                "invalid name of an index",
                given=to_short_json(name),
                expected="1 to 64 letters, digits, dots, hyphens and underscores, the first a letter or digit",
                hint="choose another name",
            )
        body = parse_object(await request.read_body(JSON), FIELDS)
        options = {"dim": check_int(body.get("dim"), "dim", MAX_DIM)}
        for field, maximum in (("bytes_per_doc", MAX_DIM), ("fit_documents", MAX_FIT_DOCUMENTS)):
            if body.get(field) is not None:
                options[field] = check_int(body[field], field, maximum)
        for field, choices in (("metric", ("cosine", "ip")), ("codewords", (16, 256))):
            if (value := body.get(field)) is not None:
                if isinstance(value, bool) or value not in choices:
                    raise InvalidRequest(
                        f"invalid value of {field}",
                        given=to_short_json(value),
                        expected=" or ".join(map(str, choices)),
                        hint="leave it out for the default",
                    )
                options[field] = int(value) if field == "codewords" else value
        _check_codes(options)
        if name in self._services:
            raise _make_exists_error(name)
        return make_json_response(await writer.submit({"op": "create_index", "index": name, "options": options}))

    async def drop(self, request: Request) -> Response:
        """Handle DELETE /v1/indexes/NAME."""
        writer = self._require_root()
        service, name = self._find(request), self._parse_name(request)
        if name in self._service.config.indexes or service.holder is self._service.holder:
            raise IndexConflict(
                "this index was given when the server started",
                given=name,
                expected="an index that was created in the root folder",
                hint="stop the server, and remove the folder",
            )
        return make_json_response(await writer.submit({"op": "drop_index", "index": name}))

    def _parse_name(self, request: Request) -> str:
        return unquote(str(request.scope["path"]).removeprefix(PREFIX + "/"))

    def _find(self, request: Request) -> "SearchService":
        name = self._parse_name(request)
        if name not in self._services:
            raise NotFound(
                "no such index or path",
                given=name,
                expected=", ".join(sorted(self._services)[:10]) or "no named index is served",
                hint="GET /v1/indexes lists them",
            )
        return self._services[name]

    def _require_root(self) -> WriterClient:
        if self._service.writer is None or self._service.config.root is None:
            raise Forbidden(
                "this server creates and drops no indexes",
                given="a request to create or drop one",
                expected="searches, and documents of the indexes that it has",
                hint="whoever runs it can start it with --writable and --root FOLDER",
            )
        return self._service.writer


def _check_codes(options: dict[str, Any]) -> None:
    """Refuse sizes of codes that the dimensions do not allow, and too few documents to fit them to."""
    codewords = options.get("codewords", 16)
    sizes = PlainCodes(codewords=codewords).list_sizes(options["dim"])
    if not sizes or options.get("bytes_per_doc", sizes[0]) not in sizes:
        raise InvalidRequest(
            "the codes do not divide the dimensions",
            given=f"{options.get('bytes_per_doc', 'codes')} of {codewords} codewords for {options['dim']} dimensions",
            expected=f"bytes_per_doc of {', '.join(map(str, sizes[:20]))}" if sizes else "256 codewords",
            hint="leave bytes_per_doc out for the default" if sizes else 'send "codewords": 256',
        )
    if options.get("fit_documents", codewords) < codewords:
        raise InvalidRequest(
            "fit_documents is below the number of codewords",
            given=options["fit_documents"],
            expected=f"{codewords} or more",
            hint="leave it out for the default",
        )


def _make_exists_error(name: str) -> IndexConflict:
    return IndexConflict(
        "there is an index of this name", given=name, expected="another name", hint="drop it first, or choose another"
    )


def name_index(folder: Path, used_names: Iterable[str] = ()) -> str | None:
    """Return a name for a folder that was given without one; None if its own is not valid or used."""
    from bidr.server.index_holder import format_name

    name = format_name(folder.resolve())
    return name if INDEX_NAME.fullmatch(name) and name not in used_names else None
