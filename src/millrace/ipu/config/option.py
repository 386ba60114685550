"""One typed attribute of a category of `IPUConfig`, and what is known of it.

class Matmuls(Category):
    poplar_options = Option(dict, {}, "...")           checked when it is set
"""

import copy
from dataclasses import dataclass
from typing import Any

from millrace.errors import DTypeError


@dataclass(frozen=True)
class AttributeMetadata:
    """What is known of one attribute."""

    name: str  # with the categories it is in, `matmuls.poplar_options`
    types: tuple[type, ...]
    default: Any
    doc: str
    deprecated: str = ""  # what to set in its place; empty where it is not deprecated

    @property
    def type(self) -> str:
        """The types that it takes, as text."""
        return " or ".join(kind.__name__ for kind in self.types)


class Option:
    """One attribute of a category."""

    def __init__(
        self,
        types: type | tuple[type, ...],
        default: Any,
        doc: str,
        *,
        advice: str = "",
        deprecated: str = "",
    ):
        """Describes the attribute.

        Args:
            types: of its values. A list or tuple holds whole numbers.
            default: its value at first.
            doc: a sentence.
            advice: what to do in its place, where it does nothing here; empty where it does.
            deprecated: the attribute of the same category to set in its place.
        """
        self.types = types if isinstance(types, tuple) else (types,)
        self.default, self.doc, self.advice, self.deprecated = default, doc, advice, deprecated
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, owner: Any, kind: type) -> Any:
        return self if owner is None else owner._values.get(self.name, self.default)

    def __set__(self, owner: Any, value: Any) -> None:
        owner._warn_if_deprecated(self)
        owner._values[self.name] = self.checked(owner._prefix + self.name, value)

    def checked(self, path: str, value: Any) -> Any:
        """Returns a value that the attribute can have.

        Raises:
            DTypeError: for one of another type.
        """
        is_right = isinstance(value, self.types)
        if isinstance(value, bool) and bool not in self.types:
            is_right = False
        if isinstance(value, list | tuple) and is_right:
            is_right = all(isinstance(v, int) and not isinstance(v, bool) for v in value)
        if not is_right:
            wanted = " or ".join(kind.__name__ for kind in self.types)
            raise DTypeError(
                f"IPUConfig.{path} takes {wanted}. Received: {value!r} of type "
                f"{type(value).__name__}. Its default is {self.default!r}."
            )
        return copy.copy(value)
