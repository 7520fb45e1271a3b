"""The help of commands: complete, grouped, and short where a command has many flags."""

import io
import re
from contextlib import redirect_stderr, redirect_stdout

import pytest
import tyro

from bidr.cli import main
from bidr.cli.help import format_help, list_flags
from bidr.cli.registry import VERBS
from bidr.errors import ConfigError
from bidr.planning.plan import parse_count
from bidr.utils.byte_sizes import parse_bytes

ALIASES = {"--asked": "--query-count"}


@pytest.mark.parametrize("verb", VERBS)
def test_help_all_lists_every_flag_that_the_parser_accepts(verb):
    text = io.StringIO()
    with redirect_stdout(text), redirect_stderr(text), pytest.raises(SystemExit):
        tyro.cli(VERBS[verb], args=["--help"], prog="bidr")
    accepted = set(re.findall(r"(?m)^[│| ]*(--[a-z][\w.-]*)", re.sub(r"\x1b\[[0-9;]*m", "", text.getvalue())))
    listed = [flag for flag in list_flags(VERBS[verb]) if flag.usage.startswith("-")]
    # A flag that a description mentions may stand at the start of a line, with the end of its sentence.
    names = {f"--{flag.name}" for flag in listed}
    accepted = {ALIASES.get(flag, flag) for flag in accepted}  # the parser shows the old name first
    mentioned = {"--no-learned-lists", "--unify.lists"} if verb == "build" else set()
    assert {flag.rstrip(".") for flag in accepted} - mentioned == names
    shown = format_help(VERBS[verb], verb, show_all=True)
    assert all(flag.usage in shown for flag in list_flags(VERBS[verb]))


@pytest.mark.parametrize(("verb", "most"), [("train", 16), ("compare", 14)])
def test_help_shows_about_a_dozen_flags_and_says_how_to_see_all(verb, most, capsys):
    assert main([verb, "--help"]) == 0
    shown = capsys.readouterr().out
    assert sum(line.startswith("  --") for line in shown.splitlines()) <= most
    assert f"bidr {verb} --help-all" in shown
    assert main([verb, "--help-all"]) == 0
    assert "--dense.sampler" in capsys.readouterr().out


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_no_python_types(verb):
    shown = format_help(VERBS[verb], verb, show_all=True)
    assert "{None}" not in shown
    assert "(default: None)" not in shown
    assert all(flag.text for flag in list_flags(VERBS[verb]))


def test_a_verb_named_help_in_words_after_dashes_is_a_query(capsys):
    assert main(["search", "--index", "nowhere", "--", "--help"]) == 2
    assert "usage" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "count"), [("10M", 10**7), ("1.5B", 1_500_000_000), ("250k", 250_000), ("1e9", 10**9)]
)
def test_counts_are_understood_with_units(given, count):
    assert parse_count("docs", given) == count


def test_a_size_without_its_unit_is_answered_with_the_likely_one():
    with pytest.raises(ConfigError, match=r"did you mean 64GiB\?"):
        parse_bytes("ram", "64")


@pytest.mark.parametrize("verb", VERBS)
def test_arguments_come_first_and_json_is_not_the_first_flag(verb: str) -> None:
    lines = [line.strip() for line in format_help(VERBS[verb], verb).partition("\n\n")[2].splitlines()]
    flags = [line for line in lines if line.startswith(("--", "INDEX ", "FOLDER ", "FILE "))]
    assert len(flags) == 1 or not flags[0].startswith("--json")
