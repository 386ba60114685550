"""Names that are not here: importing them works, and using them says what to write.

from tensorflow.lite import TFLiteConverter          works: programs import more than they use
TFLiteConverter(...)                                 raises, with the words of `millrace port`

longest(TABLE, "tensorflow.lite.TFLiteConverter")    -> what to write in its place
Unsupported, UnsupportedModule                       what the imports give
"""

import importlib.machinery
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NoReturn, TypeAlias, Union

from millrace_ipu.errors import UnsupportedNameError

Instead: TypeAlias = Callable[[str], str]  # of a name: what to write in its place
NOT_IN_THIS_RELEASE = ("tensorflow.contrib",)  # programs ask for these to recognise TensorFlow 1


def longest(table: Mapping[str, str], name: str) -> str | None:
    """Returns the longest entry that a dotted name begins with; None if there is none.

    An entry that ends with an underscore stands for all names that begin with it. The modules of
    `ipu.ops` are also those of `ipu`.
    """
    best = None
    if name.startswith("ipu.ops."):
        name = name.replace("ipu.ops.", "ipu.", 1)
    for key in table:
        fits = name == key or name.startswith(f"{key}.")
        fits |= key.endswith("_") and name.startswith(key)
        if fits and (best is None or len(key) > len(best)):
            best = key
    return None if best is None else table[best]


class Unsupported:
    """A name that is not here. Calls, subclasses and attributes of it raise.

    It may be imported, compared, stand in annotations, and be the class in `isinstance`, which no
    object is an instance of. Attributes of names in lower case, which may be modules, are names
    again.
    """

    def __init__(self, name: str, instead: Instead):
        """Takes the name, as a program writes it, and what finds out what to write in its place."""
        self._name, self._instead = name, instead

    def __getattr__(self, attribute: str) -> "Unsupported":
        if attribute.startswith("__"):
            raise AttributeError(attribute)  # asked for by Python itself, to see what this is
        name = f"{self._name}.{attribute}"
        if not self._name.rpartition(".")[2][:1].islower():
            refuse(name, self._instead(name))
        return Unsupported(name, self._instead)

    def __call__(self, *_: object, **__: object) -> NoReturn:
        refuse(self._name, self._instead(self._name))

    __getitem__ = __iter__ = __enter__ = __exit__ = __mro_entries__ = __call__

    def __instancecheck__(self, _: object) -> bool:
        return False

    def __subclasscheck__(self, _: object) -> bool:
        return False

    def __or__(self, other: Any) -> Any:
        return Union[self, other]  # noqa: UP007  # this is what makes `|` work

    def __ror__(self, other: Any) -> Any:
        return Union[other, self]  # noqa: UP007

    def __repr__(self) -> str:
        return f"<{self._name}, which is not in millrace>"


class UnsupportedModule(ModuleType):
    """A module that is not here. Any name can be imported from it, and any module in it."""

    def __init__(self, name: str, shown: str, instead: Instead):
        """Takes the name to import it by, the name to show, and what to write in its place."""
        # Under another name than its key in `sys.modules`, as all modules that are served.
        super().__init__(shown, f"{shown} is not in millrace. In its place: {instead(shown)}")
        self.__path__ = []
        self.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        self._shown, self._instead = shown, instead

    def __getattr__(self, attribute: str) -> Unsupported:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return Unsupported(f"{self._shown}.{attribute}", self._instead)


def is_supported(value: object) -> bool:
    """Whether a value is none of those that only raise."""
    if getattr(value, "only_raises", False) is True:  # a function
        return False
    return not isinstance(value, Unsupported | UnsupportedModule)


def refuse(name: str, instead: str) -> NoReturn:
    """Raises the error of a name that is not here.

    Args:
        name: as a program writes it.
        instead: what to write in its place, in the words of `millrace port`.

    Raises:
        UnsupportedNameError: always.
    """
    raise UnsupportedNameError(
        f"{name} is not in millrace. In its place: {instead}. `millrace port` lists all such lines "
        "of a program."
    )
