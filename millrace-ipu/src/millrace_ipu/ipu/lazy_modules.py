"""Modules of a package that are imported when a program first uses them as attributes.

def __getattr__(name):                       in the package, after PEP 562
    return submodule(__name__, name, ("keras", "utils"))
"""

import importlib
from collections.abc import Collection
from typing import Any

from millrace_ipu.ipu.replacements import other_name


def submodule(package: str, name: str, modules: Collection[str]) -> Any:
    """Imports a module of a package; returns a name that raises for one that is not here.

    Args:
        package: its full name.
        name: the attribute that a program reads.
        modules: the names of the package's modules.

    Raises:
        AttributeError: for a name that is not among them, and that nothing replaces.
    """
    if name not in modules:
        return other_name(package, name)
    return importlib.import_module(f"{package}.{name}")
