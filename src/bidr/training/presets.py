"""Recipes: what a run is, in a line. Each is a few settings over the same stages, trained equally long."""

import difflib
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

from bidr.errors import ConfigError
from bidr.training.config import TrainConfig


class Recipe(NamedTuple):
    """A name, what it is, and the settings that make it so (dotted names)."""

    name: str
    about: str
    settings: dict[str, Any]


def _single(negatives: str, codes: str = "opq", **more: Any) -> dict[str, Any]:
    """One encoder for both sides, told apart from such negatives, and such codes of its vectors."""
    own = {"method": "conventional", "conventional.negatives": negatives, "conventional.codes": codes}
    return own | {key.replace("__", "."): value for key, value in more.items()}


def _two(**more: Any) -> dict[str, Any]:
    """The method: codes and vectors by encoders of their own, and two query encoders unless said otherwise."""
    return {"method": "bidr", "unify.epochs": 0} | {key.replace("__", "."): value for key, value in more.items()}


_TAUGHT = {"distil__source": "teacher", "negatives__each": 4}
_MARGIN = {"negatives__margin": 0.0}
_SUMS = {
    "frozen__temperature": 1.0,
    "frozen__finer": 1.0,
    "frozen__questions": 20_000,
    "frozen__steps": 1_200,
    "frozen__batch_size": 512,
    "frozen__crops": 0.0,
}
_LIVE = {"unify.codewords": "learned", "unify.negatives": "top"}

_TABLE: list[tuple[str, str, dict[str, Any]]] = [
    # one encoder, by its negatives
    ("dpr-opq", "DPR: others' positives", _single("in-batch", warmup__negatives="in-batch")),
    ("de-bert-opq", "DE-BERT: and a lexically similar document", _single("bm25", warmup__negatives="bm25")),
    ("ance-opq", "ANCE: only nearest documents, mined again each epoch", _single("refreshed-alone")),
    ("star-opq", "STAR: nearest documents, mined once, and others' positives", _single("mined")),
    ("star-refreshed-opq", "STAR, mined again each epoch", _single("refreshed")),
    ("conventional", "the same as star-opq", _single("mined")),
    # STAR's vectors, by their codes
    ("star-pq", "STAR, codes without a rotation", _single("mined", "pq")),
    ("star-dpq", "STAR, codes by matching and reconstruction", _single("mined", "learned", sparse__loss="dpq")),
    ("star-contrastive", "STAR, codes learned as the method does, from its encoder on", _single("mined", "learned")),
    ("star-distilled", "STAR, codes that are sums and rank as its vectors do", _single("mined", "distilled", **_SUMS)),
    (
        "star-distilled-evenly",
        "the same, questions borrowed for all documents alike",
        _single("mined", "distilled", frozen__borrowers="all", **_SUMS),
    ),
    (
        "star-tuned",
        "such sums, then codewords and a query encoder learned for them",
        _single("mined", "tuned", unify__negatives="top", **_SUMS),
    ),
    (
        "star-taught",
        "STAR, sums of an encoder that follows its ranking",
        _single("mined", "taught", sparse__crops=2.0, **_SUMS),
    ),
    ("star-jpq", "STAR, OPQ's codes kept, codewords learned", _single("mined", "jpq", unify__negatives="top")),
    # the method, by the sampler of its dense side
    ("bidr", "the method: learned codes, vectors by random walk, one query encoder", {"method": "bidr"}),
    ("bidr-in-batch", "dense side: others' positives", _two(dense__sampler="in-batch")),
    ("bidr-ann", "dense side: only the codes' candidates", _two(dense__sampler="mined-alone")),
    ("bidr-ann-in-batch", "dense side: candidates and others' positives", _two(dense__sampler="mined")),
    ("bidr-random-walk", "dense side: batches by random walk", _two(dense__sampler="random-walk")),
    ("bidr-snowball", "dense side: batches by snowball", _two(dense__sampler="snowball")),
    ("bidr-unified", "one query encoder, for the sampler that dev likes best", {"method": "bidr"}),
    ("bidr-ann-first", "nearest documents as the codes' negatives, said to hurt", _two(sparse__negatives="mined")),
    # what came later
    ("star-filtered-opq", "STAR without likely answers among its negatives", _single("mined", negatives__margin=0.05)),
    ("bidr-filtered", "dense side: without likely answers among the candidates", _two(negatives__margin=0.05)),
    ("bidr-live-filtered", "without what scores well above the positive at a step", _two(negatives__live_margin=-0.1)),
    ("bidr-distilled", "codes taught by the unquantized scores", _two(distil__source="dense")),
    ("bidr-taught", "codes taught by a cross-encoder (--distil.teacher)", _two(**_TAUGHT)),
    ("bidr-taught-filter", "negatives judged by a cross-encoder", _two(negatives__judge="teacher", **_MARGIN)),
    ("bidr-uniform", "codewords used equally within a batch (RepCONC)", _two(sparse__assignment="uniform")),
    ("bidr-crops", "codes: passages of documents ask for them too", _two(sparse__crops=0.5)),
    ("bidr-reconstruction", "codes near to the vectors besides", _two(sparse__reconstruction=0.1)),
    ("bidr-jpq", "one query encoder, and codewords learned with it", {"method": "bidr", **_LIVE}),
    ("bidr-lists", "one query encoder, and coarse lists learned with it", {"method": "bidr", "unify.lists": 256}),
    ("bidr-4bit", "16 codewords in twice the books, for fast scans", _two(codewords=16)),
    ("bidr-matryoshka", "vectors that may be cut off", _two(dense__prefixes=(64, 128))),
]
RECIPES = {name: Recipe(name, about, settings) for name, about, settings in _TABLE}
STAGES = ("method", "unify.epochs")
DEFAULT = ("conventional", "bidr-random-walk", "bidr-snowball", "bidr-unified")


