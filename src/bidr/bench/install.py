"""Install each peer in a virtual environment that later runs reuse."""

import subprocess
import sys
from pathlib import Path
from shutil import which

from bidr.bench.variants import PACKAGES

# bidr's vector reads need these in the peer's Python, so that ranking is equally fast for all peers.
RANKING = ("numba", "xxhash")
DONE = "installed"
# diskannpy 0.7 has no wheels for a later Python, and pins numpy 1.25.
NEWEST_PYTHON = {"diskann": (3, 11)}


def install(folder: Path, peers: tuple[str, ...]) -> dict[str, str]:
    """Install the packages of peers; return the reason for each that failed."""
    failed: dict[str, str] = {}
    for peer in peers:
        environment = get_python(folder, peer).parents[1]
        marker = environment / DONE
        if peer not in PACKAGES or (marker.exists() and marker.read_text(encoding="utf-8").split() == [*RANKING]):
            continue
        print(f"installing {' '.join(PACKAGES[peer])} into {environment}", file=sys.stderr, flush=True)
        reason = _run([find_interpreter(peer), "-m", "venv", str(environment)])
        pip = [str(get_python(folder, peer)), "-m", "pip", "install", "-q"]
        reason = reason or _run([*pip, "--prefer-binary", *PACKAGES[peer], "numpy"])
        if reason:
            failed[peer] = reason
        else:
            _run([*pip, "--only-binary", ":all:", *RANKING])
            marker.write_text("\n".join(RANKING), encoding="utf-8")
    return failed


def find_interpreter(peer: str) -> str:
    """Find the Python that makes a peer's environment: this one, unless the peer needs an earlier one."""
    newest = NEWEST_PYTHON.get(peer)
    if newest is None or sys.version_info[:2] <= newest:
        return sys.executable
    return which(f"python{newest[0]}.{newest[1]}") or sys.executable


def get_python(folder: Path, peer: str) -> Path:
    """Return the Python interpreter of a peer's environment, which both ways of opening one library share."""
    return folder / peer.removesuffix("-disk") / "bin" / "python"


def _run(command: list[str]) -> str | None:
    """Run a command; return the last line of its error, or None."""
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if not process.returncode:
        return None
    lines = [line for line in (process.stdout + process.stderr).splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no reason given"]
    return f"cannot be installed: {errors[-1]}"
