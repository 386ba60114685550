"""Modules of a package that are imported when a program first uses them as attributes.

def __getattr__(name):                       in the package, after PEP 562
    return submodule(__name__, name, ("keras", "utils"))
"""

import importlib
from collections.abc import Collection
from types import ModuleType


def submodule(package: str, name: str, modules: Collection[str]) -> ModuleType:
    """Imports a module of a package.

    Args:
        package: its full name.
        name: the attribute that a program reads.
        modules: the names of the package's modules.

    Raises:
        AttributeError: for a name that is not among them.
    """
    if name not in modules:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return importlib.import_module(f"{package}.{name}")
