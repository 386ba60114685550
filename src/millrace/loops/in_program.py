"""A loop within a program that is being traced.

    no queues           one compiled loop
    infeed or outfeed   chunks of turns, and an exchange with the host before each:

        exchange ->  turn turn turn  -> exchange ->  turn turn turn  -> exchange

A callback takes 0.2 to 0.5 ms, as much as many a training step: so there is one for a chunk, not
one for a turn.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback

from millrace._compat.keras_scope import current_scope
from millrace.errors import ModelError
from millrace.loops.exchange import Exchange
from millrace.loops.pace import CALLBACK_SECONDS
from millrace.loops.scope import context_of
from millrace.loops.turn import Carry, Turn
from millrace.programs.chunk import room, run_chunk
from millrace.programs.taps import Tapped

MANY = np.iinfo(np.int32).max  # turns of a loop that only its condition ends


def run_in_program(turn: Turn, values: list[Any], limit: Any, infeed: Any) -> list[Any]:
    """Adds a loop to the program that is being traced.

    Args:
        turn: one turn.
        values: what goes in.
        limit: turns at most; may be traced. None is no limit.
        infeed: None if there is none.

    Returns:
        The values after the last turn. The variables are assigned.
    """
    changed = turn.touched.changed
    scope: Any = current_scope()
    context = context_of(scope)
    if scope is None and (changed or turn.touched.fixed):
        paths = [v.path for v in (changed or turn.touched.fixed)]
        raise ModelError(
            f"A loop in a function of jax.jit uses the Keras variables {paths}, which JAX would "
            "take for constants. Set millrace.compile(fn) in place of jax.jit(fn)."
        )
    if context is not None:
        context.claim(turn.tapped)
        if context.looks_only:
            for variable in turn.touched.fixed:
                scope.get_current_value(variable)  # type: ignore[union-attr]
            for variable in changed:
                variable.assign(jnp.zeros(variable.shape, variable.dtype))
            return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), values)
    states = [lax.convert_element_type(v.value, v.dtype) for v in changed]
    carry: Carry = (values, states)
    if infeed is None and not turn.tapped:
        carry = _compiled_loop(turn, carry, limit)
    else:
        if context is None:
            exchange = Exchange(infeed, turn.tapped, CALLBACK_SECONDS)
        else:
            exchange = context.exchange(lambda: Exchange(infeed, turn.tapped, CALLBACK_SECONDS))
        carry = _loop_with_exchanges(turn, carry, limit, exchange, raises=context is None)
    values, states = carry
    for variable, value in zip(changed, states, strict=True):
        variable.assign(value)
    return values


def _compiled_loop(turn: Turn, carry: Carry, limit: Any) -> Carry:
    if turn.goes_on is None:
        return lax.fori_loop(0, limit, lambda _, carry: turn(carry, None)[0], carry)
    if limit is None:
        return lax.while_loop(turn.goes_on, lambda carry: turn(carry, None)[0], carry)

    def again(state: tuple[Any, Carry]) -> Any:
        return (state[0] < limit) & turn.goes_on(state[1])  # type: ignore[misc]

    def advance(state: tuple[Any, Carry]) -> tuple[Any, Carry]:
        return state[0] + 1, turn(state[1], None)[0]

    return lax.while_loop(again, advance, (jnp.int32(0), carry))[1]


def _loop_with_exchanges(
    turn: Turn, carry: Carry, limit: Any, exchange: Exchange, raises: bool
) -> Carry:
    limit = jnp.int32(MANY if limit is None else limit)
    spec = (
        jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), exchange.empty),
        *[jax.ShapeDtypeStruct((), np.int32)] * 2,
    )
    empty = room(turn.tapped, exchange.capacity)

    def on_host(outs: Any, used: Any, remaining: Any) -> Any:
        used = int(used)
        exchange.give_back(used)
        exchange.deliver(outs, used)
        portion = exchange.portion(int(remaining))
        if raises and exchange.error is not None:
            raise exchange.error
        return portion.block, np.int32(portion.start), np.int32(portion.turns)

    def meet(outs: Tapped, used: Any, remaining: Any) -> Any:
        return io_callback(on_host, spec, outs.values, used, remaining, ordered=True)

    def again(state: Any) -> Any:
        done, _, _, _, more, ended = state
        return (done < limit) & more & ~ended

    def chunk(state: Any) -> Any:
        done, carry, outs, used, _, _ = state
        block, start, count = meet(outs, used, limit - done)
        new = run_chunk(turn, turn.goes_on, carry, block, start, count, empty)
        return done + new.used, new.carry, new.outs, new.used, new.more, count == 0

    more = jnp.bool_(True) if turn.goes_on is None else turn.goes_on(carry)
    start = (jnp.int32(0), carry, empty, jnp.int32(0), more, jnp.bool_(False))
    _, carry, outs, used, _, _ = lax.while_loop(again, chunk, start)
    meet(outs, used, jnp.int32(0))
    return carry
