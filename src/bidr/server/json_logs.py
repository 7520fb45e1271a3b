"""Logs: one JSON object a line on standard error, for machines that read them."""

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
    """Write one line. Nothing of a request's content or keys belongs into it."""
    now = time.time()
    line = {
        "time": f"{_second(int(now))}.{int(now % 1 * 1000):03d}Z",
        "level": level,
        "event": event,
        "pid": os.getpid(),
        **fields,
    }
    # One write, so that lines of several processes do not mix. If whoever read them is gone, requests still are.
    with suppress(OSError, ValueError):
        os.write(sys.stderr.fileno(), dump_json(line, orjson.OPT_APPEND_NEWLINE, str))


@lru_cache(maxsize=1)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


class JsonLogHandler(logging.Handler):
    """Writes records of Python's `logging` as lines of JSON."""

    def emit(self, record: logging.LogRecord) -> None:
        trace = "".join(traceback.format_exception(record.exc_info[1])) if record.exc_info else None
        told = {"trace": trace} if trace else {}
        log("library", record.levelname.lower(), logger=record.name, message=record.getMessage(), **told)


def log_libraries() -> None:
    """Write what libraries log, from warnings on, as lines of JSON too: else Python prints it as it is."""
    logging.getLogger().addHandler(JsonLogHandler(logging.WARNING))


def log_fault(event: str, error: BaseException, **fields: Any) -> None:
    """A fault of the server, with its trace: here and nowhere else."""
    log(event, "error", error=repr(error), trace="".join(traceback.format_exception(error)), **fields)
