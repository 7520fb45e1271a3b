"""The search page: a few files, read once, that need no other host."""

import hashlib
from pathlib import Path

from bidr.server.asgi import Header, Request, Response
from bidr.server.errors import NotFound, make_method_error

FOLDER = Path(__file__).with_name("page")
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".json": "application/json",
}
SAFE: tuple[Header, ...] = (
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),  # kept, and asked for again by its tag
)


class StaticFiles:
    """Files of the page by path: '/' and '/page/NAME'. No other file can be asked for."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files: dict[str, tuple[bytes, str, bytes]] = {}
        for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
            if path.is_file() and path.suffix in TYPES:
                content = path.read_bytes()
                tag = b'"' + hashlib.sha256(content).hexdigest()[:24].encode() + b'"'
                self._files[f"/page/{path.relative_to(folder).as_posix()}"] = (content, TYPES[path.suffix], tag)
        if "/page/index.html" in self._files:
            self._files["/"] = self._files["/page/index.html"]

    async def __call__(self, call: Request) -> Response:
        """A file; 304 where the client has it already."""
        found = self._files.get(call.scope["path"])
        if found is None:
            raise NotFound(
                "no such path",
                given=call.scope["path"],
                expected="a path of this server, such as /v1/search",
                hint="GET /openapi.json lists them",
            )
        if call.scope["method"] not in ("GET", "HEAD"):
            raise make_method_error(call.scope["method"], "GET, HEAD")
        content, kind, tag = found
        headers = (*SAFE, (b"etag", tag))
        if call.headers.get(b"if-none-match") == tag:
            return Response(b"", 304, kind, headers)
        return Response(content, 200, kind, headers)
