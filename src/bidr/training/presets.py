"""Recipes: named presets of settings over the same stages, trained for as many steps."""

import difflib
import warnings
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

from bidr.errors import ConfigError
from bidr.training.config import TrainConfig


class Recipe(NamedTuple):
    """A named preset; `settings` by dotted name."""

    name: str
    description: str
    settings: dict[str, Any]


def _build_conventional(negatives: str, codes: str = "opq", **changes: Any) -> dict[str, Any]:
    """Settings of the conventional method: one encoder, its negatives and its codes."""
    settings = {"method": "conventional", "conventional.negatives": negatives, "conventional.codes": codes}
    return settings | {key.replace("__", "."): value for key, value in changes.items()}


def _build_bidr(**changes: Any) -> dict[str, Any]:
    """Settings of the method with two query encoders, unless `changes` says otherwise."""
    return {"method": "bidr", "unify.epochs": 0} | {key.replace("__", "."): value for key, value in changes.items()}


def _build_auto(**changes: Any) -> dict[str, Any]:
    """Settings of the choice on dev."""
    return {"method": "auto"} | {key.replace("__", "."): value for key, value in changes.items()}


_TAUGHT = {"distil__source": "teacher", "negatives__each": 4}
_MARGIN = {"negatives__margin": 0.0}
_SUMS = {
    "frozen__temperature": 1.0,
    "frozen__finer": 1.0,
    "frozen__questions": 20_000,
    "frozen__steps": 1_200,
    "frozen__batch_size": 512,
    "frozen__crops": 0.0,
    # Documents without a train question can be exactly the answers of dev and test (acl, debian): drawing for them
    # alone would tell the codes what will be asked.
    "frozen__borrowers": "all",
}
_LIVE = {"unify.codewords": "learned", "unify.negatives": "top"}

_TABLE: list[tuple[str, str, dict[str, Any]]] = [
    # one encoder, by its negatives
    ("dpr-opq", "DPR: in-batch negatives", _build_conventional("in-batch", warmup__negatives="in-batch")),
    ("de-bert-opq", "DE-BERT: in-batch and BM25 negatives", _build_conventional("bm25", warmup__negatives="bm25")),
    ("ance-opq", "ANCE: hard negatives only, mined again each epoch", _build_conventional("refreshed-alone")),
    ("star-opq", "STAR: hard negatives mined once, and in-batch negatives", _build_conventional("mined")),
    ("star-refreshed-opq", "STAR, hard negatives mined again each epoch", _build_conventional("refreshed")),
    ("conventional", "same as star-opq; a baseline of `bidr compare`", _build_conventional("mined")),
    (
        "warmup-opq",
        "warm-up + OPQ: not trained further, so in fewer steps than the others",
        {"method": "conventional", "conventional.codes": "opq", "conventional.epochs": 0},
    ),
    (
        "warmup-opq-bm25",
        "warm-up + OPQ, fused with BM25 as dev chooses",
        _build_auto(choice__vectors=("warmup",), choice__codes=("opq",)),
    ),
    (
        "star-opq-bm25",
        "warm-up or STAR + OPQ, fused with BM25 as dev chooses",
        _build_auto(choice__vectors=("warmup", "conventional"), choice__codes=("opq",)),
    ),
    # STAR's vectors, by their codes
    ("star-pq", "STAR with PQ codes (no rotation)", _build_conventional("mined", "pq")),
    (
        "star-dpq",
        "STAR with DPQ codes: contrastive loss and reconstruction",
        _build_conventional("mined", "learned", sparse__loss="dpq"),
    ),
    (
        "star-contrastive",
        "STAR, then the sparse stage of bidr from its encoder on",
        _build_conventional("mined", "learned"),
    ),
    (
        "star-distilled",
        "STAR with additive codes distilled from its ranking by vectors",
        _build_conventional("mined", "distilled", **_SUMS),
    ),
    (
        "star-distilled-unasked",
        "star-distilled, pseudo-queries only for documents without a train query",
        _build_conventional("mined", "distilled", **_SUMS | {"frozen__borrowers": "unasked"}),
    ),
    (
        "star-tuned",
        "star-distilled, then codewords and query encoder trained",
        _build_conventional("mined", "tuned", unify__negatives="top", **_SUMS),
    ),
    (
        "star-taught",
        "STAR with additive codes of a second encoder, distilled",
        _build_conventional("mined", "taught", sparse__crops=2.0, **_SUMS),
    ),
    (
        "star-jpq",
        "STAR with JPQ: OPQ codes fixed, codewords and query encoder trained",
        _build_conventional("mined", "jpq", unify__negatives="top"),
    ),
    (
        "auto",
        "default of `bidr train`: vectors, codes, BM25 by dev",
        _build_auto(**_SUMS | {"frozen__steps": 400}),
    ),
    # the method, by the sampler of its dense side
    ("bidr", "the published method: trained codes, random walk, one query encoder", {"method": "bidr"}),
    ("bidr-in-batch", "bidr, dense stage with in-batch negatives", _build_bidr(dense__sampler="in-batch")),
    ("bidr-ann", "bidr, dense stage with candidates as the only negatives", _build_bidr(dense__sampler="mined-alone")),
    (
        "bidr-ann-in-batch",
        "bidr, dense stage with candidates and in-batch negatives",
        _build_bidr(dense__sampler="mined"),
    ),
    (
        "bidr-random-walk",
        "bidr, dense stage with random-walk batches, two query encoders",
        _build_bidr(dense__sampler="random-walk"),
    ),
    (
        "bidr-snowball",
        "bidr, dense stage with snowball batches, two query encoders",
        _build_bidr(dense__sampler="snowball"),
    ),
    ("bidr-unified", "bidr with a unified query encoder, for the better sampler on dev", {"method": "bidr"}),
    (
        "bidr-ann-first",
        "bidr, sparse stage with hard negatives (the paper advises against)",
        _build_bidr(sparse__negatives="mined"),
    ),
    # what came later
    (
        "star-filtered-opq",
        "STAR, likely positives removed from the negatives",
        _build_conventional("mined", negatives__margin=0.05),
    ),
    ("bidr-filtered", "bidr, likely positives removed from the negatives", _build_bidr(negatives__margin=0.05)),
    (
        "bidr-live-filtered",
        "bidr, in-batch negatives above the positive's score masked",
        _build_bidr(negatives__live_margin=-0.1),
    ),
    ("bidr-distilled", "bidr, codes distilled from the unquantized scores", _build_bidr(distil__source="dense")),
    ("bidr-taught", "bidr, codes distilled from a cross-encoder (--distil.teacher)", _build_bidr(**_TAUGHT)),
    (
        "bidr-taught-filter",
        "bidr, likely positives removed by a cross-encoder's scores",
        _build_bidr(negatives__judge="teacher", **_MARGIN),
    ),
    ("bidr-uniform", "bidr, uniform codeword assignment (RepCONC)", _build_bidr(sparse__assignment="uniform")),
    ("bidr-crops", "bidr, with pseudo-queries cropped from documents", _build_bidr(sparse__crops=0.5)),
    ("bidr-reconstruction", "bidr, with reconstruction loss", _build_bidr(sparse__reconstruction=0.1)),
    ("bidr-jpq", "bidr, codewords trained with the query encoder (JPQ)", {"method": "bidr", **_LIVE}),
    ("bidr-lists", "bidr, inverted lists trained with the query encoder", {"method": "bidr", "unify.lists": 256}),
    ("bidr-4bit", "bidr with 4-bit codes, for fast scan", _build_bidr(codewords=16)),
    ("bidr-matryoshka", "bidr with Matryoshka vectors", _build_bidr(dense__prefixes=(64, 128))),
]
RECIPES = {name: Recipe(name, description, settings) for name, description, settings in _TABLE}
OLD_NAMES = {"star-distilled-evenly": "star-distilled"}
"""New names of renamed recipes. To be removed in 0.3."""
STAGES = ("method", "unify.epochs", "conventional.epochs", "choice.vectors", "choice.codes")
DEFAULT = (
    "warmup-opq",
    "conventional",
    "warmup-opq-bm25",
    "bidr-random-walk",
    "bidr-snowball",
    "bidr-unified",
    "auto",
)


