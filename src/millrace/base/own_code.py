"""Tells millrace's own code from the user's, to find a user's line or describe a user's code.

A package that builds on millrace adds itself: its code runs between a user's and millrace's.
"""

import os
import pathlib

_folders = {"millrace": str(pathlib.Path(__file__).absolute().parents[1]) + os.sep}


def add_own_package(name: str, file: str) -> None:
    """Counts a package as a part of millrace.

    Args:
        name: of the package, as in `import name`.
        file: its `__file__`.
    """
    _folders[name] = os.path.dirname(os.path.abspath(file)) + os.sep


def is_own_module(name: str | None) -> bool:
    """Whether a module, by its dotted name, is a part of millrace."""
    return str(name).partition(".")[0] in _folders


def is_own_file(path: str) -> bool:
    """Whether a file is a part of millrace."""
    return path.startswith(tuple(_folders.values()))
