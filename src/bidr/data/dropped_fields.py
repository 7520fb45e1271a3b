"""What of a corpus is not stored as it was written: counted, and told once."""

from collections import Counter
from typing import Any

from bidr.data.validation import is_unicode, replace_surrogates
from bidr.utils.progress import say

MOST_NAMES, SHOWN = 1_000, 5


class LeftOut:
    """Counts the values of metadata that are left out, by the field that they are in, and texts that are repaired."""

    def __init__(self) -> None:
        self.count, self.first = 0, ""
        self.fields = Counter[str]()
        self.repaired, self.first_repaired = 0, ""

    def repair(self, text: str, place: str, field: str) -> str:
        """The text as it can be stored: each half of a surrogate pair becomes U+FFFD."""
        if is_unicode(text):
            return text
        self.count_repaired(place, field)
        return replace_surrogates(text)

    def count_repaired(self, place: str, field: str) -> None:
        self.first_repaired = self.first_repaired or f"{field!r} of {place}"
        self.repaired += 1

    def __call__(self, place: str, name: str) -> None:
        name = replace_surrogates(name)
        self.first = self.first or f"{name!r} of {place}"
        self.count += 1
        if name in self.fields or len(self.fields) < MOST_NAMES:
            self.fields[name] += 1

    def counts(self) -> dict[str, Any]:
        """What was counted, for programs."""
        return {"left_out": self.count, "left_out_fields": dict(self.fields), "repaired_texts": self.repaired}

    def tell(self, where: str) -> None:
        """Say it, where there is anything to say."""
        if self.repaired:
            say(
                f"{where}: {self.repaired:,} titles and texts are no valid Unicode (half of a surrogate pair), the "
                f"first {self.first_repaired}; what cannot be stored of them was replaced by U+FFFD"
            )
        if not self.count:
            return
        often = [f"{name!r} ({count:,})" for name, count in self.fields.most_common(SHOWN)]
        more = f" and {len(self.fields) - SHOWN:,} more fields" if len(self.fields) > SHOWN else ""
        say(
            f"{where}: {self.count:,} values of metadata were left out, of {', '.join(often)}{more}, the first "
            f"{self.first}; attributes are strings (valid Unicode), finite numbers, truth values "
            "and lists of strings"
        )
