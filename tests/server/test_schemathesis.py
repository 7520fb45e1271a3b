"""A fuzzer reads the OpenAPI document and tries what it allows, and what it does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sample_server import DIM


def fuzz(server, *flags: str) -> None:
    hooks = {
        "SCHEMATHESIS_HOOKS": "fuzz_hooks",
        "FUZZED_DIM": str(DIM),
        "PYTHONPATH": str(Path(__file__).parents[1] / "helpers"),
    }
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{server.url}/openapi.json", "--no-color"]
    done = subprocess.run(
        [*command, *flags],
        cwd=server.log.parent,
        env={**os.environ, **hooks},
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert not server.events("fault")


def test_nothing_is_found(server):
    fuzz(server, "--phases=examples,fuzzing", "--max-examples=6", "--seed=1")


@pytest.mark.slow
def test_nothing_is_found_in_a_long_search(server):
    fuzz(server, "--max-examples=300")
