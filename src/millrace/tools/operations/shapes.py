"""Elements and bytes of the shapes in a program, such as `f32[32,64]`."""

import functools
import math

from millrace.run.memory.hlo_proto import Instruction, element_shapes

_BITS = {"pred": 8, "bf16": 16, "s4": 4, "u4": 4}  # others have their bits in their names
Dimensions = tuple[int, ...]


@functools.lru_cache(maxsize=10_000)
def dimensions(shape: str) -> Dimensions:
    """Returns the lengths of the axes; of a tuple, none."""
    inner = shape.partition("[")[2].rstrip("]")
    return tuple(map(int, inner.split(","))) if inner else ()


@functools.lru_cache(maxsize=10_000)
def elements(shape: str) -> int:
    """Returns the number of elements; 1 for a scalar, 0 for a tuple."""
    return math.prod(dimensions(shape)) if shape else 0


@functools.lru_cache(maxsize=10_000)
def nbytes(shape: str) -> int:
    """Returns the bytes of an array."""
    if not shape:
        return 0
    name = shape.partition("[")[0]
    bits = _BITS.get(name) or (8 if name.startswith("f8") else int(name[1:]))
    return -(-elements(shape) * bits // 8)


def result_elements(instruction: Instruction) -> int:
    """Returns the elements of a result, of all in a tuple."""
    return sum(map(elements, element_shapes(instruction)))


def result_bytes(instruction: Instruction) -> int:
    """Returns the bytes of a result, of all in a tuple."""
    return sum(map(nbytes, element_shapes(instruction)))
