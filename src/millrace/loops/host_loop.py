"""Loops that the host drives.

trace of a function -> require_host() raises OnHost -> the function is called without a trace

values, element -> body, untraced -> values        taps arrive after each iteration

    host      take 1 | call 1 | take 2 | call 2 | outs of 1 | take 3 | call 3 | outs of 2
    device                    |---------- 1 ----------|---------- 2 ----------|------- 3 --

Results of a chunk are delivered while the next one runs, without a callback in the program. The
carry goes from one call to the next; the variables get their values back at the end.
"""

import itertools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from millrace._compat.jax_tracing import is_tracing
from millrace._compat.keras_steps import current_scope
from millrace.feeds.infeed_queue import InfeedQueue
from millrace.loops.body import Body, Carried, next_values, truth_of
from millrace.loops.chunk import ChunkResult, IterationCarry, empty_outs, run_chunk
from millrace.loops.compiled import Compiled, Subject
from millrace.loops.exchange import Exchange
from millrace.loops.iteration import Iteration
from millrace.loops.program import exchanging
from millrace.loops.scope import Context, VariableScope, put, value_of
from millrace.pytrees import ArrayTree
from millrace.taps.taps import collecting


class OnHost(BaseException):
    """Ends the trace of a function that the host must drive."""


def require_host() -> None:
    """Ends the current trace, if there is one.

    Raises:
        OnHost: caught where millrace has begun to trace the user's function.
    """
    if is_tracing() or current_scope() is not None:
        raise OnHost


class LoopByHost:
    """A loop of Python, which calls the body without compiling it."""

    def __init__(
        self,
        body: Callable[..., object],
        condition: Callable[..., object] | None,
        carried: Carried,
        infeed: InfeedQueue | None,
    ):
        self._body, self._specs, self._infeed = Body(body), carried.specs, infeed
        self._condition = None if condition is None else Body(condition, "condition")

    def run(self, values: list[ArrayTree], limit: int | None) -> list[ArrayTree]:
        """Runs the loop, and returns the values after the last iteration.

        Args:
            values: carried into the first iteration.
            limit: the largest number of iterations; None for no limit.
        """
        for _ in itertools.count() if limit is None else range(limit):
            if self._condition is not None and not truth_of(self._condition(values)):
                break
            values, tapped = collecting(self._iteration)(values, self._element())
            for queue, value in tapped.items():
                queue.expect()
                queue.receive(jax.tree.map(lambda leaf: np.array(leaf)[None], value), 1)
        return values

    def _element(self) -> Any:
        if self._infeed is None:
            return None
        elements = self._infeed.take(1)
        return jax.tree.map(lambda leaf: leaf[elements.start], elements.block.batches)

    def _iteration(self, values: list[ArrayTree], element: ArrayTree) -> list[ArrayTree]:
        return next_values(self._body(values, element), self._specs)


CarryTree = TypeVar("CarryTree")


class HostLoop:
    """A loop with queues, compiled once for all numbers of iterations."""

    def __init__(self, iteration: Iteration, infeed: InfeedQueue | None, subject: Subject):
        self._iteration = iteration
        self._exchange = Exchange(infeed, iteration.tapped)
        self._inner: list[Exchange] = []  # of loops in the body, once it has been traced
        self._is_traced = False
        # The carry is donated: it is a copy, to which there are no other references.
        self._chunk = Compiled(
            self._traced,
            subject,
            shares=lambda: not iteration.tapped and not self._inner,  # those belong to queues
            donated=(0,),
        )
        # Variables and queues belong to one run at a time. The body is traced without the lock.
        self._lock = threading.Lock()

    def run(self, values: list[ArrayTree], limit: int) -> list[ArrayTree]:
        """Runs the loop, and assigns the variables their new values.

        Args:
            values: carried into the first iteration.
            limit: the largest number of iterations.

        Raises:
            Exception: of the data set. The iterations before it have been run.
        """
        if not self._is_traced:
            self._trace(values)
        touched = self._iteration.touched
        with self._lock:
            states = list(map(value_of, touched.changed))
            fixed = list(map(value_of, touched.fixed))
            carry = _copies((values, states))
            waits = self._iteration.goes_on is not None or self._inner
            run = self._run_in_step if waits else self._run_ahead
            with exchanging([self._exchange, *self._inner]):
                values, states = run(carry, fixed, limit)
                put(touched.changed, states)
        return values

    def _trace(self, values: list[ArrayTree]) -> None:
        """Compiles a chunk, which finds the loops in the body that exchange values, too."""
        touched = self._iteration.touched
        carry = _copies((values, list(map(value_of, touched.changed))))
        fixed = list(map(value_of, touched.fixed))
        self._chunk.prepare(carry, fixed, self._exchange.empty, np.int32(0), np.int32(0))
        self._is_traced = True

    def _run_ahead(
        self, carry: IterationCarry, fixed: list[jax.Array], limit: int
    ) -> IterationCarry:
        """Calls a chunk before the results of the previous one have arrived."""
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
        if pending is not None and (self._exchange.queues or self._exchange.error):
            self._deliver(*pending)
        return carry

    def _deliver(self, result: ChunkResult, count: int) -> None:
        jax.block_until_ready(result.used)
        self._exchange.deliver(result.outs.values, count)

    def _run_in_step(
        self, carry: IterationCarry, fixed: list[jax.Array], limit: int
    ) -> IterationCarry:
        """Waits for each chunk, because its result decides whether another one follows."""
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
            if any(inner.error for inner in self._inner):
                break
        return result.carry

    def _call(
        self,
        carry: IterationCarry,
        fixed: list[jax.Array],
        block: ArrayTree,
        start: int,
        count: int,
    ) -> ChunkResult:
        return self._chunk(carry, fixed, block, np.int32(start), np.int32(count))

    def _traced(
        self,
        carry: IterationCarry,
        fixed: list[jax.Array],
        block: ArrayTree,
        start: jax.Array,
        count: jax.Array,
    ) -> ChunkResult:
        context, iteration = Context(exchanges=self._inner), self._iteration
        with VariableScope(zip(iteration.touched.fixed, fixed, strict=True), context):
            context.claim(iteration.tapped)
            empty = empty_outs(iteration.tapped, self._exchange.capacity)
            return run_chunk(iteration, iteration.goes_on, carry, block, start, count, empty)


@jax.jit
def _copies(tree: CarryTree) -> CarryTree:
    return jax.tree.map(jnp.copy, tree)
