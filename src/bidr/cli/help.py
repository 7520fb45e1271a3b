"""Format the help of a command: its main flags in groups, or all of them."""

import ast
import inspect
import shutil
import textwrap
import types
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import tyro

METAVARS = {int: "N", float: "NUMBER", str: "TEXT", Path: "PATH"}
WIDEST, INDENT = 100, 26


class Flag(NamedTuple):
    """One flag, or one positional argument, as the help shows it."""

    name: str
    usage: str
    text: str
    default: str
    group: str


def format_help(command: type, verb: str, *, show_all: bool = False) -> str:
    """Return the help of a command; `show_all` lists flags that its groups leave out."""
    flags = list_flags(command)
    summary, _, details = inspect.cleandoc(command.__doc__ or "").partition("\n")
    groups: dict[str, list[Flag]] = {}
    by_name = {flag.name: flag for flag in sorted(flags, key=lambda flag: flag.name == "json")}  # every command has it
    for title, names in getattr(command, "help_groups", {}).items():
        groups[title] = [by_name.pop(name) for name in names]
    hidden = bool(groups) and not show_all
    for flag in [] if hidden else by_name.values():
        groups.setdefault(flag.group or ("other flags" if hasattr(command, "help_groups") else "flags"), []).append(
            flag
        )
    width = min(shutil.get_terminal_size((WIDEST, 40)).columns, WIDEST)
    positional = [flag.usage for flag in flags if not flag.usage.startswith("-")]
    blocks = [" ".join(["usage: bidr", verb, *positional, "[FLAGS]"]), summary]
    if details.strip():
        blocks.append(details.strip("\n"))
    blocks += [
        "\n".join([f"{title}:", *(_format_flag(flag, width) for flag in group)]) for title, group in groups.items()
    ]
    if hidden and by_name:
        blocks.append(f"bidr {verb} --help-all shows all {len(flags)} flags.")
    return "\n\n".join(blocks)


def _format_flag(flag: Flag, width: int) -> str:
    text = f"{flag.text} ({flag.default})" if flag.default else flag.text
    indent = " " * INDENT
    lines = textwrap.wrap(text, max(width - INDENT, 30)) or [""]
    head = f"  {flag.usage}"
    first = f"{head:<{INDENT}}{lines[0]}" if len(head) < INDENT - 1 else f"{head}\n{indent}{lines[0]}"
    return "\n".join([first, *(indent + line for line in lines[1:])])


def list_flags(command: type) -> list[Flag]:
    """List the flags of a command, those of nested settings under their prefix."""
    return _list_fields(command, "", "")


def _list_fields(kind: type, prefix: str, group: str, settings: Any = None) -> list[Flag]:
    """List the flags of a dataclass; defaults are the values of `settings`, if given."""
    hints, texts = get_type_hints(kind, include_extras=True), read_field_docs(kind)
    flags = []
    for field in fields(kind):
        hint, marks = _split_annotation(hints[field.name])
        name = f"{prefix}{field.name}".replace("_", "-")
        argument = next((mark for mark in marks if hasattr(mark, "metavar")), None)
        if isinstance(hint, type) and is_dataclass(hint):
            below = "" if argument is not None and argument.name == "" else f"{name}."
            title = inspect.cleandoc(hint.__doc__ or "").partition("\n")[0].rstrip(".")
            values = field.default_factory() if field.default_factory is not MISSING else field.default
            values = None if values is MISSING else values
            nested = values if settings is None else getattr(settings, field.name)
            flags += _list_fields(hint, below, f"--{below}* ({title})" if below else "", nested)
            continue
        if argument is not None and argument.name:
            name = argument.name
        metavar = (argument.metavar if argument else None) or _get_metavar(hint)
        positional = tyro.conf.Positional in marks or any("Positional" in repr(mark) for mark in marks)
        usage = metavar if positional else f"--{name}" if hint is bool else f"--{name} {metavar}"
        if hint is bool and field.default is True:
            usage = f"--[no-]{name}"
        text = " ".join(texts.get(field.name, "").split())
        flags.append(Flag(name, usage, text, _format_default(field, settings, positional=positional), group))
    return flags


def _split_annotation(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    marks: tuple[Any, ...] = ()
    while get_origin(hint) is Annotated:
        hint, *more = get_args(hint)
        marks += tuple(more)
    return hint, marks


def _get_metavar(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        return "|".join(dict.fromkeys(_get_metavar(part) for part in get_args(hint) if part is not type(None)))
    if get_origin(hint) is Literal:
        return "|".join(map(str, get_args(hint)))
    if get_origin(hint) is tuple:
        return f"{_get_metavar(get_args(hint)[0])} ..."
    return "True|False" if hint is bool else METAVARS.get(hint, "VALUE")


def _format_default(field: "Field[Any]", settings: Any, *, positional: bool) -> str:
    if settings is not None:
        value = getattr(settings, field.name)
    elif field.default is MISSING and field.default_factory is MISSING:
        return "" if positional else "required"
    else:
        value = field.default_factory() if field.default_factory is not MISSING else field.default
    if value is None or value is False or value is True or value == ():
        return ""
    return f"default: {' '.join(map(str, value)) if isinstance(value, tuple) else value}"


@cache
def read_field_docs(kind: type) -> dict[str, str]:
    """Read the string under each field of a dataclass, those of its bases included."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not is_dataclass(base):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[name] = text
    return texts
