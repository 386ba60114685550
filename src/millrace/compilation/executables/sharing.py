"""Executables as bytes, and programs that share them.

    compiled here              XLA writes it
    read from the cache        the bytes in the cache
    a copy, for other devices  the bytes of the original
    loaded from an export      the bytes of the file

An executable that was read cannot be written again: XLA for CPU leaves a part of it out, silently.

    text of a program, options, kind and number of devices
        -> not compiled yet:                          compile; others wait for it
        -> compiled for the same devices and trees:   the same executable
        -> for other devices, or other trees:         a copy of its machine code

Stages of a pipeline are often equal: four stages of a model with twelve blocks are compiled once.
So is a model that is compiled again with the same settings, or built anew for the next fold.
"""

import hashlib
import pathlib
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import jax
from jax.tree_util import PyTreeDef

from millrace._compat.jax_executables import (
    Sizes,
    arguments_of,
    as_bytes,
    code_of_entry,
    from_bytes,
)
from millrace._compat.jax_refused import with_trees_of
from millrace._compat.jax_targets import is_described
from millrace.base.threads.made_once import MadeOnce


@dataclass(frozen=True, slots=True)
class SerializedExecutable:
    """An executable as bytes."""

    data: bytes
    in_tree: PyTreeDef  # of its arguments
    out_tree: PyTreeDef  # of its results
    numbers: tuple[int, ...]  # ids of the devices in the bytes


Numbers = tuple[int, ...]
Writer = Callable[[jax.stages.Compiled, Numbers], SerializedExecutable]

# Beside the executables, since the class is JAX's; and without keeping them alive, or a model that
# is gone would leave its machine code behind.
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


# Executables that are kept, also when their models are gone, for the model that is built anew for
# the next fold. A choice.
KEPT = 128
# Of all of them; a choice. XLA for CPU says nothing about the size of its code (0 for all models
# that were looked at), so that there the number and the mapped areas are what limits.
MAX_CODE_BYTES = 512 * 2**20


@dataclass(frozen=True, slots=True)
class SharedExecutable:
    """An executable with the devices for which it was compiled."""

    compiled: jax.stages.Compiled
    devices: tuple[jax.Device, ...]
    layers: tuple[str, ...]  # of the model it was compiled for, in order
    sizes: Sizes


class Sharing:
    """The executables of this process, by their programs; those that were used last are kept."""

    def __init__(self) -> None:
        self._table = MadeOnce[SharedExecutable]()

    def get(self, key: Hashable, make: Callable[[], SharedExecutable]) -> SharedExecutable:
        """Returns the executable of a key; other threads wait for the one that makes it."""

        def made() -> SharedExecutable:
            new = make()
            self._make_room(new)
            return new

        return self._table.get(key, made)

    def clear(self) -> None:
        """Forgets all executables but those that are being made."""
        self._table.drop(len(self._table))

    def _make_room(self, new: SharedExecutable) -> None:
        kept = self._table.values()
        most = len(kept) // 2 if _nears_the_most_mappings() else KEPT - 1
        nbytes = sum(shared.sizes.code_bytes for shared in (*kept, new))
        dropped = 0
        while dropped < len(kept) and (len(kept) - dropped > most or nbytes > MAX_CODE_BYTES):
            nbytes -= kept[dropped].sizes.code_bytes
            dropped += 1
        self._table.drop(dropped)


def _nears_the_most_mappings() -> bool:
    """Whether the process has half of the mapped areas of memory that Linux allows it.

    XLA for CPU maps the machine code of every kernel by itself, some thousands for a large program,
    and the process dies where it may map no more.
    """
    try:
        # A process with thousands of compiled kernels died like so, in XLA's code generator. The
        # training of a small MLP takes some 200 areas and that of a U-Net 800, of 65,530.
        most = int(pathlib.Path("/proc/sys/vm/max_map_count").read_text())
        with open("/proc/self/maps", "rb") as maps:
            return 2 * sum(1 for _ in maps) > most
    except (OSError, ValueError):  # another system, without such a limit
        return False


sharing = Sharing()


def share_key(
    text: str,
    lowered: jax.stages.Lowered,
    devices: Sequence[jax.Device],
    options: Mapping[str, Hashable],
) -> Hashable:
    """Returns a key that is equal for programs with the same machine code.

    Args:
        text: of the program, in StableHLO, with shapes, donations, layouts and memories.
        lowered: the program; the text has only the arguments that it uses.
        devices: on which it will run.
        options: of the compiler.
    """
    # By what XLA compiles, not by our own key of a program. That key explains: where it misses
    # something, an explanation is missing. Here the numbers would be those of another program.
    digest = hashlib.sha256(text.encode()).digest()
    kind = (devices[0].platform, devices[0].device_kind, len(devices))
    return digest, arguments_of(lowered), kind, tuple(sorted(options.items()))


def serves(
    shared: SharedExecutable, lowered: jax.stages.Lowered, devices: Sequence[jax.Device]
) -> bool:
    """Whether an executable can be called as it is."""
    trees = shared.compiled.in_tree, shared.compiled.out_tree
    return tuple(devices) == shared.devices and trees == (lowered.in_tree, lowered.out_tree)


def copied(
    shared: SharedExecutable, lowered: jax.stages.Lowered, devices: Sequence[jax.Device]
) -> jax.stages.Compiled:
    """Returns an executable with the same machine code for other devices of its kind.

    Args:
        shared: the original.
        lowered: the program, with its own trees of arguments and results.
        devices: of this process.

    Raises:
        Exception: of many classes, if this kind of executable cannot be written and read.
    """
    if is_described(devices[0]):
        return with_trees_of(shared.compiled, lowered)
    original, out_tree = shared.compiled, lowered.out_tree
    in_tree = jax.tree.structure(lowered.args_info)
    numbers = tuple(device.id for device in shared.devices)

    def again(*_: object) -> SerializedExecutable:
        return replace(serialize(original, numbers), in_tree=in_tree, out_tree=out_tree)

    # Devices are in the bytes as XLA's assignment of devices only, which is given anew.
    source = serialize(original, numbers)
    copy = from_bytes(source.data, in_tree, out_tree, source.numbers, devices)
    remember(copy, again)
    return copy
