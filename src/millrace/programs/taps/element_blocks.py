"""Elements that wait in a queue, in few large blocks of memory.

    calls of the program     [e e e] [e e e] [e e e] [e e e]       2 MiB each
    blocks of the queue      [e e e e e e e e e e e e . . . .]     64 MiB each

The results of calls are buffers of a few MiB, which the C library's `malloc` takes from its heaps
and hardly ever gives back to the system. So their elements are copied into blocks, which it maps
and unmaps one by one, and the buffers are free for the next calls. Small results stay as they are.
"""

from typing import Any

import jax
import numpy as np

BLOCK_BYTES = 2**26  # more than the 32 MiB up to which `malloc` may use its heaps
SMALL_BYTES = 2**18  # of a result


class ElementBlock:
    """Elements that arrived one after another.

    Attributes:
        value: a tree of arrays, `[elements, ...]`.
        elements: their number.
        nbytes: their bytes.
    """

    def __init__(self, value: Any, elements: int, nbytes: int, most: int):
        """Takes the elements of one result.

        Args:
            value: a tree of NumPy arrays, `[elements, ...]`.
            elements: their number.
            nbytes: their bytes.
            most: bytes of a block with room for more elements.
        """
        self.value, self.elements, self.nbytes = value, elements, nbytes
        self._memory: Any = None  # a tree of arrays, [room, ...]
        room = most * elements // nbytes if nbytes >= SMALL_BYTES else 0
        if room >= 2 * elements:
            self._memory = jax.tree.map(
                lambda leaf: np.empty((room, *leaf.shape[1:]), leaf.dtype), value
            )
            self.elements = self.nbytes = 0
            self._append(value, elements, nbytes)

    def add(self, value: Any, elements: int, nbytes: int) -> bool:
        """Adds the elements of another result, and returns whether they fit."""
        fits = (
            self._memory is not None
            and nbytes >= SMALL_BYTES
            and _specs(value) == _specs(self._memory)
            and self.elements + elements <= len(jax.tree.leaves(self._memory)[0])
        )
        if fits:
            self._append(value, elements, nbytes)
        return fits

    def _append(self, value: Any, elements: int, nbytes: int) -> None:
        begin, end = self.elements, self.elements + elements
        for memory, leaf in zip(jax.tree.leaves(self._memory), jax.tree.leaves(value), strict=True):
            memory[begin:end] = leaf
        self.value = jax.tree.map(lambda memory: memory[:end], self._memory)
        self.elements, self.nbytes = end, self.nbytes + nbytes


def _specs(value: Any) -> tuple[Any, list[Any]]:
    leaves, structure = jax.tree.flatten(value)
    return structure, [(leaf.shape[1:], leaf.dtype) for leaf in leaves]
