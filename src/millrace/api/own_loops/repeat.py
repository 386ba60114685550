"""`repeat` and `while_loop`, and how they run.

called in a trace               part of the traced program               driven_loop.py
on its own                      a program that is just this loop         program.py
pipeline in the body            not compiled: the host calls the body    host_loop.py

inputs -> body -> body -> ... n times ... -> body -> values
           ^       ^                          ^
infeed     x0      x1                         x(n-1)

inputs -> condition? -> body -> condition? -> body -> ... -> condition? -> values
"""

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import jax
import numpy as np

from millrace._compat.jax_tracing import is_traced, is_tracing
from millrace._compat.keras_steps import current_scope
from millrace.api.own_loops.body import Body, Carried, loop_name, result_of_loop
from millrace.api.own_loops.driven_loop import run_in_program
from millrace.api.own_loops.exchange import MANY
from millrace.api.own_loops.host_loop import LoopByHost, OnHost
from millrace.api.own_loops.iteration import Iteration, specs_of
from millrace.api.own_loops.log_subject import identity, loop_subject
from millrace.api.own_loops.program import LoopProgram
from millrace.api.own_loops.replica_forms import ReplicaForm
from millrace.api.own_loops.replication import launch_in_force
from millrace.api.own_loops.running import running
from millrace.base.interrupts import held_back
from millrace.base.options import whole_number
from millrace.base.pytrees import Array, ArrayTree, SpecTree
from millrace.base.threads.made_once import MadeOnce
from millrace.compilation.executables.call_description import new_number
from millrace.compilation.executables.log import current_log
from millrace.compilation.executables.watch import unwatched
from millrace.errors import OptionError
from millrace.programs.feeds.infeed_queue import InfeedQueue
from millrace.tools.recording.functions import recorded_call

KEPT = 32  # programs of loops that ran on their own


def run_loop(
    body: Callable[..., object],
    condition: Callable[..., object] | None,
    inputs: object,
    infeed: InfeedQueue | None,
    limit: int | jax.Array | None,
) -> Any:
    """Runs a loop; the arguments are those of `repeat` and `while_loop`."""
    if infeed is not None and not isinstance(infeed, InfeedQueue):
        raise OptionError(
            f"infeed is a millrace.InfeedQueue. Received: {type(infeed).__name__}. Set "
            "infeed=millrace.InfeedQueue(dataset), created once, outside of the loop."
        )
    carried = Carried(inputs)
    if current_scope() is not None or is_tracing():
        iteration = Iteration(body, carried, condition, _element_of(infeed))
        if isinstance(limit, int):
            iteration.loop.check(limit)
        return result_of_loop(run_in_program(iteration, carried.values, limit, infeed))
    # Only a trace has numbers that are arrays.
    number = cast(int | None, limit)
    steps = number if condition is None and number is not None else 1
    name = loop_name(body, condition)
    with held_back(), running(name), recorded_call(name, steps):
        loop = _loops.find(body, condition, carried, _element_of(infeed), infeed)
        return result_of_loop(loop.run(carried.values, number))


def _element_of(infeed: InfeedQueue | None) -> SpecTree:
    return None if infeed is None else specs_of(infeed.block().batches)


class _OwnLoop:
    """A loop on its own: a program that has nothing else in it."""

    def __init__(self, iteration: Iteration, infeed: InfeedQueue | None, number: int):
        self._iteration, self._infeed = iteration, infeed
        self._subject = loop_subject(iteration, infeed, number)
        self._programs = MadeOnce[LoopProgram]()  # one, after the first run

    def run(self, values: list[ArrayTree], limit: int | None) -> list[ArrayTree]:
        self._iteration.loop.check(limit or 0)
        arrays = [*jax.tree.leaves(values), np.int32(MANY if limit is None else limit)]
        return self._programs.get(None, lambda: self._make(arrays)).run(arrays)

    def _make(self, arrays: list[Array]) -> LoopProgram:
        return LoopProgram(self._loop, arrays, lambda _: self._subject, launch_in_force.get())

    def _loop(self, arrays: list[Array]) -> list[ArrayTree]:
        *leaves, limit = arrays
        values = jax.tree.unflatten(jax.tree.structure(self._iteration.specs), leaves)
        return run_in_program(self._iteration, values, cast(jax.Array, limit), self._infeed)


