"""Static files of the search page, held in memory."""

import hashlib
from pathlib import Path

from bidr.server.errors import NotFound, make_method_error
from bidr.server.http_messages import Header, Request, Response

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
SECURITY_HEADERS: tuple[Header, ...] = (
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),  # cached by browsers, and revalidated by ETag
)


class StaticFiles:
    """Serves '/' and '/page/NAME' from files read at start; no other file is accessible."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files: dict[str, tuple[bytes, str, bytes]] = {}
        for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
            if path.is_file() and path.suffix in TYPES:
                content = path.read_bytes()
                tag = b'"' + hashlib.sha256(content).hexdigest()[:24].encode() + b'"'
                self._files[f"/page/{path.relative_to(folder).as_posix()}"] = (content, TYPES[path.suffix], tag)
        if "/page/index.html" in self._files:
            self._files["/"] = self._files["/page/index.html"]

    async def __call__(self, request: Request) -> Response:
        """Return a file, or 304 if the client has the same ETag."""
        entry = self._files.get(request.scope["path"])
        if entry is None:
            raise NotFound(
                "no such path",
                given=request.scope["path"],
                expected="a path of this server, such as /v1/search",
                hint="GET /openapi.json lists them",
            )
        if request.scope["method"] not in ("GET", "HEAD"):
            raise make_method_error(request.scope["method"], "GET, HEAD")
        content, content_type, tag = entry
        headers = (*SECURITY_HEADERS, (b"etag", tag))
        if request.headers.get(b"if-none-match") == tag:
            return Response(b"", 304, content_type, headers)
        return Response(content, 200, content_type, headers)
