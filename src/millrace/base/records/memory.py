"""The memory of one compiled program, over its operations in order.

bytes |        ____
      |   ____|    |__
      |__|            |____      peak: the tensors alive there are listed
      +--------------------- program points
"""

from collections.abc import Iterable
from dataclasses import dataclass

NO_LAYER = "(no layer)"  # optimizer state of several layers, batches, metrics, unnamed tensors


@dataclass(frozen=True, slots=True)
class LiveBuffer:
    """A tensor that is alive at the peak of a program's memory."""

    name: str  # of its operation, or of its variable
    nbytes: int  # on one device
    layer: str  # empty if it belongs to none
    opcode: str  # of XLA: "dot", "fusion", "parameter", ...; empty for several tensors
    shape: str = ""  # such as `f32[32,64]`, where it is one array
    operation: str = ""  # of JAX, such as "dot_general, backward", if XLA has kept it
    inferred: bool = False  # whether `layer` is that of a neighbouring operation
    role: str = ""  # what it is used for, one of `program_memory.ROLES`, where that was asked for


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """The tensors of one layer that are alive at the peak of a program's memory."""

    layer: str  # `NO_LAYER` for all tensors that belong to none
    nbytes: int  # on one device
    tensors: int


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """The memory of a compiled program on each device."""

    program: str
    requirement: int  # bytes: arguments + results - what they share + temporaries
    curve: tuple[int, ...]  # bytes alive at each program point
    alive: tuple[LiveBuffer, ...]  # at the peak, largest first

    @property
    def peak(self) -> int:
        """Bytes at the peak of the curve; `requirement` is more where memory is fragmented."""
        return max(self.curve, default=self.requirement)

    @property
    def point(self) -> int:
        """Number of the program point with the peak."""
        return self.curve.index(self.peak) if self.curve else 0


def bytes_text(nbytes: float) -> str:
    """Returns bytes as text: `1.50 GB`, with 1 KB = 1000 bytes."""
    for unit in ("B", "KB", "MB", "GB"):
        if abs(nbytes) < 1000 or unit == "GB":
            break
        nbytes /= 1000
    return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.2f} {unit}"


def largest(buffers: Iterable[LiveBuffer]) -> tuple[LiveBuffer, ...]:
    """Returns the buffers by size, the largest first."""
    return tuple(sorted(buffers, key=lambda buffer: -buffer.nbytes))


def by_layer(buffers: Iterable[LiveBuffer]) -> tuple[LayerMemory, ...]:
    """Adds up tensors by their layers, the largest sum first."""
    sizes: dict[str, list[int]] = {}
    for buffer in buffers:
        sizes.setdefault(buffer.layer or NO_LAYER, []).append(buffer.nbytes)
    sums = (
        LayerMemory(layer, sum(layer_sizes), len(layer_sizes))
        for layer, layer_sizes in sizes.items()
    )
    return tuple(sorted(sums, key=lambda each: -each.nbytes))
