#!/usr/bin/env python3
"""Check the naming rules of CONTRIBUTING.md over src/bidr; exit 1 where one is broken.

    python tools/check_names.py [--list]

A function begins with a verb, not with a participle; a variable says what it holds; a module is a noun. Shares are
checked, not single names: a property, a protocol of a library or a term of the field may have another form.
--list prints the names that do not follow the rules.
"""

import ast
import collections
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent / "src" / "bidr"
VERB_FIRST, PARTICIPLE_FIRST, BARE_WORDS = 0.70, 0.03, 0.005
VERBS = set((HERE / "verbs.txt").read_text().split())
BARE = set((HERE / "bare_words.txt").read_text().split())
# Nouns that look like participles, and words of the field.
MODULE_NAMES = {
    *("clustering", "distributed", "encoding", "framing", "packing", "parsing", "partitioning", "sharding", "training"),
    *("mining", "planning", "tuning"),
    *("open", "uring", "varlen"),
}


def main() -> int:
    functions, verb_first, participle_first, bindings = 0, 0, 0, 0
    others: list[str] = []
    bare: collections.Counter[str] = collections.Counter()
    modules: list[str] = []
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT.parent)
        last = path.stem.strip("_").split("_")[-1]
        if re.search(r"(ed|ing|en)$", last) and last not in MODULE_NAMES and path.stem != "__init__":
            modules.append(str(name))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if node.name.startswith("__") or any("property" in ast.dump(item) for item in node.decorator_list):
                    continue
                functions += 1
                first = node.name.strip("_").split("_")[0].lower()
                if first in VERBS:
                    verb_first += 1
                    continue
                others.append(f"{name}:{node.lineno}: {node.name}")
                participle_first += bool(re.search(r"(ed|en|ing)$", first))
            bound = node.arg if isinstance(node, ast.arg) else None
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                bound = node.id
            if bound and bound not in ("self", "cls", "_"):
                bindings += 1
                if bound in BARE:
                    bare[f"{name}: {bound}"] += 1
    count = sum(bare.values())
    print(
        f"{functions} functions: {verb_first / functions:.0%} begin with a verb (least {VERB_FIRST:.0%}), "
        f"{participle_first / functions:.1%} with a participle (most {PARTICIPLE_FIRST:.0%}); "
        f"{bindings} names bound: {count / bindings:.2%} bare words (most {BARE_WORDS:.1%})"
    )
    for module in modules:
        print(f"{module}: a module's name is a noun")
    if "--list" in sys.argv:
        print(*others, *(f"{place} x{times}" for place, times in bare.most_common()), sep="\n")
    within = verb_first >= VERB_FIRST * functions and participle_first <= PARTICIPLE_FIRST * functions
    return 0 if within and count <= BARE_WORDS * bindings and not modules else 1


if __name__ == "__main__":
    sys.exit(main())
