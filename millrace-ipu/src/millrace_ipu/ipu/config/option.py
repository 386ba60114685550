"""Typed attributes of `IPUConfig`, their categories, and both as plain data.

@with_options({"matmuls.poplar_options": Option(dict, {}, "...")})
class IPUConfig(Category): ...

config.matmuls                         a Category within another one
config.matmuls.poplar_options = {}     one attribute, checked when it is set

as_dict(config)  ->  {"matmuls": {"poplar_options": {}}}  ->  put(config, data)      enums by name
"""

import copy
import difflib
import enum
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from millrace.errors import DTypeError, OptionError


@dataclass(frozen=True)
class AttributeMetadata:
    """The description of one attribute."""

    name: str  # with its categories, `matmuls.poplar_options`
    types: tuple[type, ...]
    default: object
    doc: str
    deprecated: str = ""  # the attribute to set instead; empty unless this one is deprecated

    @property
    def type(self) -> str:
        """The types of its values, as text."""
        return " or ".join(kind.__name__ for kind in self.types)


class Option:
    """One attribute of a category."""

    def __init__(
        self,
        types: type | tuple[type, ...],
        default: object,
        doc: str,
        *,
        advice: str = "",
        deprecated: str = "",
    ):
        """Describes the attribute.

        Args:
            types: of its values. A list or tuple holds whole numbers.
            default: its initial value.
            doc: its meaning, a sentence.
            advice: what to do instead, for an attribute without effect here; else empty.
            deprecated: the attribute of the same category that has replaced it.
        """
        self.types = types if isinstance(types, tuple) else (types,)
        self.default, self.doc, self.advice, self.deprecated = default, doc, advice, deprecated
        self.name = ""

    def __get__(self, owner: "Category | None", kind: type) -> Any:
        return self if owner is None else owner._values.get(self.name, self.default)

    def __set__(self, owner: "Category", value: object) -> None:
        if self.deprecated:
            warnings.warn(
                f"IPUConfig.{owner._prefix}{self.name} is deprecated. Set "
                f"IPUConfig.{owner._prefix}{self.deprecated} instead.",
                DeprecationWarning,
                stacklevel=3,
            )
        owner._values[self.name] = self.checked(owner._prefix + self.name, value)

    def checked(self, path: str, value: object) -> object:
        """Returns a copy of a value, after checking its type.

        Raises:
            DTypeError: for a value of another type.
        """
        is_right = isinstance(value, self.types)
        if isinstance(value, bool):
            is_right = bool in self.types
        if isinstance(value, list | tuple) and is_right:
            is_right = all(type(each) is int for each in value)
        if not is_right:
            wanted = " or ".join(kind.__name__ for kind in self.types)
            raise DTypeError(
                f"IPUConfig.{path} takes {wanted}. Received: {value!r} of type "
                f"{type(value).__name__}. Its default is {self.default!r}."
            )
        return copy.copy(value)


class Subcategory:
    """A category within another one."""

    def __init__(self, kind: "type[Category]", name: str):
        self.kind, self.name, self.doc = kind, name, f"The options of {name}."

    def __get__(self, owner: "Category | None", kind: type) -> Any:
        return self if owner is None else owner._values[self.name]

    def __set__(self, owner: "Category", value: object) -> None:
        path = owner._prefix + self.name
        names = list(members(self.kind))
        raise OptionError(
            f"IPUConfig.{path} is a category of options and cannot be assigned. Received: "
            f"{value!r}. Set one of its options, such as IPUConfig.{path}.{names[0]} (of: "
            f"{', '.join(names)})."
        )


