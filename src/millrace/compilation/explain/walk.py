"""The walk from a function or a model to all values that decide its results.

    text of a value   the value in one line; functions, classes and layers by a label
    queue             labelled objects that are still to be described, in the order of discovery
    fields            the description so far

A label names an object: `loss()`, `layer 3 (Dense)`. Two objects of one name are told apart by a
number, in the order of discovery, which is the same in every process: no label and no text contains
an address, a hash of the process or a creation number.

The code of libraries is not read: the name and the version of a package stand for it.
"""

import builtins
import functools
import importlib.metadata
import os
import sys
import sysconfig
from collections import deque
from dataclasses import dataclass
from types import CodeType
from typing import Any

import jax
import keras

from millrace.base.own_code import is_own_file, is_own_module
from millrace.base.records.compilation import Aspect, KeyField
from millrace.programs.plan import Mode

# Values in one walk. A closure over a whole application ends here, after 0.2 s.
MAX_VALUES = 20_000
# Packages whose versions are in every key.
_ALWAYS = frozenset({"jax", "jaxlib", "keras", "numpy"})


@dataclass(frozen=True, slots=True)
class Description:
    """All that decides the results of a function or a model."""

    fields: tuple[KeyField, ...]
    gaps: tuple[str, ...]  # the values that are missing

    @property
    def is_complete(self) -> bool:
        """Whether equal fields mean an equal computation."""
        return not self.gaps


class Walk:
    """The state of a walk: queue, labels, and the fields so far."""

    def __init__(self, own_variables: frozenset[int] | None = None, mode: Mode = Mode.TRAIN):
        """Begins an empty walk.

        Args:
            own_variables: ids of variables that a program takes and returns. Others are constants
                of the program. None means that it takes all variables.
            mode: of the models.
        """
        self.mode = mode
        self.queue: deque[tuple[Any, str]] = deque()
        self.own_variables = own_variables
        self.open: list[int] = []  # ids of the objects whose text is being made
        self.searched: set[type] = set()  # library classes, for methods that the user replaced
        self._labels: dict[int, str] = {}
        self.found: list[Any] = []  # what was seen; alive, so that an id means one object
        self._taken: dict[str, int] = {}
        self._fields: dict[tuple[Aspect, str], KeyField] = {}
        self._gaps: dict[str, None] = {}
        self._values = 0

    def label(self, value: object, name: str, describe: bool = True) -> str:
        """Returns the label of an object, and queues it for description if it is new."""
        label = self._labels.get(id(value))
        if label is not None:
            return label
        label = self._labels[id(value)] = self.unique(name)
        self.found.append(value)
        if describe:
            self.queue.append((value, label))
        return label

    def label_of(self, value: object) -> str | None:
        """Returns the label of an object; None if it has none."""
        return self._labels.get(id(value))

    def unique(self, name: str) -> str:
        """Returns the name, with a number if it is taken."""
        count = self._taken[name] = self._taken.get(name, 0) + 1
        return name if count == 1 else f"{name} ({count})"

    def add(self, aspect: Aspect, name: str, value: str, where: str = "") -> None:
        """Adds a field. Of two with one name, the first stays."""
        self._fields.setdefault((aspect, name), KeyField(aspect, name, value, where))

    def miss(self, what: str) -> None:
        """Records a value that is not described completely."""
        self._gaps[what] = None

    def count(self) -> bool:
        """Counts a value; False once there are too many."""
        self._values += 1
        if self._values > MAX_VALUES:
            self.miss(f"more than {MAX_VALUES:,} values")
            return False
        return True

    def uses(self, module: str | None) -> None:
        """Records the version of the package that a module belongs to."""
        top = (module or builtins.__name__).partition(".")[0]
        if top in _ALWAYS or top == "__main__" or top in sys.stdlib_module_names:
            return
        if is_own_module(top):
            return
        if not is_library_module(module):
            return
        version = version_of(top)
        if version is None:
            self.miss(f"package {top}, which has no version")
        else:
            self.add(Aspect.VERSION, top, version)

    def description(self) -> Description:
        return Description(tuple(self._fields.values()), tuple(self._gaps))


def source_of(code: CodeType) -> str:
    """Returns the file and the line of a function."""
    name = code.co_filename
    return f"{name if name.startswith('<') else os.path.basename(name)}:{code.co_firstlineno}"


@functools.cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    for module in (jax, keras, os):
        folders.add(os.path.dirname(os.path.abspath(str(module.__file__))))
    return tuple(folder.rstrip(os.sep) + os.sep for folder in folders)


@functools.lru_cache(maxsize=4096)
def is_library_file(path: str) -> bool:
    """Whether code in this file belongs to Python's library or to an installed package."""
    if path.startswith("<frozen") or is_own_file(path):
        return True
    return path.startswith(_library_folders()) or "site-packages" in path or "dist-packages" in path


@functools.lru_cache(maxsize=4096)
def is_library_module(name: str | None) -> bool:
    """Whether a module belongs to a library. Modules of unknown origin are the user's."""
    if name is None or name == builtins.__name__ or name in sys.builtin_module_names:
        return True
    if name == "__main__":
        return False
    top = name.partition(".")[0]
    if top in _ALWAYS or is_own_module(top):
        return True
    module: Any = sys.modules.get(name) or sys.modules.get(top)
    file = getattr(module, "__file__", None)
    return is_library_file(os.path.abspath(file)) if file else top in sys.stdlib_module_names


def is_library_class(kind: type) -> bool:
    """Whether a class belongs to a library."""
    return is_library_module(getattr(kind, "__module__", None))


@functools.lru_cache(maxsize=256)
def version_of(package: str) -> str | None:
    """Returns the version of an installed package; None if it has none."""
    version = getattr(sys.modules.get(package), "__version__", None)
    if version is not None:
        return str(version)
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # bs4 is of beautifulsoup4
        packages = sorted(set(importlib.metadata.packages_distributions().get(package, ())))
        return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages) or None
