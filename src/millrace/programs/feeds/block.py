"""Batches stacked for the device.

    batches of a data adapter      x[32, 64] y[32]   x[32, 64] y[32]   ...
    block on the device            x[capacity, 32, 64]  y[capacity, 32]
    with replicas                  x[capacity / replicas, replicas, 32, 64]  y[...]

An execution takes slices `(block, start, count)`, so it need not end with a block.
Batch `j` of the data goes to replica `j % replicas`, so a row of a block with replicas is a round:
one step of each replica. A process keeps only the batches of its own replicas.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from millrace.base.devices import DeviceGroup, put_parts
from millrace.errors import DataError
from millrace.programs.plan import BatchSpec

ALIGNMENT = 64  # bytes; JAX takes over an aligned host array on CPU and copies any other


@dataclass(frozen=True, slots=True)
class Block:
    """Equally shaped batches, on the device or, on CPU, in host memory."""

    batches: Any  # leaves are [capacity, ...], with replicas [rounds, replicas here, ...]
    spec: BatchSpec  # of one batch
    capacity: int
    steps: int  # batches in use; all other steps are padding
    first: int = 0  # first step in use: its replica, where a block begins within a round


@dataclass(frozen=True, slots=True)
class Destination:
    """The devices, or host memory, to which blocks go."""

    group: DeviceGroup
    stays_on_host: bool = False  # until a task of a pipeline takes a batch

    @property
    def replicas(self) -> int:
        """Batches in a round."""
        return self.group.replicas

    @property
    def kept(self) -> tuple[int, ...]:
        """Replicas whose batches are kept."""
        return tuple(range(self.replicas)) if self.stays_on_host else self.group.local

    @property
    def is_host_memory(self) -> bool:
        """Whether a block stays in host memory, which on CPU is the memory of the device."""
        return self.stays_on_host or self.group.platform == "cpu"

    def lead(self, capacity: int) -> tuple[int, ...]:
        """Returns the first axes of a block's leaves."""
        if self.replicas == 1:
            return (capacity,)
        return (capacity // self.replicas, len(self.kept))

    def put(self, leaves: list[np.ndarray]) -> list[jax.Array]:
        """Starts the transfer of a block's leaves to the devices."""
        if self.replicas == 1:
            return jax.device_put(leaves, self.group.whole)
        return [put_parts(leaf, self.group, 1) for leaf in leaves]


@dataclass(frozen=True, slots=True)
class BlockSlice:
    """Consecutive steps of one block."""

    block: Block
    start: int
    count: int


def part_of_block(block: Block, begin: int, steps: int) -> Block:
    """Returns the block of `steps` steps from `begin` on; both are whole rounds of replicas."""

    def part(leaf: Any) -> Any:
        first, length = (n * len(leaf) // block.capacity for n in (begin, steps))
        if isinstance(leaf, np.ndarray):
            return leaf[first : first + length]
        return jax.lax.dynamic_slice_in_dim(leaf, first, length)  # one program for all parts

    return Block(jax.tree.map(part, block.batches), block.spec, steps, steps)


def batch_spec(batch: object) -> BatchSpec:
    """Returns the spec that a batch has in JAX: 64-bit types become 32-bit ones.

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
    """Reads the specs of batches, fast where a batch has the spec of the one before."""

    def __init__(self) -> None:
        self._last: Any = None  # structure, shapes and dtypes
        self._spec: BatchSpec | None = None

    def read(self, batch: object) -> BatchSpec:
        """Returns `batch_spec(batch)`."""
        leaves, treedef = jax.tree.flatten(batch)
        try:
            current = (treedef, [(leaf.shape, leaf.dtype) for leaf in leaves])
        except AttributeError:  # a Python number, say
            return batch_spec(batch)
        if self._spec is None or current != self._last:
            self._last, self._spec = current, batch_spec(batch)
        return self._spec


def empty_block(spec: BatchSpec, lead: tuple[int, ...]) -> list[np.ndarray]:
    """Returns fresh, aligned host arrays `[*lead, ...]` for the leaves of a block.

    They must be fresh: JAX keeps using the memory of an aligned array after taking it over, so a
    buffer that is filled again would change batches that have not run yet.
    """
    return [
        _aligned((*lead, *shape), dtype)
        for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)
    ]


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % ALIGNMENT
    return raw[offset : offset + nbytes].view(dtype).reshape(shape)


def make_block(
    leaves: list[np.ndarray],
    spec: BatchSpec,
    capacity: int,
    steps: int,
    destination: Destination,
    first: int = 0,
) -> Block:
    """Makes a block of filled host arrays, and starts their transfer.

    On CPU there is nothing to transfer. The runner converts the arrays when the block runs, since
    the conversion would delay the data set on whose thread this function is called.
    """
    moved = leaves if destination.is_host_memory else destination.put(leaves)
    return Block(jax.tree.unflatten(spec.treedef, moved), spec, capacity, steps, first)
