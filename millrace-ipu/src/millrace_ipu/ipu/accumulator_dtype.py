"""The dtype of accumulated gradients, as options of IPU programs give it.

None                        each variable's own
"float32", jnp.float32      one for all
lambda variable: ...        one for each variable
"""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import keras
import numpy as np
from jax.typing import DTypeLike
from keras.backend import standardize_dtype

from millrace.errors import DTypeError

AccumulatorDtype: TypeAlias = str | Callable[[Any], str | None] | None  # of a native option
DTypeChoice: TypeAlias = DTypeLike | Callable[[np.ndarray], DTypeLike]
AnyDtype: TypeAlias = DTypeLike | Callable[[keras.Variable], DTypeLike | None] | None


def accumulator_dtype(dtype: object) -> AccumulatorDtype:
    """Returns the choice of a pipeline or a model: a dtype by its name, a function, or None.

    Raises:
        DTypeError: for anything else.
    """
    if dtype is None:
        return None
    if _is_dtype(dtype):
        return standardize_dtype(dtype)
    if callable(dtype):
        return _by_variable(dtype)
    raise _no_dtype("gradient_accumulation_dtype", dtype)


@functools.lru_cache(maxsize=32)  # programs are found by their options: equal ones must stay equal
def _by_variable(choose: Any) -> AccumulatorDtype:
    return lambda variable: cast(str | None, accumulator_dtype(choose(variable)))


def optimizer_dtype(dtype: object) -> AnyDtype:
    """Returns the choice of an accumulating optimizer, whose functions must return a dtype.

    Raises:
        DTypeError: if it is neither None, nor a dtype, nor a function that returns one.
    """
    if dtype is None or _is_dtype(dtype):
        return cast(DTypeLike, dtype)
    if not callable(dtype):
        raise _no_dtype("dtype", dtype)

    def chosen(variable: keras.Variable) -> DTypeLike:
        result = dtype(variable)
        if not _is_dtype(result):
            raise _no_dtype("dtype", result)
        return cast(DTypeLike, result)

    return chosen


def _is_dtype(dtype: object) -> bool:
    try:
        return dtype is not None and bool(standardize_dtype(dtype))
    except (TypeError, ValueError):
        return False


def _no_dtype(option: str, value: object) -> DTypeError:
    return DTypeError(
        f"{option} is a dtype, a function of a variable that returns one, or None for each "
        f"variable's own. Received: {value!r}. Set {option}='float32' for all accumulators."
    )
