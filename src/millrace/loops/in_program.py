"""A loop as part of a program that is being traced.

    no queues           one compiled loop
    infeed or outfeed   chunks of iterations, and an exchange with the host before each:

        exchange ->  iterations  -> exchange ->  iterations  -> exchange

Replicas in one program share an exchange, `[iterations, R, ...]`: JAX batches the loop, and a
batching rule of millrace merges the exchanges of the replicas.

A callback takes 0.2 to 0.5 ms, as long as a short training step: so there is one for each chunk,
not one for each iteration.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap
from jax.experimental import io_callback

from millrace._compat.jax_tracing import is_traced
from millrace._compat.keras_steps import current_scope
from millrace.errors import ModelError
from millrace.feeds.infeed_queue import InfeedQueue
from millrace.loops.chunk import IterationCarry, empty_outs, run_chunk
from millrace.loops.exchange import CALLBACK_TIME, PROCESS_TIME, Exchange
from millrace.loops.iteration import Iteration
from millrace.loops.replica_exchange import ReplicaExchange, host_order
from millrace.loops.replication import current_group, largest, replicas, replication_index
from millrace.loops.scope import context_of
from millrace.pytrees import ArrayTree
from millrace.taps.taps import Tapped

# A block [capacity, ...], the index of its first element, and the iterations of the next chunk.
Elements = tuple[ArrayTree, jax.Array, jax.Array]

MANY = np.iinfo(np.int32).max  # iterations of a loop that only its condition ends


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
    if context is not None:
        context.claim(iteration.tapped)
        if context.looks_only:
            if current_group() is not None and (infeed is not None or iteration.tapped):
                host_order().assign(jnp.int32(0))
            return _without_running(scope, iteration, values)
    if isinstance(limit, jax.Array) and is_traced(limit):
        limit = largest(limit)
        if context is not None:
            limit = context.checked(limit, iteration.loop)
    states = [lax.convert_element_type(v.value, v.dtype) for v in changed]
    carry: IterationCarry = (values, states)
    order = None
    if infeed is None and not iteration.tapped:
        carry = _compiled_loop(iteration, carry, limit)
    else:
        tapped = iteration.tapped
        if context is None:
            exchange = Exchange(infeed, tapped, CALLBACK_TIME)
        else:
            exchange = context.exchange(
                lambda: _exchange_of(infeed, tapped, iteration.goes_on is not None)
            )
        raises = context is None
        carry, order = _loop_with_exchanges(iteration, carry, limit, exchange, raises)
    values, states = carry
    for variable, value in zip(changed, states, strict=True):
        variable.assign(value)
    if order is not None:
        host_order().assign(order)
    return values


def _without_running(scope: Any, iteration: Iteration, values: list[ArrayTree]) -> list[ArrayTree]:
    """Uses and assigns the variables of a loop, without the loop; returns zeros for its values."""
    for variable in iteration.touched.fixed:
        scope.get_current_value(variable)
    for variable in iteration.touched.changed:
        variable.assign(jnp.zeros(variable.shape, variable.dtype))
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), values)


def _exchange_of(infeed: InfeedQueue | None, tapped: Tapped, may_end_early: bool) -> Exchange:
    group = current_group()
    if group is None:
        return Exchange(infeed, tapped, CALLBACK_TIME, replicas(), may_end_early)
    chunk_time = CALLBACK_TIME if group.is_local else PROCESS_TIME
    return ReplicaExchange(infeed, tapped, chunk_time, group, may_end_early)


def _compiled_loop(
    iteration: Iteration, carry: IterationCarry, limit: int | jax.Array | None
) -> IterationCarry:
    goes_on = iteration.goes_on
    if goes_on is None:
        return lax.fori_loop(0, limit, lambda _, carry: iteration(carry, None)[0], carry)
    if limit is None:
        return lax.while_loop(goes_on, lambda carry: iteration(carry, None)[0], carry)

    def again(state: tuple[jax.Array, IterationCarry]) -> jax.Array:
        return (state[0] < limit) & goes_on(state[1])

    def advance(state: tuple[jax.Array, IterationCarry]) -> tuple[jax.Array, IterationCarry]:
        return state[0] + 1, iteration(state[1], None)[0]

    return lax.while_loop(again, advance, (jnp.int32(0), carry))[1]


def _loop_with_exchanges(
    iteration: Iteration,
    carry: IterationCarry,
    limit: int | jax.Array | None,
    exchange: Exchange,
    raises: bool,
) -> tuple[IterationCarry, jax.Array | None]:
    end = jnp.int32(MANY if limit is None else limit)
    empty = empty_outs(iteration.tapped, exchange.capacity)
    call_host = _host_call(exchange, raises, takes=True)

    def again(state: _ExchangingLoop) -> jax.Array:
        return (state.done < end) & state.more & ~state.ended

    def chunk(state: _ExchangingLoop) -> _ExchangingLoop:
        remaining = end - state.done
        elements, order = call_host(state.outs.values, state.used, remaining, state.order)
        block, start, count = elements
        new = run_chunk(iteration, iteration.goes_on, state.carry, block, start, count, empty)
        done = state.done + new.used
        return _ExchangingLoop(done, new.carry, new.outs, new.used, new.more, count == 0, order)

    on_devices = isinstance(exchange, ReplicaExchange)
    order = lax.convert_element_type(host_order().value, jnp.int32) if on_devices else None
    more = jnp.bool_(True) if iteration.goes_on is None else iteration.goes_on(carry)
    none = jnp.int32(0)
    state = _ExchangingLoop(none, carry, empty, none, more, jnp.bool_(False), order)
    state = lax.while_loop(again, chunk, state)
    end_on_host = _host_call(exchange, raises, takes=False)
    _, order = end_on_host(state.outs.values, state.used, none, state.order)
    return state.carry, order


class _ExchangingLoop(NamedTuple):
    """The state of a loop between two chunks."""

    done: jax.Array  # iterations so far
    carry: IterationCarry
    outs: Tapped  # of the last chunk, [capacity, ...]
    used: jax.Array  # iterations of the last chunk
    more: jax.Array  # whether the condition holds
    ended: jax.Array  # whether the host has ended the loop
    order: jax.Array | None  # of the next call of the host, where calls are not in order by JAX


# Takes taps of the last chunk, its number of iterations, the number that remain, and the number of
# the call. Returns the elements of the next chunk, if one follows, and the number of the next call.
HostCall = Callable[
    [tuple[ArrayTree, ...], jax.Array, jax.Array, jax.Array | None],
    tuple[Any, jax.Array | None],
]


def _host_call(exchange: Exchange, raises: bool, takes: bool) -> HostCall:
    """Returns the callback of a program between two chunks, or after the last one.

    Args:
        exchange: the host's side.
        raises: whether an error on the host is raised at once.
        takes: whether the next chunk follows. The callback after the last one returns nothing:
            a block would be copied twice.
    """
    if isinstance(exchange, ReplicaExchange):
        return exchange.call
    block = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), exchange.empty)
    number = jax.ShapeDtypeStruct((), np.int32)
    spec: Any = (block, number, number) if takes else None

    def on_host(outs: tuple[ArrayTree, ...], used: np.ndarray, remaining: np.ndarray) -> Any:
        iterations = int(used)
        exchange.give_back(iterations)
        exchange.deliver(outs, iterations)
        portion = exchange.portion(int(remaining)) if takes else exchange.end()
        if raises and exchange.error is not None:
            raise exchange.error
        if portion is None:
            return None
        return portion.block, np.int32(portion.start), np.int32(portion.iterations)

    def call(outs: tuple[ArrayTree, ...], used: jax.Array, remaining: jax.Array) -> Any:
        return io_callback(on_host, spec, outs, used, remaining, ordered=True)

    if exchange.replicas == 1:
        return lambda outs, used, remaining, order: (call(outs, used, remaining), order)
    of_one = _batched(call, block, takes)
    index = replication_index()
    return lambda outs, used, remaining, order: (of_one(index, outs, used, remaining), order)


def _batched(call: Callable[..., Any], block: ArrayTree, takes: bool) -> Callable[..., Any]:
    """Returns a callback for replicas that run as one batch: one call for all of them.

    JAX refuses to batch a loop with ordered callbacks. It batches a function with a rule of its
    own, and finds the callback in the rule.

    Args:
        call: the callback, with taps of all replicas.
        block: specs of a block, `[capacity, replicas, ...]`.
        takes: whether the next chunk follows.
    """

    @custom_vmap
    def of_one(
        _: jax.Array, outs: tuple[ArrayTree, ...], used: jax.Array, remaining: jax.Array
    ) -> Any:
        # Never runs; it only has the shapes of one replica. The replica's index is an argument
        # so that one certainly differs between replicas.
        of_replica = jax.tree.map(lambda a: jnp.zeros((a.shape[0], *a.shape[2:]), a.dtype), block)
        return (of_replica, used, remaining) if takes else None

    @of_one.def_vmap
    def of_all(
        size: int,
        is_batched: Sequence[Any],  # of each argument, a tree of truth values
        _: jax.Array,
        outs: tuple[ArrayTree, ...],
        used: jax.Array,
        remaining: jax.Array,
    ) -> tuple[Any, Any]:
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
        results = call(stacked, used, remaining)
        if not takes:
            return None, None
        block, start, count = results
        block = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), block)
        return (block, start, count), (jax.tree.map(lambda _: True, block), False, False)

    return of_one
