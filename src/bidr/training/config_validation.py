"""What no setting may be."""

import difflib
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from bidr.errors import ConfigError


def check_at_least(least: int, config: object, *names: str, prefix: str = "") -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and value < least:
            raise ConfigError(f"{prefix}{name}: given {value}, expected {least} or more")


def check_dims(name: str, given: Sequence[int], dim: int | None, instead: str = "give smaller ones") -> None:
    """Vectors cannot be cut off behind their end; None: nobody knows it yet. `instead`: what to do about it."""
    if dim is None:
        return
    for each in given:
        if not 1 <= each <= dim:
            raise ConfigError(
                f"{name}: given {each}, expected 1 to {dim}, the dimensions of the encoder's vectors; "
                f"{instead}, or take an encoder with at least {max(given)} dimensions"
            )


def check_choices(config: Any, prefix: str = "") -> None:
    """What the command line refuses must not slip in from Python."""
    hints = get_type_hints(type(config))
    for one in fields(config):
        value = getattr(config, one.name)
        if is_dataclass(value):
            check_choices(value, f"{prefix}{one.name}.")
            continue
        parts = [hints[one.name], *get_args(hints[one.name])]
        choices = [choice for part in parts if get_origin(part) is Literal for choice in get_args(part)]
        if not choices or value in choices or (value is None and type(None) in parts):
            continue
        near = difflib.get_close_matches(str(value), [str(choice) for choice in choices], n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"{prefix}{one.name}: given {value!r}, expected one of {', '.join(map(repr, choices))}{meant}"
        )


_NONE, _OUT = "which has none", "leave it out"
# Of the settings that a transformer takes and the built-in encoder would pass over, and the other way round: why, and
# what to do instead.
_OF_TRANSFORMERS = {
    "projection": (_NONE, "set its dimensions with encoder.dim"),
    "pooling": ("which sums its word pieces", _OUT),
    "normalise": ("whose vectors have length 1", _OUT),
    "dropout": (_NONE, _OUT),
    "query_prompt": (_NONE, _OUT),
    "document_prompt": (_NONE, _OUT),
}
_OF_THE_BUILT_IN = {
    "dim": ("which has its own", "learn a projection to fewer with encoder.projection"),
    "vocabulary": ("which has its own", _OUT),
}


def refuse_unused_encoder_settings(encoder: Any, *, built_in: bool) -> None:
    """Settings of the encoder that would do nothing, because another kind of encoder is named."""
    kind = "the built-in encoder" if built_in else f"the transformer {encoder.backbone!r}"
    other = "name a transformer with encoder.backbone" if built_in else "take the built-in encoder"
    usual = {one.name: one.default for one in fields(encoder)}
    for name, (why, instead) in (_OF_TRANSFORMERS if built_in else _OF_THE_BUILT_IN).items():
        value = getattr(encoder, name)
        if value != usual[name]:
            raise ConfigError(f"encoder.{name}: given {value!r} with {kind}, {why}; {instead}, or {other}")
