"""Python numbers that are part of a program, as TensorFlow has them: others are another program.

Native compiled functions take numbers as arguments, and texts as part of the program.
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np


@dataclass(frozen=True, eq=False)
class StaticNumber(str):
    """A number, and a text that is equal for equal numbers of one type."""

    number: int | float | complex

    def __new__(cls, number: Any) -> "StaticNumber":
        """Makes one of a number."""
        return super().__new__(cls, f"{number!r} ({type(number).__name__})")


def with_static_numbers(tree: Any) -> Any:
    """Returns arguments with each Python number made part of the program."""
    return jax.tree.map(lambda leaf: StaticNumber(leaf) if _is_number(leaf) else leaf, tree)


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, int | float | complex) and not isinstance(leaf, bool | np.generic)
