"""Frames of JSON and bytes between workers and the writer process, over a Unix socket."""

import asyncio
import struct
from typing import Any

import orjson

from bidr.server import errors

SOCKET_NAME = "writer.sock"
HEADER = struct.Struct("<II")
MAX_FRAME_BYTES = 1 << 30
ERROR_CLASSES: dict[str, type[errors.HTTPError]] = {
    value.kind: value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, errors.HTTPError)
}
Frame = tuple[dict[str, Any], bytes]


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    """Read the next frame; raises IncompleteReadError at the end of the stream."""
    message_size, payload_size = HEADER.unpack(await reader.readexactly(HEADER.size))
    if message_size + payload_size > MAX_FRAME_BYTES:
        raise ConnectionError(f"a frame of {message_size + payload_size} bytes")
    message = orjson.loads(await reader.readexactly(message_size))
    return message, await reader.readexactly(payload_size) if payload_size else b""


def write_frame(writer: asyncio.StreamWriter, message: dict[str, Any], payload: bytes = b"") -> None:
    """Write a frame into the buffer of the stream."""
    content = orjson.dumps(message)
    writer.write(HEADER.pack(len(content), len(payload)) + content)
    if payload:
        writer.write(payload)


def encode_error(error: errors.HTTPError) -> dict[str, Any]:
    """Convert an error to JSON values."""
    return {
        "kind": error.kind,
        "message": error.message,
        "given": error.given,
        "expected": error.expected,
        "hint": error.hint,
        "retry_after": getattr(error, "retry_after", None),
    }


def decode_error(fields: dict[str, Any]) -> errors.HTTPError:
    """Rebuild an error from `encode_error`."""
    error_class, message, retry_after = ERROR_CLASSES[fields["kind"]], fields["message"], fields["retry_after"]
    details = {name: fields[name] for name in ("given", "expected", "hint")}
    if issubclass(error_class, errors.Overloaded):
        return error_class(retry_after or 1.0, message, **details)
    return error_class(message, **details)