def get_recipe(name: str) -> Recipe:
    """Look up a recipe by name; an old name works with a warning."""
    if name in OLD_NAMES:
        message = f"recipe {name!r} is now {OLD_NAMES[name]!r}; the old name will be removed in 0.3"
        warnings.warn(message, FutureWarning, stacklevel=2)
        name = OLD_NAMES[name]
    if name not in RECIPES:
        matches = difflib.get_close_matches(name, RECIPES, n=1, cutoff=0.4)
        meant = f"; did you mean {matches[0]!r}?" if matches else ""
        raise ConfigError(f"unknown recipe {name!r}{meant or ';'} `bidr recipes` lists them")
    return RECIPES[name]


def get_changed_settings(config: Any, prefix: str = "") -> dict[str, Any]:
    """Return the settings that differ from the defaults, by dotted name."""
    settings: dict[str, Any] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            settings |= get_changed_settings(value, f"{prefix}{field.name}.")
        elif value != field.default:
            settings[prefix + field.name] = value
    return settings


def with_recipe(config: TrainConfig, name: str) -> TrainConfig:
    """Apply a recipe to the settings that have their defaults; explicit settings take precedence.

    Exception: which stages run (`STAGES`) is always the recipe's choice.
    """
    explicit, settings = get_changed_settings(config), get_recipe(name).settings
    return replace_settings(
        config, {key: value for key, value in settings.items() if key in STAGES or key not in explicit}
    )


def replace_settings(config: TrainConfig, settings: Mapping[str, Any]) -> TrainConfig:
    """Replace settings by dotted name."""
    parts: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        part, _, below = key.rpartition(".")
        parts.setdefault(part, {})[below] = value
    top_level = parts.pop("", {})
    nested = {part: replace(getattr(config, part), **values) for part, values in parts.items()}
    return replace(config, **top_level, **nested)


def with_default_recipe(config: TrainConfig, name: str | None) -> tuple[TrainConfig, str | None]:
    """Apply a recipe; without one that of the method 'auto', unless another method is set."""
    name = "auto" if name is None and config.method == "auto" else name
    return (with_recipe(config, name) if name else config), name


def list_contradictions(config: TrainConfig, name: str) -> list[str]:
    """List the explicit settings that differ from a recipe's, and which value is used."""
    explicit, lines = get_changed_settings(config), []
    for key, value in get_recipe(name).settings.items():
        if key in explicit and explicit[key] != value:
            used, ignored = (value, explicit[key]) if key in STAGES else (explicit[key], value)
            whose = "as the recipe has it" if key in STAGES else "as given"
            lines.append(f"recipe {name!r}: {key} is {used!r} {whose}, not {ignored!r}")
    return lines


def format_recipes() -> str:
    """Format all recipes, one per line."""
    width = max(map(len, RECIPES))
    return "\n".join(f"  {recipe.name:<{width}}  {recipe.description}" for recipe in RECIPES.values())
