"""Validation of training settings: choices, bounds and settings that have no effect."""

import difflib
import math
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from bidr.errors import ConfigError

MINIMUM: dict[int, tuple[str, ...]] = {
    0: (
        *("seed", "weight_decay", "checkpoint_minutes"),
        *(
            "sparse.epochs",
            "sparse.crops",
            "sparse.reconstruction",
            "sparse.codebook_rate",
            "sparse.rate",
            "dense.rate",
        ),
        *("unify.epochs", "unify.pool", "unify.lists", "unify.dense_weight", "unify.rate", "distil.weight"),
        "conventional.epochs",
        *("frozen.steps", "frozen.crops", "frozen.borrowed", "frozen.adapter_rate", "frozen.label_weight"),
        "frozen.dev_questions",
        *("choice.small_dev", "min_dev_queries"),
    ),
    1: (
        *("bytes_per_doc", "candidates", "dev_queries", "dev_documents", "tokens_at_once"),
        *("encoder.dim", "encoder.vocabulary", "encoder.projection", "text.query_length", "text.document_length"),
        *("warmup.epochs", "dense.epochs", "dense.depth", "dense.hops"),
        *("unify.own", "unify.others", "unify.top", "conventional.refresh", "negatives.each", "distil.depth"),
        *("frozen.questions", "frozen.sample", "frozen.depth", "frozen.own", "frozen.others", "frozen.measured"),
    ),
    2: ("batch_size", "dense.batch_size", "frozen.batch_size"),  # in-batch negatives need a second query
}
POSITIVE = (
    *("learning_rate", "clip", "encoder.scale", "sparse.temperature", "distil.scale"),
    *("frozen.temperature", "frozen.rate"),
)
RANGES = {"warmup_share": (0, 1), "frozen.finer": (0, 3)}


def check_at_least(minimum: int, config: object, *names: str, prefix: str = "") -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and value < minimum:
            raise ConfigError(f"{prefix}{name}: given {value}, expected {minimum} or more")


def check_dims(name: str, dims: Sequence[int], dim: int | None, instead: str = "give smaller ones") -> None:
    """Check that vectors of `dim` dimensions (None: unknown yet) can be truncated to each of `dims`."""
    if dim is None:
        return
    for cut in dims:
        if not 1 <= cut <= dim:
            raise ConfigError(
                f"{name}: given {cut}, expected 1 to {dim}, the dimensions of the encoder's vectors; "
                f"{instead}, or take an encoder with at least {max(dims)} dimensions"
            )


def check_choices(config: Any, prefix: str = "") -> None:
    """Check fields of type Literal, which the command line checks itself."""
    hints = get_type_hints(type(config))
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            check_choices(value, f"{prefix}{field.name}.")
            continue
        parts = [hints[field.name], *get_args(hints[field.name])]
        choices = [choice for part in parts if get_origin(part) is Literal for choice in get_args(part)]
        if not choices or (value is None and type(None) in parts):
            continue
        for item in value if isinstance(value, tuple | list) else (value,):
            if item not in choices:
                _refuse_choice(prefix + field.name, item, choices)


def _refuse_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    matches = difflib.get_close_matches(str(value), [str(choice) for choice in choices], n=1)
    meant = f"; did you mean {matches[0]!r}?" if matches else ""
    raise ConfigError(f"{name}: given {value!r}, expected one of {', '.join(map(repr, choices))}{meant}")


EncoderKind = Literal["built-in", "static", "transformer"]
_NONE, _OUT = "which has none", "leave it out"
# Settings that an encoder of a kind ignores: reason and remedy.
_OF_TRANSFORMERS = {
    "projection": (_NONE, "set its dimensions with encoder.dim"),
    "pooling": ("which sums its word pieces", _OUT),
    "normalise": ("whose vectors have length 1", _OUT),
    "dropout": (_NONE, _OUT),
    "query_prompt": (_NONE, _OUT),
    "document_prompt": (_NONE, _OUT),
}
_OF_BAGS = {"vocabulary": ("which has its own", _OUT), "tokenizer": ("which has its own", _OUT)}
_UNUSED = {
    "built-in": {**_OF_TRANSFORMERS, "tokenizer": ("which learns its own", _OUT)},
    "static": {**_OF_TRANSFORMERS, "projection": (_NONE, _OUT), "dim": ("which have their own", _OUT)},
    "transformer": {**_OF_BAGS, "dim": ("which has its own", "learn a projection to fewer with encoder.projection")},
}


def refuse_unused_encoder_settings(encoder: Any, kind: EncoderKind) -> None:
    """Refuse encoder settings that have no effect on this kind of encoder."""
    names = {"built-in": "the built-in encoder", "static": f"the static embeddings {encoder.backbone!r}"}
    name = names.get(kind, f"the transformer {encoder.backbone!r}")
    other = "take the built-in encoder" if kind == "transformer" else "name a transformer with encoder.backbone"
    defaults = {field.name: field.default for field in fields(encoder)}
    unused = _UNUSED[kind]
    if kind == "static" and encoder.tokenizer == "pretrained":
        unused = unused | {"vocabulary": ("whose own tokenizer is taken", _OUT)}
    for setting, (why, instead) in unused.items():
        value = getattr(encoder, setting)
        if value != defaults[setting]:
            raise ConfigError(f"encoder.{setting}: given {value!r} with {name}, {why}; {instead}, or {other}")


def check_bounds(config: Any) -> None:
    """Check that numbers are finite and within their bounds."""
    values = dict(_iter_numbers(config))
    for name, value in values.items():
        if not math.isfinite(value):
            _refuse(name, value, "a finite number")
    for minimum, names in MINIMUM.items():
        for name in names:
            if values.get(name, minimum) < minimum:
                _refuse(name, values[name], f"{minimum} or more")
    for name in POSITIVE:
        if values.get(name, 1) <= 0:
            _refuse(name, values[name], "more than 0")
    for name, (low, high) in RANGES.items():
        if not low <= values.get(name, low) <= high:
            _refuse(name, values[name], f"{low} to {high}")
    if not 0 <= values.get("encoder.dropout", 0) < 1:
        _refuse("encoder.dropout", values["encoder.dropout"], "a share from 0 to below 1")


def _iter_numbers(config: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from _iter_numbers(value, f"{prefix}{field.name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield prefix + field.name, value


def _refuse(name: str, value: float, expected: str) -> None:
    raise ConfigError(f"{name}: given {value}, expected {expected}")
