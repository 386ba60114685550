"""What rewritten functions call."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax

from millrace.tensorflow.conversion.convert import RUNTIME_CELL
from millrace.tensorflow.conversion.convert import called as called
from millrace.tensorflow.conversion.range_loop import for_range as for_range
from millrace.tensorflow.iterators import FunctionDraws, drawing
from millrace.tensorflow.static import StaticNumber


def taped(tape: Any, function: Callable[..., Any], given: tuple[Any, ...], place: str) -> list[Any]:
    """Runs the block of a gradient tape, and returns the values of the names that it binds."""
    return tape.run(function, given, place)


def plain(value: Any) -> Any:
    """Returns an argument with Python numbers for those that are part of the program."""
    return jax.tree.map(lambda leaf: leaf.number if isinstance(leaf, StaticNumber) else leaf, value)


def entering(draws: Any) -> AbstractContextManager[None]:
    """Surrounds the body of a compiled function; it is given elements of iterators."""
    return drawing(FunctionDraws(*draws))


RUNTIME_CELL.cell_contents = sys.modules[__name__]
