"""Structured logs: one JSON object per line on standard error."""

import logging
import os
import sys
import time
import traceback
from contextlib import suppress
from functools import lru_cache
from typing import Any

import orjson

from bidr.server.json_encoding import dump_json


def log(event: str, level: str = "info", **fields: Any) -> None:
    """Write one line. Do not log contents of requests or keys."""
    now = time.time()
    line = {
        "time": f"{_format_second(int(now))}.{int(now % 1 * 1000):03d}Z",
        "level": level,
        "event": event,
        "pid": os.getpid(),
        **fields,
    }
    # One write: lines of several processes do not interleave. A closed pipe must not fail requests.
    with suppress(OSError, ValueError):
        os.write(sys.stderr.fileno(), dump_json(line, orjson.OPT_APPEND_NEWLINE, str))


@lru_cache(maxsize=1)
def _format_second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


class JsonLogHandler(logging.Handler):
    """Logging handler that writes records as JSON lines."""

    def emit(self, record: logging.LogRecord) -> None:
        trace = "".join(traceback.format_exception(record.exc_info[1])) if record.exc_info else None
        fields = {"trace": trace} if trace else {}
        log("library", record.levelname.lower(), logger=record.name, message=record.getMessage(), **fields)


def log_libraries() -> None:
    """Write warnings and errors of libraries as JSON lines, too."""
    logging.getLogger().addHandler(JsonLogHandler(logging.WARNING))


def log_fault(event: str, error: BaseException, **fields: Any) -> None:
    """Log an unexpected exception with its traceback."""
    log(event, "error", error=repr(error), trace="".join(traceback.format_exception(error)), **fields)
