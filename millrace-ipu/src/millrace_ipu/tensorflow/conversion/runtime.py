"""Functions that rewritten code calls, and Python numbers that are part of a program.

Native compiled functions take numbers as arguments, and strings as part of the program. In
TensorFlow each Python number compiles a program of its own: here it is passed in as a string, and
turned back into a number inside.

f(3)  ->  with_static_numbers  ->  "3 (int)", part of the key of the program  ->  plain  ->  3
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np

from millrace_ipu.pytrees import ArrayTree
from millrace_ipu.tensorflow.conversion.convert import RUNTIME_CELL
from millrace_ipu.tensorflow.conversion.convert import converted as converted
from millrace_ipu.tensorflow.conversion.range_loop import for_range as for_range
from millrace_ipu.tensorflow.iterators import DeviceIterator, FunctionElements, drawing_from

ArgumentTree = TypeVar("ArgumentTree")
Thunks = Sequence[Callable[[], object]]


def taped(
    tape: Any, function: Callable[..., Thunks], args: tuple[object, ...], location: str
) -> list[Any]:
    """Runs the block of a gradient tape, and returns the values of the names that it binds."""
    return tape.run(function, args, location)


def entering(
    elements: tuple[Sequence[DeviceIterator], Sequence[ArrayTree]],
) -> AbstractContextManager[Any]:
    """Surrounds the body of a compiled function, with the elements for its iterators."""
    return drawing_from(FunctionElements(*elements))


def plain(value: ArgumentTree) -> ArgumentTree:
    """Returns an argument with its static numbers turned back into Python numbers."""
    return jax.tree.map(lambda leaf: leaf.number if isinstance(leaf, StaticNumber) else leaf, value)


def with_static_numbers(tree: ArgumentTree) -> ArgumentTree:
    """Returns arguments with each Python number turned into a part of the program."""
    return jax.tree.map(lambda leaf: StaticNumber(leaf) if _is_number(leaf) else leaf, tree)


def _is_number(leaf: object) -> bool:
    return isinstance(leaf, int | float | complex) and not isinstance(leaf, bool | np.generic)


@dataclass(frozen=True, eq=False)
class StaticNumber(str):
    """A number, as a string that is the same for equal numbers of the same type."""

    number: int | float | complex

    def __new__(cls, number: complex) -> "StaticNumber":
        return super().__new__(cls, f"{number!r} ({type(number).__name__})")


RUNTIME_CELL.cell_contents = sys.modules[__name__]
