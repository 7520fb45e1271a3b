"""How workers and the writer talk: frames of JSON and bytes over a socket in the server's own folder."""

import asyncio
import struct
from typing import Any

import orjson

from bidr.server import errors

SOCKET = "writer.sock"
HEAD = struct.Struct("<II")
LONGEST = 1 << 30
KINDS: dict[str, type[errors.HTTPError]] = {
    kind.kind: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.HTTPError)
}
Frame = tuple[dict[str, Any], bytes]


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    """The next frame; IncompleteReadError at the end."""
    size, more = HEAD.unpack(await reader.readexactly(HEAD.size))
    if size + more > LONGEST:
        raise ConnectionError(f"a frame of {size + more} bytes")
    about = orjson.loads(await reader.readexactly(size))
    return about, await reader.readexactly(more) if more else b""


def write_frame(writer: asyncio.StreamWriter, about: dict[str, Any], more: bytes = b"") -> None:
    """Put a frame on its way."""
    words = orjson.dumps(about)
    writer.write(HEAD.pack(len(words), len(more)) + words)
    if more:
        writer.write(more)


def encode_error(error: errors.HTTPError) -> dict[str, Any]:
    """An error for the other side."""
    after = getattr(error, "retry_after", None)
    return {
        "kind": error.kind,
        "message": error.message,
        "given": error.given,
        "expected": error.expected,
        "hint": error.hint,
        "retry_after": after,
    }


def decode_error(fields: dict[str, Any]) -> errors.HTTPError:
    """The error that the other side met."""
    kind, message, after = KINDS[fields["kind"]], fields["message"], fields["retry_after"]
    told = {name: fields[name] for name in ("given", "expected", "hint")}
    if issubclass(kind, errors.Overloaded):
        return kind(after or 1.0, message, **told)
    return kind(message, **told)
