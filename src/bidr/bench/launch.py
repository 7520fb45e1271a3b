"""Run a peer in a process of its own, which reads a request file and prints lines of JSON."""

import json
import os
import signal
import subprocess
import tempfile
import textwrap
from pathlib import Path
from typing import Any

from bidr.errors import BidrError

HARNESS = Path(__file__).parent / "peers" / "harness.py"
MAX_ERROR_CHARS = 300
# Threads of one call, and threads that all callers of a library share.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
POOL_VARIABLES = ("RAYON_NUM_THREADS", "LANCE_CPU_THREADS")


class PeerError(BidrError):
    """A peer could not be built or searched; the run continues, and its row has the reason."""


class MemoryExceededError(PeerError):
    """The kernel killed a peer, which it does when memory runs out."""


def run_harness(python: str, request: dict[str, Any], seconds: float, pool_threads: int = 1) -> list[dict[str, Any]]:
    """Run the harness on a request and return its lines.

    pool_threads: threads that the callers of a library share while searching; several callers need several.
    """
    with tempfile.TemporaryDirectory(prefix="bidr-bench-") as folder:
        path = Path(folder) / "request.json"
        path.write_text(json.dumps(request), encoding="utf-8")
        command = [python, str(HARNESS), str(path)]
        try:
            process = subprocess.run(
                command,
                env=_make_environment(request, pool_threads),
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PeerError(
                f"not done with {request['phase']} after {seconds:.0f} s; allow more with --limit"
            ) from None
        except OSError as error:
            raise PeerError(f"{python} cannot be run ({error.strerror}); see --peer-python") from error
    lines = [json.loads(line) for line in process.stdout.splitlines()]
    if lines and lines[-1]["event"] == "error":
        raise PeerError(textwrap.shorten(lines[-1]["error"], MAX_ERROR_CHARS, placeholder=" ..."))
    if process.returncode:
        kind = MemoryExceededError if process.returncode == -signal.SIGKILL else PeerError
        raise kind(_describe_exit(process.returncode, process.stderr))
    return lines


def _make_environment(request: dict[str, Any], pool_threads: int) -> dict[str, str]:
    """Return the environment: one thread for a search, and bidr on the path."""
    environment = dict(os.environ)
    source = str(Path(__file__).parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [source, environment.get("PYTHONPATH")]))
    threads = request["settings"]["threads"] if request["phase"] == "build" else 1
    environment.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    environment.update(dict.fromkeys(POOL_VARIABLES, str(max(threads, pool_threads))))
    return environment


def _describe_exit(code: int, stderr: str) -> str:
    last = next((line.strip() for line in reversed(stderr.splitlines()) if line.strip()), "it said nothing")
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    how += ", which the kernel sends when memory runs out" if code == -signal.SIGKILL else ""
    return f"the process ended ({how}): {last}"
