"""What belongs to a library: its name and version tell what it does, its code need not be read."""

import builtins
import functools
import importlib.metadata
import os
import sys
import sysconfig
from types import CodeType
from typing import Any

import jax
import keras

# Their versions are in every key.
_KNOWN = frozenset({"jax", "jaxlib", "keras", "numpy", "millrace"})


def _folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    for module in (jax, keras, os):
        folders.add(os.path.dirname(os.path.abspath(str(module.__file__))))
    # An editable millrace lies in none of them.
    folders.add(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return tuple(folder.rstrip(os.sep) + os.sep for folder in folders)


_FOLDERS = _folders()


@functools.lru_cache(maxsize=4096)
def is_library_file(path: str) -> bool:
    """Whether code in this file is of Python's library or of an installed package."""
    if path.startswith("<frozen"):
        return True
    return path.startswith(_FOLDERS) or "site-packages" in path or "dist-packages" in path


def is_library_code(code: CodeType) -> bool:
    """Whether a function's code is of a library, whoever decorated what with it."""
    return is_library_file(code.co_filename)


@functools.lru_cache(maxsize=4096)
def is_library_module(name: str | None) -> bool:
    """Whether a module of that name is part of a library. Unknown ones are the user's."""
    if name is None or name == builtins.__name__ or name in sys.builtin_module_names:
        return True
    if name == "__main__":
        return False
    top = name.partition(".")[0]
    if top in _KNOWN:
        return True
    module: Any = sys.modules.get(name) or sys.modules.get(top)
    file = getattr(module, "__file__", None)
    return is_library_file(os.path.abspath(file)) if file else top in sys.stdlib_module_names


def is_library_class(kind: type) -> bool:
    """Whether a class is of a library."""
    return is_library_module(getattr(kind, "__module__", None))


def foreign_package(name: str | None) -> str | None:
    """Returns the installed package of a module whose version no key has by itself."""
    top = (name or builtins.__name__).partition(".")[0]
    is_named = top not in _KNOWN and top != "__main__" and top not in sys.stdlib_module_names
    return top if is_named and is_library_module(name) else None


@functools.lru_cache(maxsize=256)
def version_of(package: str) -> str | None:
    """Returns the version of an installed package, None if it does not say."""
    version = getattr(sys.modules.get(package), "__version__", None)
    if version is None:
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None
    return str(version)
