"""bench/code_options.py: rows of a table are of different codes."""

import importlib.util
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import ModuleType

import pytest
from sample_training import with_settings

from bidr.training.config import TrainConfig
from bidr.training.stage_cache import name_stage


@pytest.fixture(scope="module")
def script() -> ModuleType:
    found = importlib.util.spec_from_file_location(
        "code_options", Path(__file__).parents[2] / "bench" / "code_options.py"
    )
    assert found is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("config", [TrainConfig(), with_settings(frozen={"crops": 1.5})])
def test_no_two_rows_are_of_the_same_codes(script, config):
    made = {name: script.settings(config, name) for name in script.VARIANTS}
    stages = {name: "distilled" if name.startswith("additive") else "sparse" for name in made}
    for one, other in combinations(made, 2):
        names = [name_stage(stages[name], made[name], config) for name in (one, other)]
        assert names[0] != names[1], (one, other)
    with_crops, without = made["additive-crops"], made["additive"]
    assert (with_crops.frozen.crops, without.frozen.crops) == (config.frozen.crops, 0)
    assert replace(with_crops, frozen=without.frozen) == without
