"""Which rows are run, in which order, with which settings."""

import pytest

from bidr.errors import ConfigError
from bidr.experiments.reproduce.cost_estimate import list_stages
from bidr.experiments.reproduce.paper_settings import PRESETS, make_default_settings, make_settings
from bidr.experiments.reproduce.row_specs import BASELINES, ROWS, select_rows
from bidr.training.presets import replace_settings

CONFIG = make_default_settings()


def select_names(*only: str) -> list[str]:
    return [spec.name for spec in select_rows(only, CONFIG)]


def test_the_most_important_rows_come_first() -> None:
    names = select_names()
    first = ["warmup-opq", "star-opq", "bm25", "dpr-opq", "bidr-random-walk", "bidr-snowball"]
    assert names[:9] == [*first, "bidr-random-walk-unified", "bidr-snowball-unified", "star-distilled"]
    assert not [name for name in names if name.endswith("-bits")]
    assert set(BASELINES) <= set(names)


def test_tables_and_rows_are_selected_with_commas_or_spaces_in_their_order() -> None:
    assert select_names("star-opq,bm25") == select_names("bm25", "star-opq") == ["star-opq", "bm25"]
    assert select_names("table2") == [
        *("bidr-random-walk", "bidr-snowball", "star-hnsw", "ance-hnsw", "de-bert-hnsw", "dpr-hnsw")
    ]
    bits = select_names("figure4-bits")
    assert "star-opq-256-bits" in bits
    assert "star-opq-64-bits" not in bits, "the run's own code size is measured by the row itself"
    with pytest.raises(ConfigError, match=r"given 'tabel1', expected .* did you mean 'table1'"):
        select_names("tabel1")


def test_what_makes_a_row_what_it_is_wins_over_presets_and_lengths_do_not() -> None:
    for preset in PRESETS:
        config = make_settings(preset, None)
        assert ROWS["star-dpq"].make_config(config).sparse.loss == "dpq"
        assert ROWS["bidr-snowball"].make_config(config).sparse.loss == "quantized"
        assert ROWS["dpr-opq"].make_config(config).warmup.negatives == "in-batch"
        assert ROWS["bidr-snowball-ann-first"].make_config(config).sparse.negatives == "mined"
    short = replace_settings(CONFIG, {"frozen.steps": 3, "dense.sampler": "in-batch"})
    assert ROWS["star-distilled"].make_config(short).frozen.steps == 3
    assert ROWS["star-distilled"].make_config(CONFIG).frozen.steps != 3
    assert ROWS["bidr-random-walk-unified"].make_config(short).dense.sampler == "random-walk"
    assert ROWS["bidr-random-walk"].make_config(CONFIG).unify.epochs == 0
    assert ROWS["bidr-random-walk-unified"].make_config(CONFIG).unify.epochs > 0


def test_rows_share_the_stages_in_which_they_agree() -> None:
    stages = list_stages(CONFIG, select_rows(["bidr-random-walk", "bidr-snowball", "bidr-random-walk-unified"], CONFIG))
    assert list(stages) == ["warmup", "sparse", "dense-random-walk", "dense-snowball", "unify-random-walk"]
    measured_again = ["star-opq", "star-hnsw", "star-opq-depths", "star-opq-sizes", "star-diskann"]
    assert list(list_stages(CONFIG, select_rows(measured_again, CONFIG))) == ["warmup", "conventional"]
