"""Modules under other names, TensorFlow among them.

`show_tensorflow`  Keras imports `tensorflow`, if there is one, to save, to set seeds and to look at
                   types; it must not find a module of millrace's under that name.

serve({"keras.ipu": "millrace_ipu.ipu.keras"}, "keras")
import keras.ipu.layers  ->  millrace_ipu.ipu.keras.layers, also sys.modules["keras.ipu.layers"]
"""

import functools
import importlib
import importlib.abc
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

from keras.src.utils import module_utils

from millrace.extend import patches_in, put_in, take_out
from millrace_ipu._compat.patch_table import LAZY_TENSORFLOW, META_PATH

__all__ = ["show_own_tensorflow", "show_tensorflow"]


def show_tensorflow(module: ModuleType | None) -> None:
    """Makes `module` Keras's TensorFlow; None stands for no TensorFlow."""
    lazy: Any = module_utils.tensorflow
    if LAZY_TENSORFLOW not in patches_in():
        put_in(LAZY_TENSORFLOW, functools.partial(_put, lazy.module, lazy._available))
    _put(module, module is not None)


def show_own_tensorflow() -> None:
    """Lets Keras find TensorFlow itself again."""
    take_out(LAZY_TENSORFLOW)


def _put(module: ModuleType | None, available: bool) -> None:
    module_utils.tensorflow.module, module_utils.tensorflow._available = module, available


class Aliases(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules by the names of others."""

    def __init__(
        self,
        names: Mapping[str, str],
        serves: str,
        otherwise: Callable[[str], ModuleType | None] = lambda name: None,
        imported: Callable[[str], object] = lambda name: None,
    ):
        """Takes the names.

        Args:
            names: of modules, by their aliases; the modules of a package come with it.
            serves: the purpose; a second finder for the same purpose replaces the first.
            otherwise: returns a module by its alias where the real one is missing.
            imported: called with each alias that is imported.
        """
        self.names, self.serves, self._otherwise = dict(names), serves, otherwise
        self._imported = imported
        self._specs: dict[str, ModuleSpec | None] = {}
        # Attributes that imports of `package.module` have added to packages.
        self.added: list[tuple[ModuleType, str, ModuleType]] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the specification of an alias; None for any other name."""
        real = self.real_name(fullname)
        if real is None or real == fullname:
            return None
        package = fullname.rpartition(".")[0]
        if self.real_name(package) is not None and _is_in_a_file(package):
            return None
        return ModuleSpec(fullname, self)

    def real_name(self, fullname: str) -> str | None:
        """Returns the name of the module behind an alias; None for any other name."""
        name, suffix = fullname, ""
        while name not in self.names:
            name, dot, last = name.rpartition(".")
            if not dot:
                return None
            suffix = f".{last}{suffix}"
        return self.names[name] + suffix

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Returns the module behind an alias."""
        self._imported(spec.name)
        real = cast(str, self.real_name(spec.name))
        try:
            module = importlib.import_module(real)
        except ModuleNotFoundError as error:
            if not real.startswith(str(error.name)):
                raise
            module = self._otherwise(spec.name)
            if module is not None:
                self._specs[spec.name] = module.__spec__
                return module
            raise ModuleNotFoundError(
                f"No module named {spec.name!r}: it stands for {real}, which does not exist.",
                name=spec.name,
            ) from error
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restores the module's own specification; the module itself has run before."""
        alias = cast(ModuleSpec, module.__spec__)
        module.__spec__ = self._specs.pop(alias.name)
        package, _, last = alias.name.rpartition(".")
        parent = sys.modules.get(package)
        if parent is not None and last not in vars(parent):
            self.added.append((parent, last, module))


def _is_in_a_file(name: str) -> bool:
    """Whether a package is imported under its own name; its modules are then found in its files."""
    package = sys.modules.get(name)
    return package is not None and package.__name__ == name and hasattr(package, "__file__")


def serve(
    names: Mapping[str, str],
    purpose: str,
    otherwise: Callable[[str], ModuleType | None] = lambda name: None,
    imported: Callable[[str], object] = lambda name: None,
) -> None:
    """Lets modules be imported by aliases; the arguments are those of `Aliases`."""
    stop_serving(purpose)
    sys.meta_path.insert(0, Aliases(names, purpose, otherwise, imported))
    put_in(META_PATH, functools.partial(_forget, purpose), key=purpose)


def stop_serving(purpose: str) -> None:
    """Forgets aliases, and the modules that were imported by them."""
    take_out(META_PATH, key=purpose)
    _forget(purpose)  # also the finders of an earlier import of this module


def _forget(purpose: str) -> None:
    for finder in [f for f in sys.meta_path if getattr(f, "serves", None) == purpose]:
        sys.meta_path.remove(finder)
        aliases = cast(Aliases, finder)
        served = [n for n in sys.modules if aliases.real_name(n) not in (None, n)]
        # Modules under their own names stay: TensorFlow cannot be imported twice.
        for name in [n for n in served if sys.modules[n].__name__ != n]:
            del sys.modules[name]
        for parent, last, module in aliases.added:
            if vars(parent).get(last) is module:
                delattr(parent, last)
