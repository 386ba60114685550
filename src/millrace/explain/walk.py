"""The walk from a function or a model to everything that decides what it computes.

    text of a value   what the value is, in one line; functions, classes and layers by a label
    queue             what has got a label and has to be described, in the order of discovery
    fields            what is described

A label says what something is and where it was found: `loss()`, `layer 3 (Dense)`. Two things of
the same name are told apart by a number in the order of discovery, which is the same in every
process: no label and no text has an address, a hash of the process or a number of creation in it.
"""

import os
from collections import deque
from dataclasses import dataclass
from types import CodeType
from typing import Any

from millrace.explain.library import foreign_package, version_of
from millrace.plan import Mode
from millrace.records.compilation import Aspect, KeyField

# Values looked at in one walk. A closure over a whole application ends here, after 0.2 s.
MAX_VALUES = 20_000


@dataclass(frozen=True, slots=True)
class Description:
    """What decides what a function or a model computes."""

    fields: tuple[KeyField, ...]
    is_complete: bool  # whether equal fields mean an equal computation
    gaps: tuple[str, ...] = ()  # what is not described, if it is not complete


class Walk:
    """What a walk has found so far."""

    def __init__(self, own_variables: frozenset[int] | None = None, mode: Mode = Mode.TRAIN):
        """Begins at nothing.

        Args:
            own_variables: ids of variables that a program is given and gives back. Others are
                constants of the program. None takes all variables for given.
            mode: in which models are used.
        """
        self.mode = mode
        self.queue: deque[tuple[Any, str]] = deque()
        self.own_variables = own_variables
        self.open: list[int] = []  # ids of the objects whose text is being made
        self.looked_through: set[type] = set()  # classes of libraries, for what is not theirs
        self._labels: dict[int, str] = {}
        self._alive: list[Any] = []  # so that an id means one object
        self._taken: dict[str, int] = {}
        self._fields: dict[tuple[Aspect, str], KeyField] = {}
        self._gaps: dict[str, None] = {}
        self._values = 0

    def label(self, found: Any, name: str, describe: bool = True) -> str:
        """Returns the label of something, which is described later if it is new."""
        known = self._labels.get(id(found))
        if known is not None:
            return known
        label = self._labels[id(found)] = self.unique(name)
        self._alive.append(found)
        if describe:
            self.queue.append((found, label))
        return label

    def label_of(self, found: Any) -> str | None:
        """Returns the label of something that has one."""
        return self._labels.get(id(found))

    def unique(self, name: str) -> str:
        """Returns the name, or with a number if something else has it."""
        count = self._taken[name] = self._taken.get(name, 0) + 1
        return name if count == 1 else f"{name} ({count})"

    def add(self, aspect: Aspect, name: str, value: str, where: str = "") -> None:
        """Adds a field. Of two with one name, the first stays."""
        self._fields.setdefault((aspect, name), KeyField(aspect, name, value, where))

    def miss(self, what: str) -> None:
        """Takes note of something that is not described completely."""
        self._gaps[what] = None

    def count(self) -> bool:
        """Counts a value; False once there are too many."""
        self._values += 1
        if self._values > MAX_VALUES:
            self.miss(f"more than {MAX_VALUES:,} values")
            return False
        return True

    def uses(self, module: str | None) -> None:
        """Takes note of an installed package that code is part of."""
        package = foreign_package(module)
        if package is None:
            return
        version = version_of(package)
        if version is None:
            self.miss(f"package {package}, which has no version")
        else:
            self.add(Aspect.VERSION, package, version)

    def description(self) -> Description:
        """Returns what was found."""
        return Description(tuple(self._fields.values()), not self._gaps, tuple(self._gaps))


def place_of(code: CodeType) -> str:
    """Returns the file and the line of a function."""
    name = code.co_filename
    return f"{name if name.startswith('<') else os.path.basename(name)}:{code.co_firstlineno}"
