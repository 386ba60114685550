"""A function of the user's, compiled with the Keras variables that it touches.

train(steps, model)      steps, an array -> argument        model, an object -> part of the program
  a program for these shapes and objects?    no -> Program(...)
  -> its results
"""

import threading
from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np

from millrace.loops.program import Program


def compile(fn: Callable[..., Any]) -> "CompiledFunction":
    """Compiles a function that uses Keras layers, losses, metrics and optimizers as they are.

        @millrace.compile
        def train(steps):
            millrace.repeat(steps, body, infeed=infeed)
            return metric.result()

        strategy.run(train, [1000])

    Numbers and arrays are arguments of the program: it is compiled once for all of their values.
    Everything else is part of it: another model or another text is another program.

    Args:
        fn: what is compiled, as a whole and when it is first called.
    """
    return CompiledFunction(fn)


class CompiledFunction:
    """What `millrace.compile` returns. Call it, or give it to `strategy.run`."""

    def __init__(self, fn: Callable[..., Any]):
        self._fn = fn
        self._programs: dict[Any, Program] = {}
        self._lock = threading.RLock()
        self.__name__ = getattr(fn, "__name__", type(fn).__name__)
        self.__doc__ = getattr(fn, "__doc__", None)

    @property
    def compilations(self) -> int:
        """How many programs have been made so far: one for each set of shapes and objects."""
        return len(self._programs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program, and gives the variables that it assigns their new values."""
        program, arrays = self._program(args, kwargs)
        return program.run(arrays)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Returns the program for these arguments before XLA compiles it."""
        program, arrays = self._program(args, kwargs)
        return program.lower(arrays)

    def __repr__(self) -> str:
        return f"<millrace.compile of {self.__name__}>"

    def _program(self, args: Any, kwargs: Any) -> tuple[Program, list[Any]]:
        leaves, treedef = jax.tree.flatten((args, kwargs))
        is_array = [_is_array(leaf) for leaf in leaves]
        arrays = [_as_argument(x) for x, array in zip(leaves, is_array, strict=True) if array]
        rest = [x for x, array in zip(leaves, is_array, strict=True) if not array]
        key = (
            treedef,
            tuple(is_array),
            tuple((x.shape, x.dtype) for x in arrays),
            tuple(x if isinstance(x, str | bool) else id(x) for x in rest),
            jax.config.jax_default_device,  # type: ignore[attr-defined]
        )
        with self._lock:
            program = self._programs.get(key)
            if program is None:
                call = _Call(self._fn, treedef, is_array, rest)
                program = self._programs[key] = Program(call, arrays)
        return program, arrays


class _Call:
    """The function with all arguments in place that are no arrays; it keeps them alive."""

    def __init__(self, fn: Any, treedef: Any, is_array: list[bool], rest: list[Any]):
        self._fn, self._treedef, self._is_array, self._rest = fn, treedef, is_array, rest

    def __call__(self, arrays: list[Any]) -> Any:
        given, rest = iter(arrays), iter(self._rest)
        leaves = [next(given) if array else next(rest) for array in self._is_array]
        args, kwargs = jax.tree.unflatten(self._treedef, leaves)
        return jax.tree.map(_bare, self._fn(*args, **kwargs))


def _is_array(leaf: Any) -> bool:
    return not isinstance(leaf, bool) and isinstance(
        leaf, int | float | complex | np.ndarray | np.generic | jax.Array
    )


def _as_argument(leaf: Any) -> Any:
    if not isinstance(leaf, int | float | complex):
        return leaf
    # A number that 32 bits do not hold is an OverflowError here.
    return np.asarray(leaf, jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype))


def _bare(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, keras.Variable) else leaf
