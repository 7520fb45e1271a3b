"""Between which numbers a setting may be, by the names that their flags have."""

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from bidr.errors import ConfigError

LEAST: dict[int, tuple[str, ...]] = {
    0: (
        *("seed", "weight_decay", "checkpoint_minutes"),
        *("sparse.crops", "sparse.reconstruction", "sparse.codebook_rate", "sparse.rate", "dense.rate"),
        *("unify.epochs", "unify.pool", "unify.lists", "unify.dense_weight", "unify.rate", "distil.weight"),
        *("frozen.steps", "frozen.crops", "frozen.borrowed", "frozen.adapter_rate", "frozen.label_weight"),
        "frozen.dev_questions",
    ),
    1: (
        *("bytes_per_doc", "candidates", "dev_queries", "dev_documents", "tokens_at_once"),
        *("encoder.dim", "encoder.vocabulary", "encoder.projection", "text.query_length", "text.document_length"),
        *("warmup.epochs", "sparse.epochs", "dense.epochs", "dense.depth", "dense.hops"),
        *("unify.own", "unify.others", "unify.top", "conventional.refresh", "negatives.each", "distil.depth"),
        *("frozen.questions", "frozen.sample", "frozen.depth", "frozen.own", "frozen.others", "frozen.measured"),
    ),
    2: ("batch_size", "dense.batch_size", "frozen.batch_size"),  # others' positives are the negatives
}
ABOVE_0 = (
    *("learning_rate", "clip", "encoder.scale", "sparse.temperature", "distil.scale"),
    *("frozen.temperature", "frozen.rate"),
)
WITHIN = {"warmup_share": (0, 1), "frozen.finer": (0, 3)}


def check_bounds(config: Any) -> None:
    """Refuse a number that cannot work, wherever it came from."""
    values = dict(_numbers(config))
    for name, value in values.items():
        if not math.isfinite(value):
            _refuse(name, value, "a finite number")
    for least, names in LEAST.items():
        for name in names:
            if values.get(name, least) < least:
                _refuse(name, values[name], f"{least} or more")
    for name in ABOVE_0:
        if values.get(name, 1) <= 0:
            _refuse(name, values[name], "more than 0")
    for name, (low, high) in WITHIN.items():
        if not low <= values.get(name, low) <= high:
            _refuse(name, values[name], f"{low} to {high}")
    if not 0 <= values.get("encoder.dropout", 0) < 1:
        _refuse("encoder.dropout", values["encoder.dropout"], "a share from 0 to below 1")


def _numbers(config: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from _numbers(value, f"{prefix}{field.name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield prefix + field.name, value


def _refuse(name: str, value: float, expected: str) -> None:
    raise ConfigError(f"{name}: given {value}, expected {expected}")
