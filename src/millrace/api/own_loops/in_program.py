"""A loop as part of a program that is being traced.

    no queues, and a known end that is near      one compiled loop
    anything else, in no other loop              an equation, which the host drives in chunks
    queues in a place that the host cannot reach an error

A program cannot call the host for data: where all threads of XLA waited in such calls, or for one
another, none was left for the copies that the calls wait for.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from millrace._compat.jax_tracing import is_traced
from millrace._compat.keras_steps import current_scope
from millrace.api.own_loops.chunk import MAX_ITERATIONS, IterationCarry, run_chunk
from millrace.api.own_loops.driven_loop import DrivenLoop
from millrace.api.own_loops.exchange import MANY
from millrace.api.own_loops.iteration import Iteration
from millrace.api.own_loops.replication import largest
from millrace.api.own_loops.scope import context_of, refuse_driven_loop
from millrace.base.pytrees import ArrayTree
from millrace.errors import ModelError
from millrace.programs.feeds.infeed_queue import InfeedQueue
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
