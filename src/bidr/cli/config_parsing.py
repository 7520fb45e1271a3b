"""Parse settings from TOML and flags into a dataclass; a flag overrides a key."""

import contextlib
import dataclasses
import difflib
import io
import re
import sys
import tomllib
import types
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro

from bidr.errors import ConfigError

T = TypeVar("T")
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_WRONG_CHOICE = re.compile(
    r"invalid choice '(?P<value>.*)' for argument '(?P<flag>[^']*)'\. Expected one of \((?P<choices>.*)\)"
)
_NOT_A_NUMBER = re.compile(
    r"Error parsing (?P<flag>\S+): (?P<kind>invalid literal for int|could not convert string to float).*?: "
    r"(?P<value>'.*')"
)
_NO_VALUE = re.compile(r"Missing value for argument '(?P<flag>[^']*)'")
_WORDS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}


def parse_flags(kind: type[T], args: Sequence[str], prog: str, default: T | None = None) -> T:
    """Parse flags into a dataclass. Invalid flags raise one ConfigError; --help prints and exits."""
    messages = io.StringIO()
    args = _move_named_positionals(kind, args)
    options: dict[str, Any] = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(messages):
            instance: T = tyro.cli(kind, args=args, prog=prog, **options)
    except SystemExit as stop:
        if stop.code:
            raise ConfigError(f"{_extract_message(messages.getvalue(), kind)}; see {prog} --help") from None
        raise
    sys.stderr.write(messages.getvalue())
    return instance


def _move_named_positionals(kind: type, args: Sequence[str]) -> list[str]:
    """Accept positional arguments by name too: `--index FOLDER` is a flag of some verbs, and positional in others."""
    from bidr.cli.help import list_flags

    flags = list_flags(kind)
    names = [flag.name for flag in flags if not flag.usage.startswith("-") and not flag.usage.endswith("...")]
    aliases = {f"--{name}": name for name in names} | ({"--index": "folder"} if "folder" in names else {})
    end = args.index("--") if "--" in args else len(args)
    values: dict[str, str] = {}
    others: list[str] = []
    words = iter(args[:end])
    for word in words:
        flag, equals, value = word.partition("=")
        if flag not in aliases:
            others.append(word)
        elif equals or (value := next(words, "")):
            values[aliases[flag]] = value
        else:
            raise ConfigError(f"{flag}: given nothing, expected a value after it")
    first = [values.pop(name) for name in takewhile(values.__contains__, names)]
    return [*first, *others, *values.values(), *args[end:]]


def _extract_message(box: str, kind: type) -> str:
    """Extract the message from tyro's error box, in the words of the other errors."""
    sections: list[list[str]] = [[]]
    for line in (line.strip("│").rstrip() for line in _COLOR.sub("", box).splitlines() if line.startswith("│")):
        if line.strip() and not line.strip(" ─"):
            sections.append([])
        else:
            sections[-1].append(line)
    texts = [" ".join(" ".join(section).split()).rstrip(".") for section in sections]
    for text in texts:
        if text.startswith("Unrecognized options:"):
            return _describe_unknown_flag(text.partition(":")[2].replace(",", " ").split(), kind)
    if texts[0].startswith("Missing from"):
        return f"missing: {', '.join(_list_missing(sections[0][1:]))}"
    if match := _WRONG_CHOICE.search(texts[0]):
        value, flag = match["value"], match["flag"]
        choices = sorted(choice for choice in re.findall(r"'([^']*)'", match["choices"]) if choice != "None")
        return f"{flag}: given {value!r}, expected {format_choices(choices)}{suggest_name(value, choices)}"
    if match := _NOT_A_NUMBER.search(texts[0]):
        expected = "a whole number" if match["kind"].startswith("invalid") else "a number"
        return f"{match['flag']}: given {match['value']}, expected {expected}"
    if match := _NO_VALUE.search(texts[0]):
        return f"{match['flag']}: given nothing, expected a value after it"
    return texts[0] or "the flags cannot be read"


