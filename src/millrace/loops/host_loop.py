"""A loop that the host drives: chunks of turns, one call of compiled code for each.

    host      take 1 | call 1 | take 2 | call 2 | outs of 1 | take 3 | call 3 | outs of 2
    device                    |---------- 1 ----------|---------- 2 ----------|------- 3 --

Results of a chunk are delivered while the next one runs, without a callback in the program. What
is carried is given from one call to the next; the variables get it back at the end.
"""

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from millrace.loops.chunk import ChunkResult, room, run_chunk
from millrace.loops.compiled import Compiled, Subject
from millrace.loops.exchange import Exchange
from millrace.loops.iteration import Carry, Turn
from millrace.loops.program import exchanging
from millrace.loops.scope import Context, VariableScope, put, value_of


class HostLoop:
    """A loop with queues, compiled once for all numbers of turns."""

    def __init__(self, turn: Turn, infeed: Any, subject: Subject):
        self._turn = turn
        self._exchange = Exchange(infeed, turn.tapped)
        self._inner: list[Any] | None = None  # exchanges of loops in the body, once traced
        # What is carried is given away: it is a copy that nobody else holds.
        self._chunk = Compiled(
            self._traced,
            subject,
            shares=lambda: not turn.tapped and not self._inner,  # those belong to queues
            donated=(0,),
        )
        self._lock = threading.Lock()

    def run(self, values: list[Any], limit: int) -> list[Any]:
        """Runs the loop, and gives the variables their new values.

        Args:
            values: what goes in.
            limit: turns, at most.

        Raises:
            Exception: what the data set has raised. The turns before have then been run.
        """
        touched = self._turn.touched
        with self._lock:
            states = list(map(value_of, touched.changed))
            fixed = list(map(value_of, touched.fixed))
            carry = _copies((values, states))
            if self._inner is None:
                # The trace tells whether there are loops in the body that exchange values with
                # the host, too.
                nothing = np.int32(0), np.int32(0)
                self._chunk.prepare(carry, fixed, self._exchange.empty, *nothing)
            inner = self._inner or []
            waits = self._turn.goes_on is not None or inner
            run = self._run_in_step if waits else self._run_ahead
            with exchanging([self._exchange, *inner]):
                values, states = run(carry, fixed, limit)
                put(touched.changed, states)
        return values

    def _run_ahead(self, carry: Carry, fixed: list[Any], limit: int) -> Carry:
        """Calls a chunk before the results of the one before are there."""
        pending: tuple[ChunkResult, int] | None = None
        done = 0
        while done < limit:
            block, start, count = self._exchange.portion(limit - done)
            if not count:
                break
            result = self._call(carry, fixed, block, start, count)
            carry, done = result.carry, done + count
            if pending is not None:
                self._deliver(*pending)
            pending = (result, count)
        if pending is not None and (self._exchange.keys or self._exchange.error):
            self._deliver(*pending)
        return carry

    def _deliver(self, result: ChunkResult, count: int) -> None:
        jax.block_until_ready(result.used)
        self._exchange.deliver(result.outs.values, count)

    def _run_in_step(self, carry: Carry, fixed: list[Any], limit: int) -> Carry:
        """Waits for each chunk, where only its result tells whether there is another."""
        exchange, done = self._exchange, 0
        result = self._call(carry, fixed, exchange.empty, 0, 0)
        while result.more and done < limit:
            block, start, count = exchange.portion(limit - done)
            if not count:
                break
            result = self._call(result.carry, fixed, block, start, count)
            used = int(result.used)
            exchange.give_back(used)
            exchange.deliver(result.outs.values, used)
            done += used
            if any(inner.error for inner in self._inner or ()):
                break
        return result.carry

    def _call(self, carry: Carry, fixed: list[Any], block: Any, start: int, count: int) -> Any:
        return self._chunk(carry, fixed, block, np.int32(start), np.int32(count))

    def _traced(self, carry: Carry, fixed: list[Any], block: Any, start: Any, count: Any) -> Any:
        exchanges = self._inner = self._inner or []
        context, turn = Context(exchanges=exchanges), self._turn
        with VariableScope(zip(turn.touched.fixed, fixed, strict=True), context):
            context.claim(turn.tapped)
            empty = room(turn.tapped, self._exchange.capacity)
            return run_chunk(turn, turn.goes_on, carry, block, start, count, empty)


@jax.jit
def _copies(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, tree)
