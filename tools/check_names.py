#!/usr/bin/env python3
"""Check the naming rules of CONTRIBUTING.md over src/bidr; exit 1 where one is broken.

    python tools/check_names.py [--list]

- At least 95 % of the functions begin with a verb (tools/verbs.txt), and none with a participle.
- No variable, argument or attribute is a bare word that does not say what it holds (tools/bare_words.txt).
- The shares of both, exceptions included, are at most 3 % and .5 %.
- A module is a noun; two modules share a name only if they implement one protocol or are the same layer of a package.

Exceptions, with their reasons, are below. Properties and the hooks of protocols are not functions in this sense.
--list prints the functions that do not begin with a verb.
"""

import ast
import collections
import re
import sys
from collections.abc import Iterator
from pathlib import Path

TOOLS = Path(__file__).parent
ROOT = TOOLS.parent / "src" / "bidr"
LEAST_VERB_FIRST, MOST_PARTICIPLES, MOST_BARE = 0.95, 0.03, 0.005
VERBS = set((TOOLS / "verbs.txt").read_text().split())
BARE_WORDS = set((TOOLS / "bare_words.txt").read_text().split())

# Nouns that look like participles, and words of the field.
NOUNS = {
    *("clustering", "distributed", "encoding", "framing", "packing", "parsing", "partitioning", "sharding", "training"),
    *("mining", "planning", "tuning", "open", "uring", "varlen"),
}
# Roles that several packages have.
SHARED_MODULE_NAMES = {"config", "data", "errors", "run", "types"}
# Packages whose modules are named after those that they call: a verb each.
CALLERS = ("cli/", "pipeline/")
BARE_EXCEPTIONS = {
    ("errors.py", "given"): "public attribute: the value that was given",
    ("server/errors.py", "given"): "field of every error response",
    ("export/onnx.py", "about"): "public field of 0.1",
    ("index/live/writer.py", "known"): "method of 0.1",
    ("index/repair/salvage.py", "again"): "key of the JSON report",
    ("cli/bench.py", "asked"): "flag of 0.1",
    ("training/codes_only/config.py", "own"): "key of 0.1",
    ("training/codes_only/ranking_distillation.py", "own"): "key of 0.1",
    ("training/config.py", "own"): "key of 0.1",
    ("training/config.py", "each"): "key of 0.1",
    ("training/losses/shared_query_encoder.py", "own"): "key of 0.1",
}
PARTICIPLE_EXCEPTIONS = {
    ("training/losses/infonce.py", "ranking_divergence"): "a loss, named as torch.nn.functional names losses",
}


def main() -> int:
    """Print the shares and what breaks a rule."""
    functions: list[tuple[str, str, int]] = []
    bindings: list[tuple[str, str, int]] = []
    problems: list[str] = []
    modules: dict[str, list[str]] = collections.defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions += [(name, node.name, node.lineno) for node in iter_functions(tree)]
        bindings += [(name, word, line) for word, line in iter_bindings(tree)]
        stem = path.stem.strip("_")
        if path.stem.startswith("__"):
            continue
        modules[stem].append(name)
        if is_participle(stem.split("_")[-1]) and stem.split("_")[-1] not in NOUNS:
            problems.append(f"{name}: a module's name is a noun")
    for stem, names in modules.items():
        callees = [name for name in names if not name.startswith(CALLERS)]
        is_mirror = all(name.startswith("training/") for name in callees) and stem == "train"
        if len(callees) > 1 and stem not in SHARED_MODULE_NAMES and not is_mirror:
            problems.append(f"{', '.join(callees)}: one name for several topics")
    others = [(name, function, line) for name, function, line in functions if get_first_word(function) not in VERBS]
    problems += [
        f"{name}:{line}: {function}: a function begins with a verb, not with a participle"
        for name, function, line in others
        if is_participle(get_first_word(function)) and (name, function) not in PARTICIPLE_EXCEPTIONS
    ]
    bare = [(name, word, line) for name, word, line in bindings if word.strip("_") in BARE_WORDS]
    problems += [
        f"{name}:{line}: {word}: say what it holds" for name, word, line in bare if (name, word) not in BARE_EXCEPTIONS
    ]
    verbs = 1 - len(others) / len(functions)
    participles = sum(is_participle(get_first_word(function)) for _, function, _ in others) / len(functions)
    print(
        f"{len(functions):,} functions: {verbs:.1%} begin with a verb (least {LEAST_VERB_FIRST:.0%}), "
        f"{participles:.1%} with a participle (most {MOST_PARTICIPLES:.0%}); "
        f"{len(bindings):,} bindings: {len(bare) / len(bindings):.2%} bare words (most {MOST_BARE:.1%})"
    )
    print(*problems, sep="\n", end="\n" if problems else "")
    if "--list" in sys.argv:
        print(*(f"{name}:{line}: {function}" for name, function, line in others), sep="\n")
    is_within = verbs >= LEAST_VERB_FIRST and participles <= MOST_PARTICIPLES and len(bare) <= MOST_BARE * len(bindings)
    return 0 if is_within and not problems else 1


def iter_functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions and methods, without properties and special methods."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            is_property = any("property" in ast.dump(decorator) for decorator in node.decorator_list)
            if not node.name.startswith("__") and not is_property:
                yield node


def iter_bindings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the names of variables, arguments and attributes where they are bound."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


def get_first_word(function: str) -> str:
    """Return the first word of a name."""
    return function.strip("_").split("_")[0].lower()


def is_participle(word: str) -> bool:
    """Return whether a word ends as participles do."""
    return re.search(r"(ed|en|ing)$", word) is not None and len(word) > 3


if __name__ == "__main__":
    sys.exit(main())