def _describe_unknown_flag(words: list[str], kind: type) -> str:
    """Describe the first unknown flag, or else the first argument too many."""
    from bidr.cli.help import list_flags

    flag = next((word.partition("=")[0] for word in words if word.startswith("--")), None)
    if flag is None:
        return f"unexpected argument {words[0]!r}"
    names = [f"--{option.name}" for option in list_flags(kind) if option.usage.startswith("-")]
    matches = difflib.get_close_matches(flag, names, n=1)
    return f"unknown flag {flag}{f'; did you mean {matches[0]}?' if matches else ''}"


def _list_missing(lines: list[str]) -> list[str]:
    """List the flags of tyro's list: its outermost lines; their help is indented."""
    indents = [len(line) - len(line.lstrip()) for line in lines]
    outermost = min((indent for line, indent in zip(lines, indents, strict=True) if line), default=0)
    return [line.strip() for line, indent in zip(lines, indents, strict=True) if line and indent == outermost]


def find_file_flag(args: Sequence[str], flag: str) -> Path | None:
    """Return the value of a flag that is needed before the others are parsed."""
    for place, word in enumerate(args):
        if word == "--":
            break
        if word.startswith(f"{flag}="):
            return Path(word.partition("=")[2])
        if word == flag and place + 1 < len(args):
            return Path(args[place + 1])
    return None


def load_toml(base: T, path: Path) -> T:
    """Replace fields of a dataclass by the keys of a TOML file; nested dataclasses are tables."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); give a TOML file with --config") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not TOML: {error}; fix the file") from error
    try:
        instance: T = _from_table(base, table, "")
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return instance


def _from_table(base: Any, table: dict[str, Any], prefix: str) -> Any:
    kind = type(base)
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in hints:
            raise ConfigError(_describe_unknown_key(kind, prefix, key))
        name, hint = f"{prefix}{key}", hints[key]
        if not dataclasses.is_dataclass(hint):
            values[key] = _check_value(name, value, hint)
        elif isinstance(value, dict):
            values[key] = _from_table(getattr(base, key), value, f"{name}.")
        else:
            raise ConfigError(f"key {name!r} is {value!r}, expected a table: [{name}] with keys under it")
    return dataclasses.replace(base, **values)


def suggest_name(name: str, known_names: Iterable[str]) -> str:
    """Return "; did you mean NAME?" for an unknown name, or "" if none is similar."""
    matches = difflib.get_close_matches(name, list(known_names), n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def _describe_unknown_key(kind: Any, prefix: str, key: str) -> str:
    """Describe an unknown key; suggest a similar one of this table, or the same one of another."""
    siblings = {field.name: f"{prefix}{field.name}" for field in dataclasses.fields(kind)}
    others = {
        below.name: f"{prefix}{table}.{below.name}"
        for table, hint in get_type_hints(kind).items()
        if dataclasses.is_dataclass(hint)
        for below in dataclasses.fields(hint)
    }
    for paths in (siblings, others):
        matches = difflib.get_close_matches(key, paths, n=1)
        if matches:
            return f"unknown key {prefix + key!r}; did you mean {paths[matches[0]]!r}?"
    return f"unknown key {prefix + key!r}; known are {', '.join(siblings.values())}"


def format_choices(choices: Sequence[str]) -> str:
    """Format alternatives: "a", "a or b", "a, b or c"."""
    return " or ".join([", ".join(choices[:-1]), choices[-1]] if len(choices) > 1 else choices)


def _check_value(name: str, value: Any, hint: Any) -> Any:
    if get_origin(hint) is tuple and isinstance(value, list):
        return tuple(_check_value(name, item, get_args(hint)[0]) for item in value)
    choices = _list_choices(hint)
    # By type, not isinstance: Python counts true as an int.
    if type(value) is int and float in choices:
        return float(value)
    if type(value) in choices or any(value == choice and type(value) is type(choice) for choice in choices):
        return value
    expected = format_choices([_WORDS.get(choice) or repr(choice) for choice in choices])
    meant = suggest_name(str(value), [choice for choice in choices if isinstance(choice, str)])
    raise ConfigError(f"key {name!r} is {value!r}, expected {expected}{meant}")


def _list_choices(hint: Any) -> list[Any]:
    """List the types and constants that a value may have, without None: in TOML an absent key."""
    if get_origin(hint) in (Union, types.UnionType):
        return [choice for part in get_args(hint) for choice in _list_choices(part)]
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [] if hint is type(None) else [hint]
