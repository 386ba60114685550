"""A configuration as nested dicts of plain data, and back; enums by their names."""

import enum
from collections.abc import Iterator, Mapping
from typing import Any

from millrace.errors import OptionError
from millrace.ipu.config.option import AttributeMetadata, Category, Group, Option, members


def as_dict(category: Category) -> dict[str, Any]:
    """Returns the values of a category and of those in it."""
    return {
        name: as_dict(value) if isinstance(value, Category) else _plain(value)
        for name, value in category._values.items()
    }


def put(category: Category, data: Mapping[str, Any]) -> None:
    """Sets what `as_dict` has returned, or a part of it.

    Raises:
        OptionError: for a name that is no attribute.
        DTypeError: for a value of another type.
    """
    for name, value in data.items():
        member = members(type(category)).get(name)
        if isinstance(member, Group) and isinstance(value, Mapping):
            put(getattr(category, name), value)
        elif not isinstance(member, Option) or value != _plain(getattr(category, name)):
            setattr(category, name, value if member is None else _member(member, value))


def options(category: Category) -> Iterator[tuple[str, Option, Any]]:
    """Yields the path, the option and the value of every attribute."""
    for name, member in members(type(category)).items():
        if isinstance(member, Group):
            yield from options(getattr(category, name))
        else:
            yield category._prefix + name, member, getattr(category, name)


def metadata(kind: type[Category], path: str) -> AttributeMetadata:
    """Returns what is known of the attribute at a path, `matmuls.poplar_options`.

    Raises:
        OptionError: if there is none.
    """
    *groups, name = path.split(".")
    for group in groups:
        member = members(kind).get(group)
        kind = member.kind if isinstance(member, Group) else Category
    member = members(kind).get(name)
    if member is None:
        raise OptionError(
            f"IPUConfig has no attribute {path!r}. Give the path of one, such as "
            "'device_connection.type'."
        )
    types = (Category,) if isinstance(member, Group) else member.types
    return AttributeMetadata(
        path,
        types,
        getattr(member, "default", None),
        member.doc,
        getattr(member, "deprecated", ""),
    )


def lines(category: Category) -> Iterator[str]:
    """Yields the values that differ from their defaults, as they would be set."""
    for path, option, value in options(category):
        if value != option.default:
            yield f"{path} = {value!r}"


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.name
    return list(value) if isinstance(value, tuple) else value


def _member(option: Any, value: Any) -> Any:
    """Returns the member of that name where an option is of an enum."""
    for kind in getattr(option, "types", ()):
        if issubclass(kind, enum.Enum) and isinstance(value, str) and value in kind.__members__:
            return kind[value]
    return value
