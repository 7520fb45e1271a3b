"""What no setting may be."""

import difflib
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from bidr.errors import ConfigError


def at_least(least: int, config: object, *names: str, prefix: str = "") -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and value < least:
            raise ConfigError(f"{prefix}{name}: given {value}, expected {least} or more")


def check_cuts(name: str, given: Sequence[int], dim: int | None, instead: str = "give smaller ones") -> None:
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


def refuse_of_transformers(encoder: Any) -> None:
    """What the built-in encoder would pass over."""
    instead = {"projection": "set its dimensions with encoder.dim", "dropout": "leave it out"}
    for name, other in instead.items():
        value = getattr(encoder, name)
        if value is not None:
            raise ConfigError(
                f"encoder.{name}: given {value} with the built-in encoder, which has none; {other}, or name a "
                "transformer with encoder.backbone"
            )
