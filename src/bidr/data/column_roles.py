"""Roles of columns: which holds ids, texts, titles and vectors, and which become attributes."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from bidr.data.attribute_conversion import is_attribute_name
from bidr.data.validation import format_value
from bidr.errors import ConfigError, DataError

ROLE_NAMES = {
    "id": ("id", "_id", "docid", "doc_id", "document_id", "passage_id", "pid"),
    "text": ("text", "body", "content", "contents", "passage", "page_content", "chunk", "document"),
    "title": ("title",),
    "vector": ("vector", "vectors", "embedding", "embeddings", "emb"),
}
"""Names by which columns are recognized, in any case."""
MAX_LISTED = 12


class ColumnOptions(NamedTuple):
    """Columns named by the user. None: recognized by name; for `metadata`: all that have no role."""

    text: str | None = None
    id: str | None = None
    title: str | None = None
    vector: str | None = None
    metadata: Sequence[str] | None = None

    def list_given(self) -> list[str]:
        """List the names of the options that were given."""
        return [format_option(name) for name, value in self._asdict().items() if value is not None]


class ColumnRoles(NamedTuple):
    """Columns by role; None: there is no such column.

    attributes: columns that become attributes; None: every one without a role, which may differ by record.
    unusable:   columns that cannot become attributes because of their names.
    """

    id: str | None
    text: str | None
    title: str | None
    vector: str | None
    attributes: tuple[str, ...] | None
    unusable: tuple[str, ...] = ()

    @property
    def role_columns(self) -> frozenset[str]:
        """Columns with a role."""
        return frozenset(name for name in (self.id, self.text, self.title, self.vector) if name is not None)

    def list_document_columns(self) -> list[str]:
        """List the columns that documents are made of."""
        names = [name for name in (self.id, self.title, self.text) if name is not None]
        return [*names, *(self.attributes or ())]

    def format(self, where: str) -> str:
        """Describe the roles in one line."""
        parts = [f"{role} from {getattr(self, role)!r}" for role in ROLE_NAMES if getattr(self, role) is not None]
        parts += ["ids are row numbers"] if self.id is None else []
        attributes = "all other fields" if self.attributes is None else format_names(self.attributes) or "none"
        line = f"{where}: {', '.join(parts)}; attributes: {attributes}"
        if self.unusable:
            line += f"; left out, because no attribute can have such a name: {format_names(self.unusable)}"
        return line


def format_option(role: str) -> str:
    """Return the name of the option for a role."""
    return role if role == "metadata" else f"{role}_column"


def format_names(names: Collection[str]) -> str:
    """Format column names for messages; many are cut."""
    text = ", ".join(repr(name) for name in list(names)[:MAX_LISTED])
    return f"{text} and {len(names) - MAX_LISTED:,} more" if len(names) > MAX_LISTED else text


def resolve_columns(
    columns: Sequence[str], options: ColumnOptions, where: str, *, varying: bool = False, has_vectors: bool = True
) -> ColumnRoles:
    """Find the role of each column, by the options, else by its name.

    Args:
        columns: Names of the columns.
        options: Columns that the user named.
        where: Name of the source in error messages.
        varying: Records may have fields that are not among `columns`.
        has_vectors: Whether a column may hold vectors.

    Raises:
        DataError: Several columns could have a role.
        ConfigError: An option names a column that does not exist.
    """
    roles = {role: _find_column(role, columns, getattr(options, role), where) for role in ROLE_NAMES}
    if not has_vectors:
        roles["vector"] = None
    given_twice = [name for name in set(roles.values()) if name is not None and list(roles.values()).count(name) > 1]
    if given_twice:
        options_text = " and ".join(format_option(role) for role, name in roles.items() if name == given_twice[0])
        raise ConfigError(f"{options_text}: given {given_twice[0]!r} for both, expected different columns of {where}")
    others = [name for name in columns if name not in roles.values()]
    unusable = tuple(name for name in others if not is_attribute_name(name)) if options.metadata is None else ()
    attributes: tuple[str, ...] | None = tuple(name for name in others if name not in unusable)
    if options.metadata is not None:
        attributes = _check_metadata(options.metadata, columns, where)
    elif varying:
        attributes = None
    return ColumnRoles(roles["id"], roles["text"], roles["title"], roles["vector"], attributes, unusable)


def make_no_content_error(columns: Sequence[str], where: str) -> DataError:
    """Return the error for a source in which no column holds texts or vectors."""
    return DataError(
        f"{where}: no column has a usual name of texts ({', '.join(ROLE_NAMES['text'])}) or vectors "
        f"({', '.join(ROLE_NAMES['vector'])}); its columns: {format_names(columns) or 'none'}; name one with "
        "text_column (--text-column) or vector_column (--vector-column)"
    )


def _find_column(role: str, columns: Sequence[str], name: str | None, where: str) -> str | None:
    if name is not None:
        return _check_column(format_option(role), name, columns, where)
    matches = [column for column in columns if column.casefold() in ROLE_NAMES[role]]
    if len(matches) > 1:
        option = format_option(role)
        raise DataError(
            f"{where}: the columns {format_names(matches)} could each be the {role}; its columns: "
            f"{format_names(columns)}; name one with {option} (--{option.replace('_', '-')})"
        )
    return matches[0] if matches else None


def _check_column(option: str, name: str, columns: Sequence[str], where: str) -> str:
    if not isinstance(name, str):
        raise ConfigError(f"{option}: given {format_value(name)}, expected the name of a column of {where}")
    if name not in columns:
        raise ConfigError(
            f"{option}: given {name!r}, expected a column of {where}, which has {format_names(columns) or 'none'}"
        )
    return name


def _check_metadata(metadata: Sequence[str], columns: Sequence[str], where: str) -> tuple[str, ...]:
    if isinstance(metadata, str):
        raise ConfigError(f"metadata: given the string {metadata!r}, expected a list of columns: [{metadata!r}]")
    for name in metadata:
        _check_column("metadata", name, columns, where)
        if not is_attribute_name(name):
            raise ConfigError(f"metadata: given {name!r}, which no attribute can be called; rename the column")
    return tuple(dict.fromkeys(metadata))
