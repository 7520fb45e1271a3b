"""What of a corpus' metadata cannot be attributes: counted, and told once."""

from collections import Counter

from bidr.progress import say

MOST_NAMES, SHOWN = 1_000, 5


class LeftOut:
    """Counts the values of metadata that are left out, by the field that they are in."""

    def __init__(self) -> None:
        self.count, self.first = 0, ""
        self.fields = Counter[str]()

    def __call__(self, place: str, name: str) -> None:
        self.first = self.first or f"{name!r} of {place}"
        self.count += 1
        if name in self.fields or len(self.fields) < MOST_NAMES:
            self.fields[name] += 1

    def tell(self, where: str) -> None:
        """Say it, where there is anything to say."""
        if not self.count:
            return
        often = [f"{name!r} ({count:,})" for name, count in self.fields.most_common(SHOWN)]
        more = f" and {len(self.fields) - SHOWN:,} more fields" if len(self.fields) > SHOWN else ""
        say(
            f"{where}: {self.count:,} values of metadata were left out, of {', '.join(often)}{more}, the first "
            f"{self.first}; attributes are strings, finite numbers, truth values and lists of strings"
        )
