"""Changed attributes of a segment: those of the log in RAM, older ones as columns in files of the state.

000003.changed.npy      rows of segment 000003 whose attributes were changed, ascending
000003.attributes.*     their attributes, as `attribute_columns` describes
000003.column.*         their columns
"""

import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import numpy as np

from bidr.data.attribute_validation import check_attributes
from bidr.data.types import Attributes
from bidr.errors import REBUILD, AttributesError, IndexFolderError, to_short_json
from bidr.index.documents.attribute_columns import AttributeColumns, Mask
from bidr.index.documents.attribute_writer import AttributeWriter
from bidr.index.filters.bitmask import WORD_BITS, Bitmask
from bidr.index.filters.filter_expression import Filter, match_filter
from bidr.index.storage.checksums import VerifiedArray
from bidr.index.storage.live_state import SegmentEntry
from bidr.index.storage.manifest import HasFiles, hash_bytes
from bidr.index.vectors import BinaryWriter, write_npy_header
from bidr.utils.array_types import Rows
from bidr.utils.deadline import check_deadline

ROW = np.dtype("<i8")


class AttributeOverlay:
    """Attributes that replace those of some rows of a segment, in files of a state.

    stamp: fingerprint of the content.
    """

    def __init__(self, state: Path, files: HasFiles, entry: SegmentEntry) -> None:
        rows = VerifiedArray(state, entry.changed_file, ROW, files, verify_whole_file=True, below=entry.count)
        self.rows: Rows = rows.read_all().copy()
        rows.close()
        if len(self.rows) != entry.changed or (np.diff(self.rows) <= 0).any():
            raise IndexFolderError(f"{rows.path}: not {entry.changed:,} ascending rows; {REBUILD}")
        self.columns = AttributeColumns(state, files, entry.changed, prefix=f"{entry.name}.")
        prefix = f"{entry.name}."
        digests = [entry.xxh3 for name, entry in sorted(files.files.items()) if name.startswith(prefix)]
        self.stamp = hash_bytes("".join(digests).encode())
        # Not the overlay itself, which would then never be collected.
        weakref.finalize(self, self.columns.close)

    def find(self, row: int) -> int | None:
        """Return the place of a row; None: its attributes were not changed."""
        place = int(np.searchsorted(self.rows, row))
        return place if place < len(self.rows) and self.rows[place] == row else None


def write_overlay(
    create: Callable[[str], AbstractContextManager[BinaryWriter]],
    folder: Path,
    entry: SegmentEntry,
    rows: Rows,
    get_attributes: Callable[[int], Attributes | None],
) -> None:
    """Write the files of an overlay.

    Args:
        create: opens a new file of the state.
        folder: where values beyond the memory bound are spilled.
        entry: the segment.
        rows: changed rows, ascending.
        get_attributes: returns the new attributes of a row.
    """
    with create(entry.changed_file) as out:
        write_npy_header(out, ROW, (len(rows),))
        out.write(np.ascontiguousarray(rows, dtype=ROW).data.cast("B"))
    prefix = f"{entry.name}."
    with closing(AttributeWriter(lambda name: create(prefix + name), len(rows), folder)) as attributes:
        with attributes:
            for row in rows.tolist():
                attributes.append(get_attributes(row))
        attributes.write()


def match_changes(changes: Mapping[int, Attributes | None], expression: Filter) -> tuple[Rows, Mask]:
    """Return changed rows, and which of them match a filter."""
    matching = []
    for attributes in changes.values():
        check_deadline()
        matching.append(match_filter(expression, attributes or {}))
    return np.fromiter(changes, dtype=np.int64, count=len(changes)), np.array(matching, dtype=bool)


def set_bits(bitmask: Bitmask, rows: Rows, values: Mask) -> None:
    """Set the bits of rows to values."""
    words, bits = rows // WORD_BITS, np.left_shift(np.uint32(1), (rows % WORD_BITS).astype(np.uint32))
    np.bitwise_and.at(bitmask, words, ~bits)
    np.bitwise_or.at(bitmask, words[values], bits[values])


def validate_changes(values: Any, what: str) -> dict[str, Any]:
    """Validate changes of attributes: new values by name, None for those to remove."""
    if not isinstance(values, Mapping) or not values:
        raise AttributesError(
            f"{what}: changes of attributes",
            given=to_short_json(values),
            expected='an object such as {"price": 3, "stock": null}, where null removes an attribute',
            hint="give at least one attribute",
        )
    # Names are validated with a value, which a removed attribute does not have.
    check_attributes({name: 0 for name, value in values.items() if value is None}, what)
    checked = check_attributes({name: value for name, value in values.items() if value is not None}, what)
    return {**checked, **{name: None for name, value in values.items() if value is None}}


def apply_changes(attributes: Attributes | None, changes: Mapping[str, Any]) -> Attributes | None:
    """Return attributes with changes."""
    merged = {**(attributes or {}), **changes}
    return {name: value for name, value in merged.items() if value is not None} or None


def list_names(attributes: Iterable[Attributes | None]) -> set[str]:
    """Return the names of all attributes."""
    return {name for values in attributes for name in values or ()}
