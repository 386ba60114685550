"""A loop within a program that is being traced.

    no queues           one compiled loop
    infeed or outfeed   chunks of turns, and an exchange with the host before each:

        exchange ->  turn turn turn  -> exchange ->  turn turn turn  -> exchange

Replicas in one program exchange together, `[turns, R, ...]`: JAX makes a batch of the loop, and a
rule of ours makes one exchange of theirs.

A callback takes 0.2 to 0.5 ms, as much as many a training step: so there is one for a chunk, not
one for a turn.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap
from jax.experimental import io_callback

from millrace._compat.jax_tracing import is_traced
from millrace._compat.keras_scope import current_scope
from millrace.errors import ModelError
from millrace.loops.chunk import room, run_chunk
from millrace.loops.exchange import CALLBACK_SECONDS, Exchange
from millrace.loops.iteration import Carry, Turn
from millrace.loops.replication import largest, replicas, replication_index
from millrace.loops.scope import context_of

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
    if is_traced(limit):
        limit = largest(limit)
        if context is not None:
            limit = context.checked(limit, turn.around)
    states = [lax.convert_element_type(v.value, v.dtype) for v in changed]
    carry: Carry = (values, states)
    if infeed is None and not turn.tapped:
        carry = _compiled_loop(turn, carry, limit)
    else:
        if context is None:
            exchange = Exchange(infeed, turn.tapped, CALLBACK_SECONDS)
        else:
            count, ends_early = replicas(), turn.goes_on is not None
            exchange = context.exchange(
                lambda: Exchange(infeed, turn.tapped, CALLBACK_SECONDS, count, ends_early)
            )
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
    empty = room(turn.tapped, exchange.capacity)
    meet = _meeting(exchange, raises)

    def again(state: Any) -> Any:
        done, _, _, _, more, ended = state
        return (done < limit) & more & ~ended

    def chunk(state: Any) -> Any:
        done, carry, outs, used, _, _ = state
        block, start, count = meet(outs.values, used, limit - done)
        new = run_chunk(turn, turn.goes_on, carry, block, start, count, empty)
        return done + new.used, new.carry, new.outs, new.used, new.more, count == 0

    more = jnp.bool_(True) if turn.goes_on is None else turn.goes_on(carry)
    start = (jnp.int32(0), carry, empty, jnp.int32(0), more, jnp.bool_(False))
    _, carry, outs, used, _, _ = lax.while_loop(again, chunk, start)
    meet(outs.values, used, jnp.int32(0))
    return carry


def _meeting(exchange: Exchange, raises: bool) -> Callable[..., Any]:
    """Returns what a program calls between two chunks: gives outs, and gets a portion."""
    spec = (
        jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), exchange.empty),
        *[jax.ShapeDtypeStruct((), np.int32)] * 2,
    )

    def on_host(outs: Any, used: Any, remaining: Any) -> Any:
        used = int(used)
        exchange.give_back(used)
        exchange.deliver(outs, used)
        portion = exchange.portion(int(remaining))
        if raises and exchange.error is not None:
            raise exchange.error
        return portion.block, np.int32(portion.start), np.int32(portion.turns)

    def meet(outs: Any, used: Any, remaining: Any) -> Any:
        return io_callback(on_host, spec, outs, used, remaining, ordered=True)

    if exchange.replicas == 1:
        return meet

    @custom_vmap
    def of_one(_: Any, outs: Any, used: Any, remaining: Any) -> Any:
        # Never runs. It only has the shapes of one replica: JAX makes no batch of a loop that has
        # ordered callbacks, but of this one it does, and finds the callback in the rule below.
        # The index is there for something that surely differs between replicas.
        block = jax.tree.map(lambda a: jnp.zeros((a.shape[0], *a.shape[2:]), a.dtype), spec[0])
        return block, used, remaining

    @of_one.def_vmap
    def of_all(size: int, is_batched: Any, _: Any, outs: Any, used: Any, remaining: Any) -> Any:
        stacked = jax.tree.map(
            lambda leaf, batched: (
                jnp.moveaxis(leaf, 0, 1) if batched else jnp.repeat(leaf[:, None], size, axis=1)
            ),
            outs,
            is_batched[1],
        )
        used, remaining = (
            leaf[0] if batched else leaf
            for leaf, batched in zip((used, remaining), is_batched[2:], strict=True)
        )
        block, start, count = meet(stacked, used, remaining)
        block = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), block)
        return (block, start, count), (jax.tree.map(lambda _: True, block), False, False)

    return functools.partial(of_one, replication_index())
