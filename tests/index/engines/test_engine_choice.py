"""Names of engines: files and JSON keep the first ones, tables and messages show the others."""

import pytest

from bidr.errors import ConfigError
from bidr.index.engines.engine_choice import choose_engine, get_engine_label


@pytest.mark.parametrize(("name", "label"), [("scan", "flat"), ("lists", "ivf"), ("hnsw", "graph")])
def test_both_names_of_an_engine_are_accepted_and_one_is_shown(name: str, label: str) -> None:
    assert choose_engine(name, 1) == choose_engine(label, 1) == name
    assert get_engine_label(name) == get_engine_label(label) == label


def test_an_unknown_engine_is_refused_with_the_shown_names_first() -> None:
    with pytest.raises(ConfigError, match="given 'tree', expected one of auto, flat, ivf, graph"):
        choose_engine("tree", 1)
