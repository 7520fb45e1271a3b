"""Parser of documented functions, methods and classes in Python files; nothing is imported."""

import ast
import re
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LONGEST_TEXT = 1_500
_LONGEST_SIGNATURE = 300
_LONGEST_DOCUMENTATION = 900
_SUMMARY_WORDS = range(4, 41)
_FEWEST_WORDS = 8
_LARGEST_FILE = 1_000_000
_RICH = 4_000

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Object = _Function | ast.ClassDef

_SENTENCE = re.compile(r"(.+?(?<!e\.g)(?<!i\.e)(?<!etc)(?<!vs)(?<!cf)[.!?])(?=\s+\W?[A-Z]|\s*$)")
_DOCSTRING = re.compile(r':[ \t]*(?:#.*)?\n\s*[rRuU]?"""\s*\S+[ \t]+\S+[ \t]+\S+[ \t]+\S+')
_CALL = re.compile(r"[\w.]+\(.*\)(\s*->.*)?$")
_ROLE = re.compile(r":[\w:]+:`[~!]?([^`<]+?)(?:\s*<[^`>]*>)?`")


class PythonObject(NamedTuple):
    """A documented object: the summary of its documentation, and its searchable text."""

    id: str
    """module.qualname"""
    summary: str
    title: str
    text: str


def read_source(path: Path) -> str:
    """Read the source of a file; empty when it is too large or unreadable."""
    try:
        return path.read_text(encoding="utf-8") if path.stat().st_size <= _LARGEST_FILE else ""
    except (OSError, ValueError):
        return ""


def is_rich(source: str) -> bool:
    """Return whether a file has enough docstrings for its length to be worth parsing."""
    return len(source) <= _RICH * sum(1 for _ in _DOCSTRING.finditer(source))


def parse_objects(source: str, module: str) -> list[PythonObject]:
    """Parse the documented public objects of a module; empty when it is not valid Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    lines = source.split("\n")
    objects: dict[str, PythonObject] = {}
    for qualname, node in _iter_objects(tree.body, ""):
        if qualname not in objects:
            described = _describe(node, module, qualname, lines)
            if described is not None:
                objects[qualname] = described
    return list(objects.values())


def _iter_objects(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, _Object]]:
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            yield from _iter_objects(node.body, prefix)
            yield from _iter_objects(node.orelse, prefix)
        elif isinstance(node, _Object) and not node.name.startswith("_") and not _is_redefinition(node):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from _iter_objects(node.body, f"{prefix}{node.name}.")


def _is_redefinition(node: _Object) -> bool:
    """Return whether a definition is an overload, setter or deleter of another."""
    for decorator in node.decorator_list:
        name = decorator.attr if isinstance(decorator, ast.Attribute) else getattr(decorator, "id", "")
        if name in ("overload", "setter", "deleter"):
            return True
    return False


def _describe(node: _Object, module: str, qualname: str, lines: list[str]) -> PythonObject | None:
    documentation = ast.get_docstring(node)
    if not documentation:
        return None
    summary, rest = split_summary(documentation)
    if len(summary.split()) not in _SUMMARY_WORDS:
        return None
    code = _list_members(node, lines) if isinstance(node, ast.ClassDef) else _get_body(node, lines)
    if len(re.findall(r"\w+", f"{rest} {code}")) < _FEWEST_WORDS:
        return None
    rest = rest[:_LONGEST_DOCUMENTATION] if code else rest
    text = "\n".join(part for part in (_format_signature(node, lines), rest, code) if part)[:LONGEST_TEXT].rstrip()
    return PythonObject(f"{module}.{qualname}", summary, f"{qualname} in {module}", text)


def split_summary(documentation: str) -> tuple[str, str]:
    """Split a docstring into its first sentence, on one line without markup, and the rest."""
    paragraphs = re.split(r"\n\s*\n", documentation.strip())
    if len(paragraphs) > 1 and _CALL.match(" ".join(paragraphs[0].split())):
        paragraphs = paragraphs[1:]
    first = " ".join(paragraphs[0].split())
    sentence = _SENTENCE.match(first)
    summary = sentence[1] if sentence else first
    rest = "\n".join([first[len(summary) :].strip(), *paragraphs[1:]])
    return clean(summary).rstrip(".: "), "\n".join(line.strip() for line in rest.split("\n") if line.strip())


def clean(text: str) -> str:
    """Remove reStructuredText markup."""
    text = _ROLE.sub(lambda match: match[1].rpartition(".")[2], text)
    return " ".join(text.replace("``", "").replace("`", "").replace("**", "").split())


def _format_head(node: _Object, lines: list[str]) -> str:
    """Join the source from the name to the colon on one line."""
    last = max(node.body[0].lineno - 1, node.lineno)
    if last == node.lineno and node.body[0].lineno == node.lineno:
        return lines[node.lineno - 1][: node.body[0].col_offset].strip().rstrip(":")
    head = " ".join(line.strip() for line in lines[node.lineno - 1 : last] if not line.lstrip().startswith(("#", "@")))
    return head.rstrip().rstrip(":")[:_LONGEST_SIGNATURE]


def _format_signature(node: _Object, lines: list[str]) -> str:
    head = _format_head(node, lines)
    if isinstance(node, ast.ClassDef):
        makers = (part for part in node.body if isinstance(part, _Function) and part.name == "__init__")
        maker = next(makers, None)
        return head if maker is None else f"{head}\n{_format_head(maker, lines)}"
    return head


def _get_body(node: _Function, lines: list[str]) -> str:
    """Return the body of a function without its docstring."""
    if len(node.body) == 1:
        return ""
    body = lines[node.body[1].lineno - 1 : node.end_lineno]
    body_lines, size = [], 0
    for line in body:
        size += len(line)
        body_lines.append(line.rstrip())
        if size > 2 * LONGEST_TEXT:
            break
    return textwrap.dedent("\n".join(line for line in body_lines if line))


def _list_members(node: ast.ClassDef, lines: list[str]) -> str:
    """List the members of a class, one per line, without docstrings, which belong to documents of their own."""
    parts = []
    for member in node.body:
        if isinstance(member, _Function) and (member.name == "__call__" or not member.name.startswith("_")):
            parts.append(_format_head(member, lines))
        elif isinstance(member, ast.Assign | ast.AnnAssign):
            parts.append(lines[member.lineno - 1].strip())
    return "\n".join(parts)
