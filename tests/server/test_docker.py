"""What the docs say of Docker, as far as it can be tried without: the health check, flags, what goes into an image."""

import json
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from bidr.server.config import READ_KEY, WRITE_KEY

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "how-to" / "deploy.md").read_text()


@pytest.fixture(scope="module")
def dockerfile():
    """The one in the docs, instruction by instruction."""
    block = DOCS[DOCS.index("    FROM python") : DOCS.index("    docker build")]
    lines = re.sub(r"\\\n\s*", "", re.sub(r"^    ", "", block, flags=re.MULTILINE)).splitlines()
    return [tuple(line.split(" ", 1)) for line in lines if line]


def test_the_containerfile_is_that_of_the_docs():
    block = DOCS[DOCS.index("    FROM python") : DOCS.index("    docker build")]
    assert (ROOT / "Containerfile").read_text().strip() == re.sub(r"^    ", "", block, flags=re.MULTILINE).strip()


def said(dockerfile, name):
    (found,) = [rest for instruction, rest in dockerfile if instruction == name]
    return found


def health(dockerfile, port):
    """What Docker would run, with the port of a server that is there."""
    command = json.loads(said(dockerfile, "HEALTHCHECK").partition("CMD ")[2])
    assert command[0] == "python"
    changed = [each.replace("8000", str(port)) for each in command[1:]]
    assert changed != command[1:]
    proxy = {"http_proxy": "http://127.0.0.1:9", "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, *changed], check=False, capture_output=True, timeout=120, env=proxy
    ).returncode


def test_the_health_check_tells_a_server_that_answers_from_one_that_does_not(dockerfile, server):
    assert health(dockerfile, server.url.rpartition(":")[2]) == 0
    assert health(dockerfile, 9) != 0


def test_what_an_image_needs_is_let_in_and_nothing_else():
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    let_in = {line[1:] for line in lines if line.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    needed = {
        "pyproject.toml",
        "constraints.txt",
        project["project"]["readme"],
        *(name.split("/")[0] for name in packages),
    }
    assert needed <= let_in <= needed | {"LICENSE"}
    assert all((ROOT / name).exists() for name in let_in)
    assert any(fnmatch("src/bidr/__pycache__", line.replace("**/", "*/")) for line in lines)


def test_its_lines_fit_the_project(dockerfile):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    least = project["requires-python"].removeprefix(">=")
    assert said(dockerfile, "FROM") == f"python:{least}-slim"
    (extras,) = re.findall(r"/opt/bidr\[(.*?)\]'", said(dockerfile, "RUN"))
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    command, verb, *_ = json.loads(said(dockerfile, "ENTRYPOINT"))
    assert command in project["scripts"]
    shown = subprocess.run(
        [sys.executable, "-m", "bidr", verb, "--help-all"], capture_output=True, text=True, timeout=240, check=True
    )
    used = re.findall(r"(?<= )--(?:host|workers|model|encoding\.cache|writable|port|drain)\b", DOCS)
    assert used
    assert all(flag in shown.stdout for flag in used)
    for key in (READ_KEY, WRITE_KEY):
        assert f"`{key}=...`" in DOCS
