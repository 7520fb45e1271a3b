"""What bench/options.py kept, as paired differences to one recipe, of candidates' recall and R@10, with 95 % intervals.

python bench/option_differences.py acl=OUT/options.json acl=OTHER/options.json trivia=OUT2/options.json --base star-opq

Files of one name are runs of the same data set; a recipe is compared within the last run that has it and the base.
Bold: the interval leaves out 0.
"""

import json
from pathlib import Path
from typing import Any

import tyro
from tyro.conf import Positional

from bidr.search.evaluation import Comparison, compare_paired

MEASURES = {"candidates": "candidates", "best": "R@10"}
Run = dict[str, Any]


def main(files: Positional[tuple[str, ...]], base: str = "star-opq", digits: int = 4) -> None:
    """files: NAME=options.json each."""
    runs: dict[str, list[Run]] = {}
    for name, _, path in (file.partition("=") for file in files):
        runs.setdefault(name, []).insert(0, json.loads(Path(path).read_text()))
    recipes = dict.fromkeys(recipe for some in runs.values() for run in some for recipe in run if recipe != base)
    heads = [f"{name}: {said}" for name in runs for said in MEASURES.values()]
    print(f"| against `{base}` | {' | '.join(heads)} |\n|---{'|---' * len(heads)}|")
    for recipe in recipes:
        cells = [cell(some, recipe, base, measure, digits) for some in runs.values() for measure in MEASURES]
        if any(cells):
            print(f"| `{recipe}` | {' | '.join(cells)} |")


def cell(runs: list[Run], recipe: str, base: str, measure: str, digits: int) -> str:
    for run in runs:
        if recipe in run and base in run:
            mine, other = (dict(enumerate(run[name][measure])) for name in (recipe, base))
            return shown(compare_paired(mine, other), digits)  # type: ignore[arg-type]
    return ""


def shown(found: Comparison, digits: int) -> str:
    difference, low, high = (f"{value:+.{digits}f}".replace("0.", ".", 1) for value in found[:3])
    mark = "**" if found.low > 0 or found.high < 0 else ""
    return f"{mark}{difference}{mark} [{low}, {high}]"


if __name__ == "__main__":
    tyro.cli(main)
