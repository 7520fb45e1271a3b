"""The public names of the package, and those of version 0.1 that are elsewhere now."""

import subprocess
import sys
from importlib import import_module

import pytest

import bidr
from bidr._old_names import MOVED
from bidr.data.dataset import Corpus
from bidr.index.live.writer import LiveWriter
from bidr.pipeline.open import OpenIndex
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.opq_config import PlainCodes
from bidr.search.types import RankedBatch


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


@pytest.mark.parametrize("name", ["Explained", "MissingExtra", "OutOfTime", "Stopped"])
def test_errors_of_version_0_1_load_with_a_warning(name):
    with pytest.warns(DeprecationWarning, match="is now"):
        assert issubclass(getattr(import_module("bidr.errors"), name), bidr.errors.BidrError)


@pytest.mark.parametrize(
    ("owner", "old", "new"),
    [
        (OpenIndex, "answers", "load_results"),
        (OpenIndex, "by_vectors", "make_lookup_encoder"),
        (RankedBatch, "candidate_places", "candidate_positions"),
        (LiveWriter, "known", "find_existing"),
        (Corpus, "ids", "iter_ids"),
        (Corpus, "texts", "iter_texts"),
        (Codebooks, "scores", "compute_scores"),
        (PlainCodes, "sizes", "list_sizes"),
        (PlainCodes, "books", "count_books"),
        (bidr.Client, "answers", "load_results"),
        (bidr.AsyncClient, "answers", "load_results"),
    ],
)
def test_attributes_of_version_0_1_work_with_a_warning(owner, old, new):
    with pytest.warns(DeprecationWarning, match=rf"{old} is now \w+\.{new}"):
        assert getattr(owner, old) == getattr(owner, new)


def test_an_old_attribute_of_an_object_is_bound_to_it():
    with pytest.warns(DeprecationWarning, match="list_sizes"):
        assert PlainCodes().sizes(8) == PlainCodes().list_sizes(8)
    with pytest.warns(DeprecationWarning, match="DetailedError"):
        assert bidr.errors.Explained is bidr.errors.DetailedError


def test_public_names_are_listed_once_and_come_from_their_modules():
    assert set(bidr.__all__) == {*bidr._MODULES, "__version__"}


def test_the_client_alone_loads_neither_torch_nor_numba_nor_an_index_in_half_a_second():
    code = """
import bidr, sys, time
bidr.Client
assert time.process_time() < 0.5, time.process_time()
loaded = set(sys.modules)
assert not {"torch", "numba", "faiss"} & loaded
assert not any(name.startswith(("bidr.index", "bidr.training", "bidr.models")) for name in loaded), loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True)
