"""A loop as part of a program that is being traced.

    no queues, and a known end that is near       one compiled loop
    anything else, in no other loop               driven: the program is cut there (`pieces.py`)
    queues in a place that the host cannot reach  an error

    equation of a driven loop    values from outside, carried values and states, limits, others
                                                     -> carried values and states

A program cannot call the host for data: where all threads of XLA waited in such calls, or for one
another, none was left for the copies that the calls wait for. So the host drives a loop in chunks.

A loop within a driven loop stays in its chunks, unless it has queues itself: then the outer one
is driven iteration by iteration, and its body is cut at the inner one.
"""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import keras
from jax import lax

from millrace._compat.jax_tracing import is_traced
from millrace._compat.jaxpr import Graph, add_host_work, trace
from millrace._compat.keras_steps import current_scope
from millrace.api.own_loops.chunk import MAX_ITERATIONS, ChunkResult, IterationCarry, run_chunk
from millrace.api.own_loops.exchange import HOST_TIME, LONG_TIME, MANY, REPLICA_TIME, Exchange
from millrace.api.own_loops.iteration import Iteration, specs_of
from millrace.api.own_loops.replication import current_group, largest, replicas
from millrace.api.own_loops.scope import context_of, refuse_driven_loop
from millrace.base.devices import REPLICA
from millrace.base.pytrees import ArrayTree, SpecTree
from millrace.errors import ModelError
from millrace.programs.feeds.infeed_queue import InfeedQueue
from millrace.programs.replicas.sums import of_all
from millrace.programs.steps.program import INDEX
from millrace.programs.taps.entries import empty_entries
from millrace.programs.taps.taps import Tapped


def run_in_program(
    iteration: Iteration,
    values: list[ArrayTree],
    limit: int | jax.Array | None,
    infeed: InfeedQueue | None,
) -> list[ArrayTree]:
    """Adds a loop to the program that is being traced, and assigns its variables.

    Args:
        iteration: of the loop.
        values: carried into the first iteration.
        limit: the largest number of iterations, which may be traced; None for no limit.
        infeed: of the loop; None without one.

    Returns:
        The values after the last iteration.

    Raises:
        UnsupportedError: for a loop with queues in a place that the host cannot reach.
    """
    changed, fixed = iteration.touched.changed, iteration.touched.fixed
    scope = current_scope()
    context = context_of(scope)
    if scope is None and (changed or fixed):
        paths = [v.path for v in (changed or fixed)]
        raise ModelError(
            f"A loop in a function of jax.jit uses the Keras variables {paths}, which JAX would "
            "take for constants. Set millrace.compile(fn) in place of jax.jit(fn)."
        )
    has_queues = infeed is not None or iteration.tapped or iteration.touched.has_driven_loops
    if context is None and has_queues:
        refuse_driven_loop("a function of JAX or a step of Keras")
    is_long = not isinstance(limit, int) or limit > MAX_ITERATIONS
    is_driven = has_queues or (is_long and context is not None and context.is_between_loops)
    if context is not None:
        context.claim(iteration.tapped)
        if is_driven:
            context.needs_host()
        if context.looks_only:
            return _without_running(scope, iteration, values)
    states = [lax.convert_element_type(v.value, v.dtype) for v in changed]
    carry: IterationCarry = (values, states)
    if context is not None and is_driven:
        carry = DrivenLoop(iteration, infeed, context.variables).add(carry, limit)
    else:
        if isinstance(limit, jax.Array) and is_traced(limit):
            limit = largest(limit)
        count = MANY if limit is None else limit
        carry = run_chunk(iteration, iteration.goes_on, carry, None, 0, count, Tapped()).carry
    values, states = carry
    for variable, value in zip(changed, states, strict=True):
        variable.assign(value)
    return values


def _without_running(scope: Any, iteration: Iteration, values: list[ArrayTree]) -> list[ArrayTree]:
    """Uses and assigns the variables of a loop, without the loop; returns zeros for its values."""
    for variable in iteration.touched.fixed:
        scope.get_current_value(variable)
    for variable in iteration.touched.changed:
        variable.assign(jnp.zeros(variable.shape, variable.dtype))
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), values)


