"""Batches stacked for the device.

    batches of a data adapter      x[32, 64] y[32]   x[32, 64] y[32]   ...
    block on the device            x[capacity, 32, 64]  y[capacity, 32]

Executions do not have to end where blocks do: an execution takes segments `(block, start, count)`.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from millrace.errors import DataError
from millrace.plan import BatchSpec

ALIGNMENT = 64  # bytes; JAX takes over an aligned host array on CPU and copies any other


@dataclass(frozen=True, slots=True)
class Block:
    """Equally shaped batches, on the device or, on CPU, in host memory."""

    batches: Any  # leaves are [capacity, ...]
    spec: BatchSpec  # of one batch
    capacity: int
    steps: int  # batches in use; what follows them is padding that no program reads


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive steps of one block."""

    block: Block
    start: int
    count: int


def batch_spec(batch: Any) -> BatchSpec:
    """Returns the spec of a batch as JAX will hold it: 64-bit types become 32-bit ones.

    Raises:
        DataError: if a leaf has no fixed shape or no numeric dtype.
    """
    leaves, treedef = jax.tree.flatten(batch)
    shapes, dtypes = [], []
    for index, leaf in enumerate(leaves):
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            leaf = np.asarray(leaf)
        dtype = np.dtype(leaf.dtype) if isinstance(leaf.dtype, np.dtype | type) else leaf.dtype
        if dtype.kind in "OSUMm":
            raise DataError(
                f"Leaf {index} of a batch has dtype {dtype}, which no device can hold "
                f"(shape {tuple(leaf.shape)}). Rows of different lengths and text become arrays "
                "of one shape first: pad them (keras.utils.pad_sequences), or encode the text, "
                "before fit."
            )
        shapes.append(tuple(leaf.shape))
        dtypes.append(jax.dtypes.canonicalize_dtype(dtype))
    return BatchSpec(treedef, tuple(shapes), tuple(dtypes))


class SpecReader:
    """Reads the specs of batches most of which have the spec of the one before."""

    def __init__(self) -> None:
        self._seen: Any = None
        self._spec: BatchSpec | None = None

    def read(self, batch: Any) -> BatchSpec:
        """Returns `batch_spec(batch)`."""
        leaves, treedef = jax.tree.flatten(batch)
        try:
            seen = (treedef, [(leaf.shape, leaf.dtype) for leaf in leaves])
        except AttributeError:  # a Python number, say
            return batch_spec(batch)
        if self._spec is None or seen != self._seen:
            self._seen, self._spec = seen, batch_spec(batch)
        return self._spec


def empty_block(spec: BatchSpec, capacity: int) -> list[np.ndarray]:
    """Returns fresh, aligned host arrays `[capacity, ...]` for the leaves of a block.

    Always fresh: JAX keeps using the memory of an aligned array after taking it over, so a buffer
    that is filled again changes batches that are still waiting for their turn.
    """
    return [
        _aligned((capacity, *shape), dtype)
        for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)
    ]


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % ALIGNMENT
    return raw[offset : offset + nbytes].view(dtype).reshape(shape)


def make_block(
    leaves: list[np.ndarray], spec: BatchSpec, capacity: int, steps: int, device: jax.Device
) -> Block:
    """Makes a block of filled host arrays, and starts their transfer.

    On CPU there is nothing to transfer, and what JAX does instead would only delay the data set
    on whose thread this runs: the runner does it when the block's turn has come.
    """
    moved = leaves if device.platform == "cpu" else jax.device_put(leaves, device)
    return Block(jax.tree.unflatten(spec.treedef, moved), spec, capacity, steps)
