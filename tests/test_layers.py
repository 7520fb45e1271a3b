"""The layers of CONTRIBUTING.md, which `lint-imports` checks with the contracts of pyproject.toml."""

import tomllib
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parent.parent
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
LAYERS = [set(layer.split(" : ")) for layer in CONTRACTS[0]["layers"]]


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("bidr", exclude_type_checking_imports=True)


def test_imports_inside_functions_are_counted(graph: grimp.ImportGraph) -> None:
    source = (ROOT / "src/bidr/cli/snapshot.py").read_text()
    assert "        from bidr.pipeline.maintenance import" in source
    assert graph.direct_import_exists(importer="bidr.cli.snapshot", imported="bidr.pipeline.maintenance")


def test_every_package_has_a_layer(graph: grimp.ImportGraph) -> None:
    entry_points = {"bidr.__main__", "bidr._old_names", "bidr._version"}
    assert graph.find_children("bidr") - entry_points == {package for layer in LAYERS for package in layer}
