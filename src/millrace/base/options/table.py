"""The declaration of an option in one place: a field of a frozen record.

    class Feed:
        prefetch_depth: int = declare(
            2, Option("prefetch_depth", at_least(1), (INFEED,), doc="blocks prepared ahead")
        )

From these come the setters with their signatures, checks and docstrings, the keys of
`millrace.json`, the names in explanations of recompilations, and docs/options.md.

One rule for None: **an argument left out, or None, keeps the value in force.** An option whose
default is decided later, by the device or by other options, has None in its record until it is
set; `"auto"` puts it back to that default.
"""

import dataclasses
import enum
import functools
import os
import pathlib
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from millrace.base.options.checks import Check

T = TypeVar("T")

# The setters, which `api/strategy/setters.py` makes of the table.
ACCUMULATION = "set_gradient_accumulation_options"
PIPELINING = "set_pipelining_options"
REPLICATION = "set_replication_options"
RECOMPUTATION = "set_recomputation_options"
INFEED = "set_infeed_queue_options"
CALLBACKS = "set_asynchronous_callbacks"

AUTO = "auto"
Auto = Literal["auto"]
_KEY = "option"  # in the metadata of a field


def file_text(value: object) -> str:
    """Returns the text of a file if `value` is its path, else `value` as text."""
    text = str(value)
    path = pathlib.Path(text)
    is_file = isinstance(value, os.PathLike) or ("\n" not in text and path.is_file())
    return path.read_text() if is_file else text


def as_plain(value: object) -> object:
    """Returns a value of a record as JSON has it: of an enumeration's member the value."""
    return value.value if isinstance(value, enum.Enum) else value


@dataclass(frozen=True, slots=True)
class Option:
    """An option as users write it.

    Attributes:
        name: public name, in messages and explanations.
        check: returns a value as it is kept, or raises an `OptionError`.
        setters: methods that take it by its name.
        doc: what it is, for docstrings and docs/options.md.
        arguments: methods that take it by another name, with that name.
        auto: the default that None stands for, if `"auto"` puts it in force again.
        saved_as: key in `millrace.json`, where it is not the field's name.
        to_json: returns a value as it is saved.
        is_in_key: whether it is part of the key of a program whose plan has its record.
        in_key: returns its value there; of a record that has it in another form.
        accepts: types that users may give, where these are more than the field's.
    """

    name: str
    check: Check
    setters: tuple[str, ...] = ()
    doc: str = field(kw_only=True)
    arguments: Mapping[str, str] = field(default_factory=dict[str, str], kw_only=True)
    auto: str = field(default="", kw_only=True)
    saved_as: str = field(default="", kw_only=True)
    to_json: Callable[[object], object] = field(default=as_plain, kw_only=True)
    is_in_key: bool = field(default=True, kw_only=True)
    in_key: Callable[[Any], object] | None = field(default=None, kw_only=True)
    accepts: Any = field(default=None, kw_only=True)

    def argument(self, setter: str) -> str | None:
        """Returns its name in a setter; None if that does not take it."""
        return self.arguments.get(setter, self.name if setter in self.setters else None)

    def checked(self, argument: str, value: object) -> object:
        """Returns a value, which is not None, as it is kept.

        Raises:
            OptionError: for an invalid one.
        """
        if self.auto and isinstance(value, str) and value.lower() == AUTO:
            return None
        return self.check(argument, value)


def declare(default: T, option: Option) -> T:
    """Makes a field of a record an option."""
    return dataclasses.field(default=default, metadata={_KEY: option})


@dataclass(frozen=True, slots=True)
class Entry:
    """An option, and the field that has its value."""

    record: str  # in `Options`; empty for a field of `Options` itself
    field: str
    option: Option
    default: object
    accepts: Any  # the types that a setter takes

    @property
    def saved_as(self) -> str:
        """The key in `millrace.json`."""
        return self.option.saved_as or self.field

    def put(self, options: Any, value: object) -> Any:
        """Returns a model's options with another value of this one."""
        changes: dict[str, Any] = {self.field: value}
        if self.record:
            changes = {self.record: dataclasses.replace(getattr(options, self.record), **changes)}
        return dataclasses.replace(options, **changes)


@functools.cache
def entries_of(record: type, name: str = "") -> tuple[Entry, ...]:
    """Returns the options that a class of records declares; `name` is its field in `Options`."""
    entries: list[Entry] = []
    types = typing.get_type_hints(record)
    for each in dataclasses.fields(record):
        option: Option | None = each.metadata.get(_KEY)
        if option is not None:
            accepts = option.accepts or types[each.name]
            if isinstance(accepts, type) and issubclass(accepts, enum.Enum):
                accepts = Literal[*(member.value for member in accepts)] | accepts
            entries.append(Entry(name, each.name, option, each.default, accepts | None))
    return tuple(entries)


def table_of(options: type) -> tuple[Entry, ...]:
    """Returns all options of a model: those of the records in the class `options`, then its own."""
    records: dict[str, type] = typing.get_type_hints(options)
    nested = {name: cls for name, cls in records.items() if dataclasses.is_dataclass(cls)}
    entries = [entry for name, cls in nested.items() for entry in entries_of(cls, name)]
    return (*entries, *entries_of(options))


def key_fields(record: object) -> Iterator[tuple[str, object]]:
    """Yields public name and value of each option of a record that decides its programs."""
    for entry in entries_of(type(record)):
        option = entry.option
        if option.is_in_key:
            value = getattr(record, entry.field) if option.in_key is None else option.in_key(record)
            yield option.name, as_plain(value)
