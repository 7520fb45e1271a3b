"""Rows of the reproduction: what each of them trains and measures, in the order in which they are run."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from bidr.errors import ConfigError
from bidr.training.config import TrainConfig
from bidr.training.presets import get_changed_settings, get_recipe, replace_settings

Kind = Literal["index", "bm25", "hnsw", "diskann", "unquantized", "depths", "sizes"]
"""What is measured: codes and vectors in an index; BM25; full vectors in RAM; full vectors by DiskANN; the encoder of
the codes without them; an index by number of candidates; an index by number of documents."""
TABLES = ("table1", "table2", "table3", "ablation", "figure4", "figure4-bits", "sizes", "extras")
OPTIONAL_TABLES = ("figure4-bits",)
BASELINES = ("warmup-opq", "dpr-opq", "de-bert-opq", "ance-opq", "star-opq")
"""Rows with one encoder and codes fitted to its vectors; differences are to the strongest of them on dev."""
WITH_BM25 = ("bm25", "warmup-opq-bm25", "star-opq-bm25")
"""Baselines that read BM25's postings, as the default may: they tell what it gains beyond fusion."""
BIT_BYTES = (8, 16, 32, 64, 128)
# Lengths of training may differ from a recipe's, as in `bidr compare`; its other settings make the row what it is.
LENGTHS = "frozen."


class RowSpec(NamedTuple):
    """A row: name, title in tables, tables that show it, and the recipe with the settings that differ from it."""

    name: str
    title: str
    tables: tuple[str, ...]
    recipe: str = ""
    kind: Kind = "index"
    settings: Mapping[str, Any] = {}
    engine: str = "auto"

    def make_config(self, config: TrainConfig) -> TrainConfig:
        """Apply recipe and settings of the row, which take precedence; its training lengths do not."""
        explicit = get_changed_settings(config)
        recipe = get_recipe(self.recipe).settings if self.recipe else {}
        settings = {**recipe, **self.settings}
        return replace_settings(
            config, {key: value for key, value in settings.items() if not (key.startswith(LENGTHS) and key in explicit)}
        )


_WALK, _SNOW, _STAR = "bidr-random-walk", "bidr-snowball", "star-opq"
_MINED, _UNTRAINED = {"sparse.negatives": "mined"}, {"sparse.epochs": 0}
_SAMPLERS = {_WALK: "random walk", _SNOW: "snowball"}


