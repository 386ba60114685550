"""Modules under other names: `import tensorflow.python.ipu` gives the very module `millrace.ipu`.

serve({"keras.ipu": "millrace.ipu.keras"}, "keras")
import keras.ipu.layers   ->   millrace.ipu.keras.layers, also as sys.modules["keras.ipu.layers"]
"""

import functools
import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from millrace._compat.patch_table import META_PATH
from millrace._compat.patches import put_in, take_out


class Aliases(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules by the names of others."""

    def __init__(
        self,
        names: Mapping[str, str],
        serves: str,
        otherwise: Callable[[str], ModuleType | None] = lambda name: None,
    ):
        """Takes the names.

        Args:
            names: of modules, with those that are meant; what is in a package comes with it.
            serves: what it is for; one for the same purpose takes its place.
            otherwise: returns a module by its other name, if the one that is meant is missing.
        """
        self.names, self.serves, self._otherwise = dict(names), serves, otherwise
        self._specs: dict[str, Any] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: Any = None
    ) -> Any:
        """Returns where a module is: with us, if it has one of the names."""
        del path, target
        meant = self.meant(fullname)
        if meant is None or meant == fullname:
            return None
        around = fullname.rpartition(".")[0]
        if self.meant(around) is not None and _is_in_a_file(around):
            return None
        return importlib.machinery.ModuleSpec(fullname, self)

    def meant(self, fullname: str) -> str | None:
        """Returns the name of the module that is meant; None for any other name."""
        name, rest = fullname, ""
        while name not in self.names:
            name, dot, last = name.rpartition(".")
            if not dot:
                return None
            rest = f".{last}{rest}"
        return self.names[name] + rest

    def create_module(self, spec: Any) -> ModuleType:
        """Returns the module that is meant."""
        meant: Any = self.meant(spec.name)
        try:
            module = importlib.import_module(meant)
        except ModuleNotFoundError as error:
            if not meant.startswith(str(error.name)):
                raise
            module = self._otherwise(spec.name)
            if module is not None:
                self._specs[spec.name] = module.__spec__
                return module
            raise ModuleNotFoundError(
                f"No module named {spec.name!r}: it would be {meant}, which there is not.",
                name=spec.name,
            ) from error
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Gives the module, which has been run, its own specification again."""
        alias: Any = module.__spec__
        module.__spec__ = self._specs.pop(alias.name)


def _is_in_a_file(name: str) -> bool:
    """Whether a package is there under its own name: its modules are found where it is."""
    package = sys.modules.get(name)
    return package is not None and package.__name__ == name and hasattr(package, "__file__")


def serve(
    names: Mapping[str, str],
    purpose: str,
    otherwise: Callable[[str], ModuleType | None] = lambda name: None,
) -> None:
    """Lets modules be imported by other names; the arguments are those of `Aliases`."""
    stop_serving(purpose)
    sys.meta_path.insert(0, Aliases(names, purpose, otherwise))
    put_in(META_PATH, functools.partial(_forget, purpose), key=purpose)


def stop_serving(purpose: str) -> None:
    """Forgets names, and the modules that were imported by them."""
    take_out(META_PATH, key=purpose)
    _forget(purpose)  # also what an earlier import of this module has served


def _forget(purpose: str) -> None:
    for finder in [f for f in sys.meta_path if getattr(f, "serves", None) == purpose]:
        sys.meta_path.remove(finder)
        aliases: Any = finder
        served = [n for n in sys.modules if aliases.meant(n) not in (None, n)]
        # Not what is there under its own name: TensorFlow cannot be imported twice.
        for name in [n for n in served if sys.modules[n].__name__ != n]:
            del sys.modules[name]
