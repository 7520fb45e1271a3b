"""The flag --filter."""

from typing import Any

from bidr.errors import ConfigError


def parse_filter_flag(text: str, attributes: set[str]) -> Any:
    """Parse --filter; refuse attributes that no document has, which are misspelled as a rule.

    Args:
        text: JSON.
        attributes: names of the attributes of the index.
    """
    from bidr.index.filters.filter_expression import list_attribute_names, parse_filter, parse_filter_json

    condition = parse_filter_json(text)
    unknown = sorted(list_attribute_names(parse_filter(condition)) - attributes)
    if unknown:
        names = ", ".join(map(repr, unknown))
        expected = f"it has {', '.join(sorted(attributes))}" if attributes else "it has none"
        raise ConfigError(f"--filter: given {names}, expected attributes of this index; {expected}")
    return condition
