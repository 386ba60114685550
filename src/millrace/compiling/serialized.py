"""Executables as bytes, wherever they came from.

    compiled here              XLA writes it
    read from the cache        what the cache has of it
    a copy, for other devices  what it was copied from
    loaded from an export      the file

What was read cannot be written again: XLA for CPU leaves a part of it out, and says nothing.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from millrace._compat.jax_executables import as_bytes, code_of_entry


@dataclass(frozen=True, slots=True)
class Written:
    """An executable as bytes."""

    data: bytes
    in_tree: Any  # of its arguments
    out_tree: Any  # of its results
    numbers: tuple[int, ...]  # ids of the devices that the bytes name


Numbers = tuple[int, ...]
Writer = Callable[[jax.stages.Compiled, Numbers], Written]

_writers: "weakref.WeakKeyDictionary[jax.stages.Compiled, Writer]" = weakref.WeakKeyDictionary()


def remember(compiled: jax.stages.Compiled, writer: Writer) -> None:
    """Takes note of how an executable that was not compiled here is written.

    Args:
        compiled: the executable.
        writer: is given it with the numbers of its devices, and must not hold it.
    """
    _writers[compiled] = writer


def written(compiled: jax.stages.Compiled, numbers: Numbers) -> Written:
    """Returns an executable as bytes.

    Args:
        compiled: the executable.
        numbers: the ids of its devices, in order.

    Raises:
        Exception: of many classes, if it is of a kind that cannot be written.
    """
    return _writers.get(compiled, _fresh)(compiled, numbers)


def of_cache(entry: bytes) -> Writer:
    """Returns what writes an executable that was read from the cache.

    Args:
        entry: what the cache has of it; empty if that is not known.
    """

    def write(compiled: jax.stages.Compiled, numbers: Numbers) -> Written:
        if not entry:
            raise ValueError("it was read from a cache of JAX's own")
        return Written(*as_bytes(compiled, code_of_entry(entry)), numbers)

    return write


def _fresh(compiled: jax.stages.Compiled, numbers: Numbers) -> Written:
    return Written(*as_bytes(compiled), numbers)