class DrivenLoop:
    """A loop of a program, and the host's side of it."""

    def __init__(
        self,
        iteration: Iteration,
        infeed: InfeedQueue | None,
        variables: Sequence[keras.Variable],
    ):
        """Waits for the infeed's first element, for its shape.

        Args:
            iteration: of the loop.
            infeed: of the loop; None without one.
            variables: that the program assigns.
        """
        self.iteration, self.name = iteration, iteration.name
        self.changed = iteration.touched.changed
        changed = set(map(id, self.changed))
        # Their values during the loop belong to the state of the program, if the loop ends early.
        self.others = [variable for variable in variables if id(variable) not in changed]
        self.has_inner = iteration.touched.has_driven_loops
        group, count = current_group(), replicas()
        self.is_local = group is None or group.is_local
        local = range(count) if group is None else group.local
        chunk_time = HOST_TIME if count == 1 else REPLICA_TIME
        if not self.is_local or (infeed is None and not iteration.tapped):
            chunk_time = LONG_TIME
        may_end_early = iteration.goes_on is not None
        self.exchange = Exchange(infeed, iteration.tapped, chunk_time, count, local, may_end_early)
        self.block: Any = None if infeed is None else _specs(infeed.block().batches)
        if infeed is not None and count > 1:
            self.block = jax.tree.map(lambda leaf: _specs(leaf[0]), self.exchange.empty)

    def refuse(self, place: str) -> NoReturn:
        """Raises UnsupportedError for a place that the host cannot reach."""
        refuse_driven_loop(place)

    def add(self, carry: IterationCarry, limit: int | jax.Array | None) -> IterationCarry:
        """Adds the loop to the program that is being traced.

        Args:
            carry: before the first iteration.
            limit: the largest number of iterations, which may be traced; None for no limit.

        Returns:
            The carry after the last iteration.
        """
        leaves, treedef = jax.tree.flatten(carry)
        specs = jax.tree.unflatten(treedef, _specs(leaves))
        self.condition: LoopPart | None = None
        if self.has_inner:
            element = None if self.block is None else specs_of(self.block)
            self.part = LoopPart(self._one, specs, element)
            if (goes_on := self.iteration.goes_on) is not None:
                self.condition = LoopPart(goes_on, specs)
        else:
            self.part = LoopPart(self._chunk, specs, self.block, INDEX, INDEX)
        outside = [] if self.condition is None else self.condition.outside
        number = jnp.int32(MANY if limit is None else limit)
        limits = number, largest(number) if is_traced(number) else number  # the second: of all
        others = [lax.convert_element_type(v.value, v.dtype) for v in self.others]
        self.counts = len(self.part.outside), len(outside), len(leaves), len(limits)
        inputs = [*self.part.outside, *outside, *leaves, *limits, *others]
        results = add_host_work(self, inputs, self.part.graph.outvars[: len(leaves)])
        return jax.tree.unflatten(treedef, results)

    def _chunk(
        self, carry: IterationCarry, block: ArrayTree, start: jax.Array, count: jax.Array
    ) -> ChunkResult:
        iteration = self.iteration
        if not self.is_local:
            count = lax.pmin(count, REPLICA)
        empty = empty_entries(iteration.tapped, self.exchange.capacity)
        result = run_chunk(iteration, iteration.goes_on, carry, block, start, count, empty)
        return result._replace(outs=self._for_all(result.outs))

    def _one(self, carry: IterationCarry, element: ArrayTree) -> Any:
        carry, tapped = self.iteration(carry, element)
        return carry, self._for_all(tapped)

    def _for_all(self, taps: Tapped) -> Tapped:
        return taps if self.is_local else of_all(taps)


class LoopPart:
    """A part of a loop as a graph: of the values that it reads from outside, and its arguments."""

    def __init__(self, function: Callable[..., object], *specs: SpecTree):
        """Traces the part, within the trace of the program.

        Args:
            function: of the part.
            *specs: of its arguments.
        """
        graph, _ = trace(function, *specs)
        outside = {var: value for var, value in graph.constants.items() if is_traced(value)}
        self.outside = list(outside.values())
        constants = {var: v for var, v in graph.constants.items() if var not in outside}
        self.graph = Graph((*outside, *graph.invars), graph.outvars, graph.equations, constants)


def _specs(tree: ArrayTree) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
