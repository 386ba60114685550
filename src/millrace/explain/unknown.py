"""What a function reads that no description has: random numbers, the clock, the environment.

    np.random.rand()                 a number that a trace makes a constant, another one each time
    time.time(), os.environ["RATE"]  likewise
    from random import random        by whatever name
    open("table.txt")                what a file has in it

A function of the user's that does any of this may give another program each time it is traced, so
a description of it is not complete. Library functions are taken to do what they are told.
"""

import builtins
import datetime as dt
import dis
import functools
import os
import random
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

_MODULES = frozenset({"numpy.random", "random", "secrets", "socket", "time", "uuid"})
_CALLS = frozenset({"getenv", "getpid", "urandom", "getrandom", "listdir", "scandir", "cpu_count"})
_DATES = frozenset({"now", "today", "utcnow"})
_OBJECTS = (os.environ, os.environb) if hasattr(os, "environb") else (os.environ,)
_BUILTINS = ("open", "input", "id", "hash")
_KINDS = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)

Names = tuple[
    str, ...
]  # a global with the attributes that are read of it: ("np", "random", "rand")


def unknown_in(function: FunctionType, read: tuple[Names, ...]) -> Iterator[str]:
    """Yields what a function reads that cannot be described, in words.

    Args:
        function: one of the user's.
        read: the globals that it reads.
    """
    for names in read:
        if names[0] in function.__globals__:
            value = function.__globals__[names[0]]
        elif names[0] in _BUILTINS:
            yield f"{names[0]}()"
            continue
        else:
            continue
        yield from _unknown_along(value, names)
    for names in _imported(function.__code__):
        module = sys.modules.get(names[0])
        if module is not None:
            yield from _unknown_along(module, names)


def _unknown_along(value: Any, names: Names) -> Iterator[str]:
    """Yields the first of a value and its attributes that is unknown."""
    if _is_unknown(value):
        yield ".".join(names)
        return
    for number, name in enumerate(names[1:], 2):
        if not isinstance(value, ModuleType | type):
            return
        is_date = isinstance(value, type) and issubclass(value, dt.date) and name in _DATES
        value = getattr(value, name, None)
        if is_date or _is_unknown(value):
            yield ".".join(names[:number])
            return


def _is_unknown(value: Any) -> bool:
    if isinstance(value, ModuleType):
        return value.__name__ in _MODULES
    if isinstance(value, _KINDS) or any(value is each for each in _OBJECTS):
        return True
    owner = getattr(value, "__self__", None)
    if isinstance(owner, _KINDS) or (owner is builtins and value in (open, input, id, hash)):
        return True
    module = getattr(value, "__module__", None)
    if module in _MODULES and callable(value):
        return True
    is_of_os = module in ("os", "posix", "nt")
    return is_of_os and callable(value) and getattr(value, "__name__", "") in _CALLS


@functools.lru_cache(maxsize=4096)
def _imported(code: CodeType) -> tuple[Names, ...]:
    """Returns the modules that a function itself imports, each with every name that it uses.

    Which name is read of which module is not told apart: too much is found rather than too little.
    """
    found: list[Names] = []
    for part in (code, *(each for each in code.co_consts if isinstance(each, CodeType))):
        modules = [
            str(instruction.argval)
            for instruction in dis.get_instructions(part)
            if instruction.opname == "IMPORT_NAME"
        ]
        attributes = [name for name in part.co_names if name not in modules]
        for module in modules:
            found += [(module,), *((module, name) for name in attributes)]
    return tuple(found)
