"""One program of everything that a function computes.

compile(computation, inputs) -> millrace.compile(computation)(*inputs), as a list of its results
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import jax

from millrace.errors import PlanError
from millrace.ipu.later import is_within_a_program, later, number_of_results
from millrace.ipu.scopes import placed_on
from millrace.loops.function import CompiledFunction
from millrace.loops.log_subject import identity
from millrace.loops.replication import launching
from millrace.tensorflow.conversion.convert import converted
from millrace.tensorflow.graph_mode import in_graph_mode

KEPT = 32  # programs of computations that are alike


class Operation:
    """The result of a computation that returns nothing."""

    def run(self, *_: Any, **__: Any) -> None:
        """Does nothing: it has run."""

    def __repr__(self) -> str:
        return "<operation that has run>"


def compile(computation: Callable[..., Any], inputs: Sequence[Any] | None = None) -> Any:
    """Compiles a function as one program, and runs it on the device of the scope around.

    As many replicas run as the scope has devices; results are those of replica 0.

    Args:
        computation: a function of the inputs.
        inputs: its arguments; a list among them is a list of numbers, not an array.

    Returns:
        A list of the results, also of a single one; an operation if there are none.

    Raises:
        PlanError: outside of every scope that says where.
    """
    inputs, computation = list(inputs or ()), converted(computation)
    if is_within_a_program():
        return _listed(computation(*inputs))
    place = placed_on()
    if place is None:
        raise PlanError(
            f"compile() was called for {getattr(computation, '__name__', computation)!r} outside "
            "of a device. Call it in `with ipu.scopes.ipu_scope('/device:IPU:0')`, or in "
            "`with strategy.scope()` of an IPUStrategy."
        )

    def run(*args: Any) -> Any:
        devices = place()
        with jax.default_device(devices[0]), launching(len(devices)):
            return _listed(_function_of(computation)(*args))

    length = None
    if in_graph_mode():
        length = number_of_results(computation, inputs, len(place()))
    return later(run, *inputs, length=length)


def _listed(result: Any) -> Any:
    results = list(result) if isinstance(result, list | tuple) else [result]
    results = [value for value in results if value is not None]  # operations
    return results or Operation()


_lock = threading.Lock()
_functions: OrderedDict[Any, tuple[CompiledFunction, Any]] = OrderedDict()


def _function_of(computation: Callable[..., Any]) -> CompiledFunction:
    """Returns the compiled form of a function, or of one with the same code and objects."""
    key, alive = identity(computation)
    with _lock:
        if key not in _functions:
            # With what the key identifies by address, which would else be given to others.
            _functions[key] = CompiledFunction(computation), alive
            if len(_functions) > KEPT:
                _functions.popitem(last=False)
        _functions.move_to_end(key)
        return _functions[key][0]