def get_recipe(name: str) -> Recipe:
    """The recipe of that name."""
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=1, cutoff=0.4)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"unknown recipe {name!r}{meant or ';'} `bidr recipes` lists them")
    return RECIPES[name]


def get_changed_settings(config: Any, prefix: str = "") -> dict[str, Any]:
    """The settings that differ from the defaults, by the names that their flags have."""
    found: dict[str, Any] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            found |= get_changed_settings(value, f"{prefix}{field.name}.")
        elif value != field.default:
            found[prefix + field.name] = value
    return found


def with_recipe(config: TrainConfig, name: str) -> TrainConfig:
    """The configuration with a recipe's settings where it has the defaults: what was given has its way.

    Which stages there are is the recipe's own (`STAGES`): how long to unify is asked for those that do.
    """
    given = get_changed_settings(config)
    parts: dict[str, dict[str, Any]] = {}
    for key, value in get_recipe(name).settings.items():
        if key in given and key not in STAGES:
            continue
        part, _, below = key.rpartition(".")
        parts.setdefault(part, {})[below] = value
    own = parts.pop("", {})
    nested = {part: replace(getattr(config, part), **values) for part, values in parts.items()}
    return replace(config, **own, **nested)


def list_contradictions(config: TrainConfig, name: str) -> list[str]:
    """Where what was given and a recipe differ, which of both it is: a line each."""
    given, lines = get_changed_settings(config), []
    for key, value in get_recipe(name).settings.items():
        if key in given and given[key] != value:
            kept, left = (value, given[key]) if key in STAGES else (given[key], value)
            whose = "as the recipe has it" if key in STAGES else "as given"
            lines.append(f"recipe {name!r}: {key} is {kept!r} {whose}, not {left!r}")
    return lines


def format_recipes() -> str:
    """Every recipe with a line on it."""
    width = max(map(len, RECIPES))
    return "\n".join(f"  {one.name:<{width}}  {one.about}" for one in RECIPES.values())
