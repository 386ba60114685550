"""Compilation of a function into one program.

compile(computation, inputs) -> millrace.compile(computation)(*inputs), as a list of its results
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax

from millrace.errors import PlanError
from millrace.extend import CompiledFunction, identity
from millrace_ipu.ipu.deferral import call_or_defer, is_within_a_program, number_of_results
from millrace_ipu.ipu.pre_compile import functions_compiled_only
from millrace_ipu.ipu.replica_launches import launching
from millrace_ipu.ipu.scopes import devices_in_scope
from millrace_ipu.tensorflow.computed_losses import with_losses
from millrace_ipu.tensorflow.conversion.convert import converted
from millrace_ipu.tensorflow.graph_mode import Deferred, in_graph_mode

KEPT = 32  # compiled functions; the least recently used one is dropped first


class Operation:
    """The result of a computation that returns nothing."""

    def run(self, *_: object, **__: object) -> None:
        """Does nothing, since the computation has run."""

    def __repr__(self) -> str:
        return "<operation that has run>"


Results: TypeAlias = list[Any] | Operation


def compile(
    computation: Callable[..., object], inputs: Sequence[object] | None = None
) -> Results | Deferred:
    """Compiles a function as one program, and runs it on the devices of the scope around the call.

    Each device of the scope runs one replica; the results are those of replica 0.

    Args:
        computation: a function of the inputs.
        inputs: its arguments; a list among them is a list of numbers, not an array.

    Returns:
        A list of the results, even of a single one; without results an operation.

    Raises:
        PlanError: outside of all scopes with devices.
    """
    inputs, computation = list(inputs or ()), converted(computation)
    if is_within_a_program():
        return _listed(computation(*inputs))
    find_devices = devices_in_scope()
    if find_devices is None:
        raise PlanError(
            f"compile() was called for {getattr(computation, '__name__', computation)!r} outside "
            "of a device. Call it in `with ipu.scopes.ipu_scope('/device:IPU:0')`, or in "
            "`with strategy.scope()` of an IPUStrategy."
        )

    def run(*args: object) -> Results:
        devices = find_devices()
        place = jax.default_device(devices[0])
        with place, launching(devices), functions_compiled_only():
            return _listed(_compiled(_Computation(computation))(*args))

    length = None
    if in_graph_mode():
        length = number_of_results(computation, inputs, len(find_devices()))
    return call_or_defer(run, *inputs, length=length)


def _listed(result: object) -> Results:
    results = list(result) if isinstance(result, list | tuple) else [result]
    results = [value for value in results if value is not None]  # operations
    return results or Operation()


class _Computation:
    """A function, equal to those with the same code and objects."""

    def __init__(self, function: Callable[..., object]):
        self.function = function
        # The key has addresses of objects: as long as these live, no other has the same one.
        self.key, self.alive = identity(function)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Computation) and other.key == self.key


@functools.lru_cache(maxsize=KEPT)
def _compiled(computation: _Computation) -> CompiledFunction:
    return CompiledFunction(with_losses(computation.function))
