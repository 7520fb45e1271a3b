"""The fixtures of the command line."""

from cli_fixtures import bidr, isolated_state  # noqa: F401 - fixtures