def _list_rows() -> list[RowSpec]:
    """List the rows, the most important ones first."""
    rows = [
        RowSpec("warmup-opq", "warm-up + OPQ", ("table1", "extras"), "warmup-opq"),
        RowSpec(_STAR, "STAR + OPQ", ("table1", "table3"), _STAR),
        RowSpec("bm25", "BM25", ("table1", "extras"), kind="bm25"),
        RowSpec("dpr-opq", "DPR + OPQ", ("table1",), "dpr-opq"),
        RowSpec(_WALK, "bidr, random walk", ("table1", "table2", "table3", "ablation"), _WALK),
        RowSpec(_SNOW, "bidr, snowball", ("table1", "table2", "table3", "ablation"), _SNOW),
    ]
    for name, sampler in _SAMPLERS.items():
        unified = {"dense.sampler": name.removeprefix("bidr-")}
        rows.append(RowSpec(f"{name}-unified", f"bidr, {sampler}, unified", ("table3",), "bidr", settings=unified))
    rows += [
        RowSpec("star-distilled", "STAR + distilled codes", ("extras",), "star-distilled"),
        RowSpec("warmup-opq-bm25", "warm-up + OPQ + BM25", ("extras",), "warmup-opq-bm25"),
        RowSpec("star-opq-bm25", "STAR + OPQ + BM25", ("extras",), "star-opq-bm25"),
        RowSpec("auto", "default of `bidr train`", ("extras",), "auto"),
        RowSpec("ance-opq", "ANCE + OPQ", ("table1",), "ance-opq"),
        RowSpec("de-bert-opq", "DE-BERT + OPQ", ("table1",), "de-bert-opq"),
    ]
    for recipe, title in ((_STAR, "STAR"), ("ance-opq", "ANCE"), ("de-bert-opq", "DE-BERT"), ("dpr-opq", "DPR")):
        name = f"{recipe.removesuffix('-opq')}-hnsw"
        rows.append(RowSpec(name, f"{title}, full vectors in RAM", ("table2",), recipe, "hnsw"))
    rows += [
        RowSpec("star-pq", "STAR + PQ", ("table3",), "star-pq"),
        RowSpec("star-dpq", "STAR + DPQ", ("table3",), "star-dpq"),
        RowSpec("star-contrastive", "STAR + contrastive codes", ("table3",), "star-contrastive"),
        RowSpec(f"{_WALK}-unquantized", "bidr, the codes' encoder without codes", ("table3",), _WALK, "unquantized"),
        RowSpec("bidr-ann", "bidr, ANN", ("table3",), "bidr-ann"),
        RowSpec("bidr-ann-in-batch", "bidr, ANN + in-batch", ("table3",), "bidr-ann-in-batch"),
    ]
    for name, sampler in _SAMPLERS.items():
        title = f"bidr, {sampler}, ANN negatives in stage one"
        rows.append(RowSpec(f"{name}-ann-first", title, ("ablation",), name, settings=_MINED))
    for name, sampler in _SAMPLERS.items():
        title = f"bidr, {sampler}, codes not trained (OPQ)"
        rows.append(RowSpec(f"{name}-opq", title, ("ablation",), name, settings=_UNTRAINED))
    rows.append(RowSpec(f"{_WALK}-graph", "bidr, random walk, HNSW over codes", ("extras",), _WALK, engine="graph"))
    for name, title in ((_STAR, "STAR + OPQ"), (_WALK, "bidr, random walk"), (_SNOW, "bidr, snowball")):
        rows.append(RowSpec(f"{name}-depths", f"{title}, by candidates", ("figure4",), name, "depths"))
    for name, title in ((_STAR, "STAR + OPQ"), (_WALK, "bidr, random walk")):
        rows.append(RowSpec(f"{name}-sizes", f"{title}, by documents", ("sizes",), name, "sizes"))
    rows.append(RowSpec("star-diskann", "STAR + DiskANN (diskannpy)", ("table1",), _STAR, "diskann"))
    for size in BIT_BYTES:
        for name, title in ((_STAR, "STAR + OPQ"), (_WALK, "bidr, random walk")):
            label, settings = f"{title}, {8 * size} bits", {"bytes_per_doc": size}
            rows.append(RowSpec(f"{name}-{8 * size}-bits", label, ("figure4-bits",), name, settings=settings))
    return rows


ROWS = {row.name: row for row in _list_rows()}


def select_rows(names: Sequence[str], config: TrainConfig) -> list[RowSpec]:
    """Select rows by names of tables and rows, in the order of ROWS; no names: all but the optional tables.

    Rows of a code size that the run has anyway are left out.
    """
    words = split_names(names)
    for word in words:
        if word not in TABLES and word not in ROWS:
            matches = difflib.get_close_matches(word, [*TABLES, *ROWS], n=1)
            meant = f"did you mean {matches[0]!r}?" if matches else f"rows are {', '.join(ROWS)}"
            raise ConfigError(f"--only: given {word!r}, expected names of rows or of {', '.join(TABLES)}; {meant}")
    requested = set(words) or set(TABLES) - set(OPTIONAL_TABLES)
    rows = [row for row in ROWS.values() if row.name in requested or requested & set(row.tables)]
    return [row for row in rows if row.settings.get("bytes_per_doc") != config.bytes_per_doc]


def split_names(names: Sequence[str]) -> list[str]:
    """Split names at commas."""
    return [word for name in names for word in name.split(",") if word]


def with_seed(config: TrainConfig, seed: int) -> TrainConfig:
    """Replace the seed."""
    return replace(config, seed=seed)
