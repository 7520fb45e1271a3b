"""The public names of the package, and those of version 0.1 that are elsewhere now."""

import subprocess
import sys
from importlib import import_module

import pytest

import bidr
from bidr._old_names import MOVED


def test_every_public_name_loads_and_is_listed():
    for name in bidr.__all__:
        assert getattr(bidr, name) is not None
    assert set(bidr.__all__) <= set(dir(bidr))
    with pytest.raises(AttributeError):
        bidr.nothing  # noqa: B018


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in MOVED.items() for name in names])
def test_names_of_version_0_1_load_with_a_warning(module, name):
    with pytest.warns(DeprecationWarning, match="is now"):
        assert getattr(import_module(module), name) is not None


@pytest.mark.parametrize("name", ["MissingExtra", "OutOfTime", "Stopped"])
def test_errors_of_version_0_1_load_with_a_warning(name):
    with pytest.warns(DeprecationWarning, match="is now"):
        assert issubclass(getattr(import_module("bidr.errors"), name), bidr.errors.BidrError)


def test_the_client_alone_loads_neither_torch_nor_numba_nor_an_index():
    code = """
import bidr, sys
bidr.Client
loaded = set(sys.modules)
assert not {"torch", "numba", "faiss"} & loaded
assert not any(name.startswith(("bidr.index", "bidr.training", "bidr.models")) for name in loaded), loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True)
