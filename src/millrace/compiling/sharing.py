"""Equal programs share one compilation, also on different devices.

    text of a program, options, kind and number of devices
        -> nobody has compiled it:                    compile; others wait for it
        -> compiled for the same devices and trees:   the same executable
        -> for other devices, or other trees:         a copy of its machine code

Stages of a pipeline are often equal: four of twelve blocks are then compiled once. So is a model
that is compiled again with the same settings, or built anew for the next fold.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import jax

from millrace._compat.jax_executables import Sizes, arguments_of, from_bytes
from millrace.compiling.serialized import Written, remember, written

KEPT = 128  # executables that are remembered though nobody may be using them any more
MAX_CODE_BYTES = 512 * 2**20  # of them all


@dataclass(frozen=True, slots=True)
class Made:
    """An executable with the devices that it was compiled for."""

    compiled: jax.stages.Compiled
    devices: tuple[jax.Device, ...]
    layers: tuple[str, ...]  # of the model it was compiled for, in order
    sizes: Sizes


class Sharing:
    """The executables of this process, by what they were compiled from."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: OrderedDict[Hashable, Future[Made]] = OrderedDict()

    def claim(self, key: Hashable) -> tuple[Future[Made], bool]:
        """Returns what will hold the executable, and whether the caller is to make it."""
        with self._lock:
            if key in self._made:
                self._made.move_to_end(key)
                return self._made[key], False
            self._made[key] = future = Future()
            return future, True

    def keep(self, key: Hashable, made: Made) -> None:
        """Puts down what the caller has made."""
        self._made[key].set_result(made)
        with self._lock:
            while len(self._made) > KEPT or self._code_bytes() > MAX_CODE_BYTES:
                oldest = next((k for k, f in self._made.items() if f.done() and k != key), None)
                if oldest is None:
                    break
                del self._made[oldest]

    def fail(self, key: Hashable, error: BaseException) -> None:
        """Lets those who wait know that there is none; the next one compiles it anew."""
        with self._lock:
            future = self._made.pop(key)
        future.set_exception(error)

    def clear(self) -> None:
        """Forgets all that is not being made."""
        with self._lock:
            for key in [key for key, future in self._made.items() if future.done()]:
                del self._made[key]

    def _code_bytes(self) -> int:
        return sum(f.result().sizes.code_bytes for f in self._made.values() if f.done())


sharing = Sharing()


def share_key(
    text: str,
    lowered: jax.stages.Lowered,
    devices: Sequence[jax.Device],
    options: Mapping[str, Any],
) -> Hashable:
    """Returns what is equal for programs of which one machine code serves all.

    Args:
        text: of the program, in StableHLO; it has shapes, donations, layouts and memories.
        lowered: the program, of whose arguments the text has those that are used.
        devices: that it is to run on.
        options: of the compiler.
    """
    digest = hashlib.sha256(text.encode()).digest()
    kind = (devices[0].platform, devices[0].device_kind, len(devices))
    return digest, arguments_of(lowered), kind, tuple(sorted(options.items()))


def serves(made: Made, lowered: jax.stages.Lowered, devices: Sequence[jax.Device]) -> bool:
    """Whether an executable can be called as it is."""
    trees = made.compiled.in_tree, made.compiled.out_tree
    return tuple(devices) == made.devices and trees == (lowered.in_tree, lowered.out_tree)


def copied(
    made: Made, lowered: jax.stages.Lowered, devices: Sequence[jax.Device]
) -> jax.stages.Compiled:
    """Returns an executable with the same machine code for other devices of its kind.

    Args:
        made: what is copied.
        lowered: the program that it is for; how arguments and results are built is its own.
        devices: of this process.

    Raises:
        Exception: of many classes, if this kind of executable cannot be written and read.
    """
    original, out_tree = made.compiled, lowered.out_tree
    in_tree = jax.tree.structure(lowered.args_info)
    numbers = tuple(device.id for device in made.devices)

    def again(*_: Any) -> Written:
        return replace(written(original, numbers), in_tree=in_tree, out_tree=out_tree)

    source = written(original, numbers)
    copy = from_bytes(source.data, in_tree, out_tree, source.numbers, devices)
    remember(copy, again)
    return copy
