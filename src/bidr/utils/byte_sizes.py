"""Sizes of memory as texts."""

import math
import re

from bidr.errors import ConfigError

UNITS = {"": 1, **{f"{unit}B": 1000 ** (power + 1) for power, unit in enumerate("KMGTP")}}
UNITS |= {f"{unit}iB": 1024 ** (power + 1) for power, unit in enumerate("KMGTP")} | {"B": 1}
# A size without a unit is bytes; a smaller one more likely lacks its unit.
MIN_UNITLESS_BYTES = 1 << 20


def parse_bytes(name: str, text: str) -> int:
    """Parse a size such as 64GiB, 500MB or 1e9."""
    match = re.fullmatch(r"\s*([0-9.]+(?:e[+]?[0-9]{1,2})?)\s*([A-Za-z]*)\s*", text)
    units = {unit.lower(): size for unit, size in UNITS.items()}
    units |= {unit[0].lower(): size for unit, size in UNITS.items() if unit.endswith("iB")}
    try:
        number = float(match[1]) * units[match[2].lower()] if match else math.nan
    except (ValueError, KeyError):
        number = math.nan
    if not 1 <= number < 1 << 60:
        raise ConfigError(f"{name}: given {text!r}, expected a size such as 64GiB, 500MB or 1.5TiB")
    if match and not match[2] and number < MIN_UNITLESS_BYTES:
        raise ConfigError(f"{name}: given {text!r}, which is {number:,.0f} bytes; did you mean {match[1]}GiB?")
    return int(number)
