"""Executables as bytes, whatever their origin.

    compiled here              XLA writes it
    read from the cache        the bytes in the cache
    a copy, for other devices  the bytes of the original
    loaded from an export      the bytes of the file

An executable that was read cannot be written again: XLA for CPU leaves a part of it out, silently.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import jax
from jax.tree_util import PyTreeDef

from millrace._compat.jax_executables import as_bytes, code_of_entry


@dataclass(frozen=True, slots=True)
class SerializedExecutable:
    """An executable as bytes."""

    data: bytes
    in_tree: PyTreeDef  # of its arguments
    out_tree: PyTreeDef  # of its results
    numbers: tuple[int, ...]  # ids of the devices in the bytes


Numbers = tuple[int, ...]
Writer = Callable[[jax.stages.Compiled, Numbers], SerializedExecutable]

_writers: "weakref.WeakKeyDictionary[jax.stages.Compiled, Writer]" = weakref.WeakKeyDictionary()


def remember(compiled: jax.stages.Compiled, writer: Writer) -> None:
    """Registers the writer of an executable that was not compiled here.

    Args:
        compiled: the executable.
        writer: called with the executable and the ids of its devices; must not keep it alive.
    """
    _writers[compiled] = writer


def serialize(compiled: jax.stages.Compiled, numbers: Numbers) -> SerializedExecutable:
    """Returns an executable as bytes.

    Args:
        compiled: the executable.
        numbers: the ids of its devices, in order.

    Raises:
        Exception: of many classes, if this kind of executable cannot be written.
    """
    return _writers.get(compiled, _fresh)(compiled, numbers)


def of_cache(entry: bytes) -> Writer:
    """Returns the writer of an executable that was read from the cache.

    Args:
        entry: its bytes in the cache; empty if they are not known.
    """

    def write(compiled: jax.stages.Compiled, numbers: Numbers) -> SerializedExecutable:
        if not entry:
            raise ValueError("it was read from a cache of JAX's own")
        return SerializedExecutable(*as_bytes(compiled, code_of_entry(entry)), numbers)

    return write


def _fresh(compiled: jax.stages.Compiled, numbers: Numbers) -> SerializedExecutable:
    return SerializedExecutable(*as_bytes(compiled), numbers)
