"""What rewritten functions call, and the Python numbers that are part of their programs.

Native compiled functions take numbers as arguments, and texts as part of the program. In
TensorFlow another Python number is another program: so it goes in as a text, and comes out plain.

f(3)  ->  with_static_numbers  ->  "3 (int)", part of the key of the program  ->  plain  ->  3
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from millrace.tensorflow.conversion.convert import RUNTIME_CELL
from millrace.tensorflow.conversion.convert import called as called
from millrace.tensorflow.conversion.range_loop import for_range as for_range
from millrace.tensorflow.iterators import FunctionDraws, drawing


def taped(tape: Any, function: Callable[..., Any], given: tuple[Any, ...], place: str) -> list[Any]:
    """Runs the block of a gradient tape, and returns the values of the names that it binds."""
    return tape.run(function, given, place)


def entering(draws: Any) -> AbstractContextManager[None]:
    """Surrounds the body of a compiled function; it is given elements of iterators."""
    return drawing(FunctionDraws(*draws))


def plain(value: Any) -> Any:
    """Returns an argument with Python numbers for those that are part of the program."""
    return jax.tree.map(lambda leaf: leaf.number if isinstance(leaf, StaticNumber) else leaf, value)


def with_static_numbers(tree: Any) -> Any:
    """Returns arguments with each Python number made part of the program."""
    return jax.tree.map(lambda leaf: StaticNumber(leaf) if _is_number(leaf) else leaf, tree)


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, int | float | complex) and not isinstance(leaf, bool | np.generic)


@dataclass(frozen=True, eq=False)
class StaticNumber(str):
    """A number, and a text that is equal for equal numbers of one type."""

    number: int | float | complex

    def __new__(cls, number: Any) -> "StaticNumber":
        """Makes one of a number."""
        return super().__new__(cls, f"{number!r} ({type(number).__name__})")


RUNTIME_CELL.cell_contents = sys.modules[__name__]