class _Loops:
    """The loops that have run on their own most recently."""

    def __init__(self) -> None:
        # Each with the objects whose addresses are in its key, so that no other object gets one.
        self._loops = MadeOnce[tuple[_OwnLoop | LoopByHost, object]](KEPT)
        self._numbers = MadeOnce[tuple[int, object]](KEPT)  # by body and condition

    def find(
        self,
        body: Callable[..., object],
        condition: Callable[..., object] | None,
        carried: Carried,
        element: SpecTree,
        infeed: InfeedQueue | None,
    ) -> "_OwnLoop | LoopByHost":
        launch = launch_in_force.get()
        leaves, treedef = jax.tree.flatten((carried.specs, element))
        body_key, alive = identity(body)
        condition_key, alive_too = identity(condition)
        key = (
            body_key,
            condition_key,
            treedef,
            tuple((leaf.shape, leaf.dtype) for leaf in leaves),
            id(infeed),
            jax.config.jax_default_device,  # type: ignore[attr-defined]
            launch and launch.key,
        )
        both = alive, alive_too
        number, _ = self._numbers.get((body_key, condition_key), lambda: (new_number(), both))

        def make() -> tuple[_OwnLoop | LoopByHost, object]:
            current_log().begin(loop_name(body, condition))
            try:
                with unwatched(), ReplicaForm(launch).looking():
                    iteration = Iteration(body, carried, condition, element)
            except OnHost:
                return LoopByHost(body, condition, carried, infeed), (both, infeed)
            return _OwnLoop(iteration, infeed, number), (both, infeed)

        return self._loops.get(key, make)[0]


_loops = _Loops()


Number: TypeAlias = int | np.generic | np.ndarray | jax.Array  # a scalar


def repeat(
    n: Number, body: Callable[..., object], inputs: object = None, infeed: InfeedQueue | None = None
) -> Any:
    """Calls `body` n times, as one compiled loop.

        millrace.repeat(1000, train_step, infeed=millrace.InfeedQueue(dataset))

    The body uses stock Keras layers, metrics and optimizers; their variables have their new values
    when the loop is over.

    Args:
        n: number of iterations; within a compiled function it may be a traced scalar.
        body: called with the carried values, followed by one element of the infeed: the items of
            a tuple by position, those of a dict by name. Returns the carried values for the next
            iteration.
        inputs: carried values for the first iteration: one, a list of several, or None.
        infeed: supplies one element for each iteration.

    Returns:
        The carried values after the last iteration: one, a list of several, or None.

    Raises:
        LoopError: if the body does not fit its arguments, or returns values of other types.
        DataError: if the data ends before the loop does. The iterations before have been run.
    """
    return run_loop(body, None, inputs, infeed, iterations("n", n))


def iterations(name: str, value: Number) -> int | jax.Array:
    """Returns a number of iterations: an int, or a traced int32.

    Raises:
        OptionError: if it is not a whole number from 0 to 2**31 - 2.
    """
    if isinstance(value, jax.Array) and is_traced(value) and value.shape == ():
        if np.issubdtype(value.dtype, np.integer):
            return value.astype(np.int32)
    elif isinstance(value, np.generic | np.ndarray | jax.Array) and value.shape == ():
        value = value.item()
    value = whole_number(name, value, 0)
    if value >= 2**31 - 1:
        raise OptionError(f"{name} must be below 2**31 - 1. Received: {value}.")
    return value


def while_loop(
    condition: Callable[..., object],
    body: Callable[..., object],
    inputs: object = None,
    infeed: InfeedQueue | None = None,
    maximum_iterations: Number | None = None,
) -> Any:
    """Calls `body` while `condition` returns true, as one compiled loop.

        millrace.while_loop(lambda loss: loss > 0.1, train_step, inputs=1.0, infeed=infeed)

    Args:
        condition: called with the carried values before each iteration. It may read variables.
        body: as for `repeat`.
        inputs: as for `repeat`.
        infeed: as for `repeat`. Elements that the loop does not use stay in the queue.
        maximum_iterations: the largest number of iterations; None for no limit.

    Returns:
        The carried values after the last iteration: one, a list of several, or None.

    Raises:
        LoopError: if body or condition do not fit their arguments.
        DataError: if the data ends before the loop does. The iterations before have been run.
    """
    Body(condition, "condition")  # raises for None, which run_loop takes as a loop of repeat()
    limit = maximum_iterations
    if limit is not None:
        limit = iterations("maximum_iterations", limit)
    return run_loop(body, condition, inputs, infeed, limit)
