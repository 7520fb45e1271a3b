"""The corpus made from the documentation of Python packages."""

import json
import sysconfig
from pathlib import Path

import pytest

from bidr.data.dataset import check, load
from bidr.demo.python_docs import collect, list_default_roots, normalize_text, write_corpus
from bidr.demo.python_source import parse_objects, split_summary
from bidr.errors import ConfigError, DataError

SOURCE = '''
"""A module."""

def area(width: float, height: float = 1.0) -> float:
    """Return the area of a rectangle. Both sides must be positive.

    The unit is that of the sides, squared.
    """
    if width < 0 or height < 0:
        raise ValueError("a side is negative")
    return width * height

def _hidden(width):
    """Return what nobody outside should ever use."""
    return width * 2 + width ** 3 + width ** 4 + width ** 5

def short(a, b):
    """Too short."""
    return a + b + a * b + a ** b + b ** a

def stub(value):
    """Do nothing with the value given."""

class Shape:
    """A closed figure in the plane.

    Made of sides.
    """

    sides: int = 4

    def __init__(self, sides: int) -> None:
        self.sides = sides

    def perimeter(self, side_length: float) -> float:
        """Sum the lengths of all the sides."""
        total = side_length * self.sides
        return total + 0.0 if total else 0.0
'''


def test_objects_of_a_file() -> None:
    found = {one.id: one for one in parse_objects(SOURCE, "geo.flat")}
    assert list(found) == ["geo.flat.area", "geo.flat.Shape", "geo.flat.Shape.perimeter"]
    area = found["geo.flat.area"]
    assert area.summary == "Return the area of a rectangle"
    assert area.title == "area in geo.flat"
    assert area.text.startswith("def area(width: float, height: float = 1.0) -> float\nBoth sides must be positive.")
    assert "squared" in area.text
    assert "return width * height" in area.text
    shape = found["geo.flat.Shape"]
    assert "def perimeter(self, side_length: float) -> float" in shape.text
    assert "Sum the lengths" not in shape.text, "that is the question of another document"


@pytest.mark.parametrize("broken", ["def f(:\n", "print 'two'\n", "\x00", ""])
def test_what_is_not_python_gives_nothing(broken: str) -> None:
    assert parse_objects(broken, "broken") == []


@pytest.mark.parametrize(
    ("documentation", "summary"),
    [
        ("Do one thing, e.g. This or that. Then more.", "Do one thing, e.g. This or that"),
        ("Make :class:`~a.b.Thing` from ``x``\nand `y`.\n\nMore.", "Make Thing from x and y"),
        ("f(x, y) -> int\n\nAdd x and y.", "Add x and y"),
        ("No full stop\n\nMore", "No full stop"),
    ],
)
def test_summary(documentation: str, summary: str) -> None:
    assert split_summary(documentation)[0] == summary


def function(name: str, summary: str, body: str) -> str:
    return (
        f'def {name}(value):\n    """{summary}"""\n    first = value + 1\n    return first * value + first + {body}\n\n'
    )


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    first = function("f", "Compute the first of many things.", "1")
    told = function("told", "Value plus one first.", "5").replace("+ 1\n", "+ 1  # value plus one first\n")
    files = {
        "one/a.py": first + function("g", "Shared by two of these.", "2"),
        "one/_vendor/a.py": first,
        "one/tests/a.py": function("f", "Test that this is left out.", "3"),
        "one/test_b.py": function("f", "Test that this is left out.", "3"),
        "one/broken.py": "def (",
        "two.py": function("h", "Shared by two of these!", "4") + told,
        **{f"many/m{n}.py": function(f"same{n}", "The same words for all.", str(n + 10)) for n in range(4)},
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


def test_documents_and_questions(packages: Path) -> None:
    made = collect(100, [packages])
    ids = {document.id for document in made.documents}
    assert len(ids & {"one.a.f", "one._vendor.a.f"}) == 1, "a vendored copy is one document"
    assert ids - {"one.a.f", "one._vendor.a.f"} == {
        "one.a.g",
        "two.h",
        "two.told",
        *(f"many.m{n}.same{n}" for n in range(4)),
    }
    answers = {query.text.rstrip("!"): made.qrels_by_split["train"][query.id] for query in made.queries}
    assert answers.keys() == {"Compute the first of many things", "Shared by two of these"}
    assert answers["Shared by two of these"] == {"one.a.g": 1, "two.h": 1}


def test_every_package_is_represented_when_there_are_too_many(packages: Path) -> None:
    made = collect(4, [packages])
    assert len(made.documents) == 4
    assert {document.id.partition(".")[0] for document in made.documents} == {"one", "two", "many"}


def test_nothing_to_collect(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no documented Python code in"):
        collect(10, [tmp_path])
    with pytest.raises(ConfigError, match="limit=0"):
        collect(0)


@pytest.fixture(scope="module")
def standard_library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def test_of_this_machine(standard_library: Path, tmp_path: Path) -> None:
    made = collect(1_500, [standard_library])
    assert made == collect(1_500, [standard_library]), "deterministic"
    asked = {query.id: normalize_text(query.text) for query in made.queries}
    assert len(set(asked.values())) == len(asked), "no two questions are the same but for case or punctuation"
    splits = [set(qrels) for qrels in made.qrels_by_split.values()]
    assert sorted(made.qrels_by_split) == ["dev", "test", "train"]
    assert len(set.union(*splits)) == sum(map(len, splits)) == len(asked)
    assert len(made.qrels_by_split["test"]) == len(asked) // 10
    texts = {document.id: normalize_text(f"{document.title} {document.text}") for document in made.documents}
    for qrels in made.qrels_by_split.values():
        for query, answers in qrels.items():
            assert 1 <= len(answers) <= 3
            assert not any(asked[query] in texts[answer] for answer in answers)
    assert all(len(document.text) <= 1_500 for document in made.documents)


def test_written_folder_is_a_sound_data_set(tmp_path: Path) -> None:
    dataset = load(write_corpus(tmp_path / "docs", limit=300))
    assert len(check(dataset)) == 300
    assert dataset.splits() == ["dev", "test", "train"]
    first = (tmp_path / "docs" / "corpus.jsonl").read_text().partition("\n")[0]
    assert json.loads(first).keys() == {"_id", "title", "text"}


def test_roots_are_the_interpreters_own(standard_library: Path) -> None:
    assert list_default_roots()[0] == standard_library
    assert all(root.is_dir() for root in list_default_roots())