class Category:
    """A group of attributes. Only declared attributes can be set, to values of their types."""

    _prefix: str
    _values: dict[str, Any]

    def __init__(self, prefix: str = ""):
        # Past __setattr__, which takes options and groups only.
        object.__setattr__(self, "_prefix", prefix)
        object.__setattr__(self, "_values", {})
        for name, member in members(type(self)).items():
            if isinstance(member, Subcategory):
                self._values[name] = member.kind(f"{prefix}{name}.")
            else:
                self._values[name] = copy.copy(member.default)

    def __setattr__(self, name: str, value: object) -> None:
        if name not in members(type(self)):
            raise OptionError(_unknown(type(self), self._prefix, name))
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:  # reached for names that do not exist
        raise AttributeError(_unknown(type(self), self.__dict__.get("_prefix", ""), name))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]


def with_options(options: Mapping[str, Option]) -> Callable[[type[Any]], type[Any]]:
    """Returns a decorator that gives a category options, by their paths."""

    def decorated(kind: type[Any]) -> type[Any]:
        inner: dict[str, dict[str, Option]] = {}
        for path, option in options.items():
            name, _, rest = path.partition(".")
            if rest:
                inner.setdefault(name, {})[rest] = option
            else:
                option.name = name
                setattr(kind, name, option)
        for name, its in inner.items():
            setattr(kind, name, Subcategory(with_options(its)(type(name, (Category,), {})), name))
        return kind

    return decorated


def members(kind: type) -> dict[str, Option | Subcategory]:
    """Returns the options and subcategories of a category, in the order of their declaration."""
    values = vars(kind).items()
    return {name: value for name, value in values if isinstance(value, Option | Subcategory)}


def _unknown(kind: type, prefix: str, name: str) -> str:
    names = list(members(kind))
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" Did you mean {prefix}{near[0]}?" if near else ""
    return f"IPUConfig has no attribute {prefix}{name}.{hint} It has: {', '.join(names)}."


def as_dict(category: Category) -> dict[str, object]:
    """Returns the values of a category, and those of its categories as nested dicts."""
    return {
        name: as_dict(value) if isinstance(value, Category) else _plain(value)
        for name, value in category._values.items()
    }


def put(category: Category, data: Mapping[str, object]) -> None:
    """Sets the values of a dict from `as_dict`, or some of them.

    Raises:
        OptionError: for an unknown name.
        DTypeError: for a value of another type.
    """
    for name, value in data.items():
        member = members(type(category)).get(name)
        if isinstance(member, Subcategory) and isinstance(value, Mapping):
            put(getattr(category, name), value)
        elif not isinstance(member, Option) or value != _plain(getattr(category, name)):
            setattr(category, name, value if member is None else _member(member, value))


def options(category: Category) -> Iterator[tuple[str, Option, object]]:
    """Yields the path, the option and the value of every attribute."""
    for name, member in members(type(category)).items():
        if isinstance(member, Subcategory):
            yield from options(getattr(category, name))
        else:
            yield category._prefix + name, member, getattr(category, name)


def metadata(kind: type[Category], path: str) -> AttributeMetadata:
    """Returns the description of the attribute at a path, `matmuls.poplar_options`.

    Raises:
        OptionError: if no attribute has this path.
    """
    *groups, name = path.split(".")
    for group in groups:
        member = members(kind).get(group)
        kind = member.kind if isinstance(member, Subcategory) else Category
    member = members(kind).get(name)
    if member is None:
        raise OptionError(
            f"IPUConfig has no attribute {path!r}. Give the path of one, such as "
            "'device_connection.type'."
        )
    if isinstance(member, Subcategory):
        return AttributeMetadata(path, (Category,), None, member.doc)
    return AttributeMetadata(path, member.types, member.default, member.doc, member.deprecated)


def _plain(value: object) -> object:
    if isinstance(value, enum.Enum):
        return value.name
    return list(value) if isinstance(value, tuple) else value


def _member(option: Option | Subcategory, value: object) -> object:
    """Returns the enum's member of that name for an option with an enum; else the value."""
    for kind in getattr(option, "types", ()):
        if issubclass(kind, enum.Enum) and isinstance(value, str) and value in kind.__members__:
            return kind[value]
    return value
