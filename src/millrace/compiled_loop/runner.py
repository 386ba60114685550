"""Runs one execution of an unpipelined model: as few calls of compiled code as its blocks allow.

    segment      |0 1 2 3 4 5 6 7 8 9|         accumulation 4
    calls         run(0, 8)  accumulate(8, 2)  the window goes on in the next segment

A window is what one update accumulates over, with replicas over the batches of all of them.
Nearly all lie whole in one segment.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from millrace._compat.jax_memory import in_device_memory
from millrace.compiled_loop.executables import Executables
from millrace.compiled_loop.result import (
    Halted,
    Outlet,
    Part,
    halted_in_call,
    halted_in_window,
    is_halted,
    kept,
    nowhere,
    with_kept,
)
from millrace.compiled_loop.window import Turns, Window
from millrace.compiling.executable import Executable
from millrace.feeds.block import Block, Destination, Segment
from millrace.interrupts import raise_if_interrupted
from millrace.plan import LoopForm, Mode, Plan
from millrace.processes.agreement import gathered
from millrace.replicas.placement import Placement
from millrace.steps.accumulate import scale_of, weight_of
from millrace.steps.state import State
from millrace.taps.entries import Taps


class ScanRunner:
    """Runs segments with the executables of one mode of one model."""

    def __init__(self, executables: Executables, plan: Plan, max_pending: int, single_steps: bool):
        """Makes a runner.

        Args:
            executables: where compiled code comes from.
            plan: a plan of the mode; batch and capacity are replaced by those of each block.
            max_pending: how many blocks may be queued on the device besides the current one.
            single_steps: whether executions have one step, which needs no loop around it.
        """
        self._executables = executables
        self._plan = plan
        self._max_pending = max_pending
        self._single_steps = single_steps
        self._longest = 1
        self._tap_room: int | None = None
        self.outlet: Outlet = nowhere
        self._handed_over = 0  # parts of a running execution
        self.halted: Halted | None = None  # the update before which the last execution ended
        self._pending: deque[Any] = deque()
        self._block: Block | None = None
        self._batches: Any = None  # of the block, on the device
        self._block_plan = plan
        self._entered = False  # whether that is the plan of a block
        self._form = LoopForm(unroll=None)
        self._update_fits_one_call = True
        self._placement = Placement(plan)
        self._destination = Destination(plan.group)
        self._replicas, self._window = plan.replicas, plan.window
        self._last_result: Any = None
        self.dispatches = 0
        self._given: State | None = None  # what a running execution began with
        self._newest: State | None = None  # and what it has come to

    def run(
        self, state: State, segments: Iterable[Segment], longest: int, chunk: int | None = None
    ) -> tuple[State, list[Part]]:
        """Runs one execution and does not wait for it.

        Args:
            state: consumed; its memory becomes that of the new state.
            segments: what to run, in order; each is dispatched as soon as it is there.
            longest: steps of a full execution, which decides how far unrolled code goes.
            chunk: at most so many steps in a call, where someone waits for early results.

        Returns:
            The new state, and a part for each call that has a result.
        """
        self._given, self._newest = state, None
        if not self._executables.knows(state):
            state = self._placement.enter(state)
        self._newest = state
        self._executables.see(state)
        self._longest = longest
        self._make_room()
        parts: list[Part] = []
        self.halted, self._handed_over = None, 0
        state = self._run(state, segments, parts, chunk)
        self._hand_over(parts)
        self._executables.returned(state)
        self._given = self._newest = None
        return self._placement.leave(state), parts

    def _run(
        self, state: State, segments: Iterable[Segment], parts: list[Part], chunk: int | None
    ) -> State:
        window: Window | None = None
        plan, size = self._plan, self._window
        for segment in segments:
            block, start = segment.block, segment.start
            if block is not self._block:
                self._enter(block)
            plan = self._block_plan
            end = start + segment.count
            while start < end:
                whole = self._whole(end - start) if window is None else 0
                if whole:
                    for steps, unroll in self._calls(start, whole, size, self._longest, chunk):
                        run = self._executables.run(plan, unroll)
                        state, result, taps = self._call(run, state, self._batches, start, steps)
                        self._newest = state
                        parts.append(self._part(result, taps, start, steps, steps // size))
                        if is_halted(taps):
                            given = (parts, block, start, size, self._replicas)
                            self.halted = halted_in_call(*given)
                            return state
                        self._hand_over(parts)
                        start += steps
                        raise_if_interrupted()
                    continue
                if window is None:
                    window = self._open_window(plan, state, block.spec.rows)
                steps = min(end - start, size - window.steps)
                state = self._accumulate(plan, state, window, block, start, steps, parts)
                start += steps
                if window.steps == size:
                    state = self._close_window(plan, state, window, parts)
                    if self.halted is not None:
                        return state
                    self._hand_over(parts)
                    window = None
        if window is not None:  # the data ended within a window: the update has fewer steps
            state = self._close_window(plan, state, window, parts)
        return state

    def _hand_over(self, parts: list[Part]) -> None:
        """Lets the taps of whole updates go on their way while the next ones are dispatched."""
        new, self._handed_over = parts[self._handed_over :], len(parts)
        if new:
            self.outlet(new)

    @property
    def state(self) -> State | None:
        """The newest state of a running execution; what is left of it if the execution fails."""
        return self._given if self._newest is None else self._placement.leave(self._newest)

    def gather(self, role: str, values: Iterable[Any]) -> list[Any]:
        """Returns values of the state as variables hold them; all processes call it together."""
        found = [gathered(value) for value in values]
        # A model that is called outside of its loop computes with its weights.
        return list(map(in_device_memory, found)) if role == "trainable" else found

    def _whole(self, steps: int) -> int:
        """Returns how many of the next steps one program can run whole."""
        if self._plan.mode is not Mode.TRAIN:
            return steps
        return steps // self._window * self._window if self._update_fits_one_call else 0

    def make_room(self, steps: int) -> None:
        """Lets calls return the results of so many steps, where those are wanted."""
        self._longest = steps
        self._make_room()

    def _make_room(self) -> None:
        """Lets calls return the results of all steps of an execution, where those are wanted."""
        plan = self._plan
        if (plan.each_step or plan.tapped) and self._longest > plan.records:
            records = -(-self._longest // self._replicas) * self._replicas
            self._plan = replace(plan, records=records)
            self._block = None  # its plan is out of date

    def _enter(self, block: Block) -> None:
        """Makes `block` the one that is run, and waits where too many are queued."""
        self._limit_pending()
        self._block = block
        self._batches = self._on_devices(block.batches)
        plan = replace(self._plan, batch=block.spec, capacity=block.capacity)
        if not plan.tapped and self._executables.taps_found(plan):
            # Only a trace shows that a layer enqueues. The first plan's trace was for that.
            self._plan = replace(self._plan, tapped=True)
            self._make_room()
            plan = replace(self._plan, batch=block.spec, capacity=block.capacity)
            self._block = block
        if self._entered and plan == self._block_plan:
            return  # with the same object, by which executables are found
        self._block_plan, self._entered = plan, True
        self._form = form = self._executables.form(plan)
        self._tap_room = self._executables.tap_room(plan)
        # Where code must be unrolled, so must a whole update be, or be run in parts.
        rounds = self._window // self._replicas
        self._update_fits_one_call = form.is_loop or rounds <= (form.unroll or 1)

    def _on_devices(self, batches: Any) -> Any:
        leaves, tree = jax.tree.flatten(batches)
        if self._destination.is_host_memory:
            leaves = self._destination.put(leaves)
        return jax.tree.unflatten(tree, leaves)

    def _accumulate(
        self,
        plan: Plan,
        state: State,
        window: Window,
        block: Block,
        start: int,
        count: int,
        parts: list[Part],
    ) -> State:
        rows = block.spec.rows
        reduction = plan.accumulation.reduction
        weight = weight_of(reduction, rows, window.first_rows)
        for steps, unroll in self._calls(start, count, self._replicas, self._window, None):
            accumulate = self._executables.accumulate(plan, unroll)
            state, window.accumulated, result, taps = self._call(
                accumulate,
                state,
                window.accumulated,
                self._batches,
                start,
                steps,
                np.float32(window.steps if reduction.is_running else weight),
            )
            self._newest = state
            parts.append(self._part(result, taps, start, steps, 0))
            start += steps
            window.steps += steps
        window.spans.append((block, start - count, count))
        window.weight += count * weight
        return state

    def _open_window(self, plan: Plan, state: State, rows: int) -> Window:
        before = kept(state) if plan.taps.stops else None
        return Window(self._call(self._executables.zeros(plan), state), 0, 0.0, rows, before)

    def _close_window(self, plan: Plan, state: State, window: Window, parts: list[Part]) -> State:
        reduction = plan.accumulation.reduction
        scale = np.float32(scale_of(reduction, window.weight, self._replicas))
        apply = self._executables.apply(plan)
        state, taps = self._call(apply, state, window.accumulated, scale, window.steps)
        if plan.tapped:  # they belong to the part of the window's last steps
            whole = parts[-1].taps._replace(updates=taps.updates, halted=taps.halted)
            parts[-1] = parts[-1]._replace(taps=whole, updates=1)
            if is_halted(taps) and window.before is not None:
                self.halted = halted_in_window(parts, window.spans, self._replicas)
                state = with_kept(state, window.before)
        return state

    def _calls(
        self, start: int, count: int, unit: int, longest: int, chunk: int | None
    ) -> Iterator[tuple[int, int | None]]:
        form = LoopForm(unroll=1) if self._single_steps and self._form.is_loop else self._form
        limits = [limit for limit in (chunk, self._tap_room) if limit is not None]
        if not form.is_loop:  # of fixed length, whoever waits for results
            limits = limits[chunk is not None :]
        turns = Turns(form, unit, self._replicas, min([longest, *limits]))
        return turns.calls(start, count, None if not limits else min(limits))

    def _part(self, result: Any, taps: Taps, start: int, steps: int, updates: int) -> Part:
        self._last_result = result
        first = start % self._replicas
        return Part(result, steps, self._plan.records, first, taps, updates)

    def _call(self, executable: Executable, *arguments: Any) -> Any:
        self.dispatches += 1
        return executable(*(np.int32(a) if isinstance(a, int) else a for a in arguments))

    def _limit_pending(self) -> None:
        """Waits while more blocks than allowed are queued on the device.

        JAX returns from a call before it has run, and would queue blocks as fast as they are made.
        """
        if self._block is not None:
            self._pending.append(self._last_result)
        while len(self._pending) > self._max_pending:
            jax.block_until_ready(self._pending.popleft())

    def release(self) -> None:
        """Lets go of the blocks of a loop that has ended."""
        self._pending.clear()
        self._executables.forget()
        self._placement.release()
        self._block = self._batches = self._last_result = None
