"""One peer in a process of its own: asked by a file, answering in lines of JSON."""

import json
import os
import subprocess
import tempfile
import textwrap
from pathlib import Path
from typing import Any

from bidr.errors import BidrError

HARNESS = Path(__file__).parent / "peers" / "harness.py"
LONGEST = 300
THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "LANCE_CPU_THREADS",
)


class PeerError(BidrError):
    """A peer could not be built or searched; the run goes on, and its row says why."""


def ask(python: str, request: dict[str, Any], seconds: float) -> list[dict[str, Any]]:
    """What the harness says to a request, in the order it says it."""
    with tempfile.TemporaryDirectory(prefix="bidr-bench-") as folder:
        path = Path(folder) / "request.json"
        path.write_text(json.dumps(request), encoding="utf-8")
        command = [python, str(HARNESS), str(path)]
        try:
            done = subprocess.run(
                command, env=_environment(request), capture_output=True, text=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            raise PeerError(
                f"not done with {request['phase']} after {seconds:.0f} s; allow more with --limit"
            ) from None
        except OSError as error:
            raise PeerError(f"{python} cannot be run ({error.strerror}); see --peer-python") from error
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if lines and lines[-1]["event"] == "error":
        raise PeerError(textwrap.shorten(lines[-1]["error"], LONGEST, placeholder=" ..."))
    if done.returncode:
        raise PeerError(_ended(done.returncode, done.stderr))
    return lines


def _environment(request: dict[str, Any]) -> dict[str, str]:
    """One thread for what is searched; bidr can be imported wherever its few needs are there."""
    environment = dict(os.environ)
    source = str(Path(__file__).parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [source, environment.get("PYTHONPATH")]))
    threads = request["settings"]["threads"] if request["phase"] == "build" else 1
    environment.update(dict.fromkeys(THREADS, str(threads)))
    return environment


def _ended(code: int, told: str) -> str:
    last = next((line.strip() for line in reversed(told.splitlines()) if line.strip()), "it said nothing")
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return f"the process ended ({how}): {last}"
