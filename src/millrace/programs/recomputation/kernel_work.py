"""Kernels as numbers, and what an order of them takes.

order     0 1 2 3 1 4        kernel 1 runs twice
memory    of each position: the values that are alive there, and the kernel's own working bytes
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

Order = tuple[int, ...]  # kernels by number; the first run of each in rising order


class Before(NamedTuple):
    """The kernels that run before an update."""

    makers: tuple[int, ...] = ()  # of what it reads: of each, the last run before it in the order
    readers: tuple[int, ...] = ()  # of what it writes over: all runs of each


def with_updates_early(order: Order, updates: Mapping[int, Before]) -> Order:
    """Returns an order in which each update runs once, as soon as it can.

    Args:
        order: of kernels. No other kernel needs the result of an update.
        updates: what comes before each. If two wait for one another, what they write over has to
            be copied, and they run at the end.
    """
    if not updates:
        return order
    others = [kernel for kernel in order if kernel not in updates]
    left = Counter(others)  # runs that are still to come
    left.update(dict.fromkeys(updates, 1))
    runs: Counter[int] = Counter()  # so far
    begun: dict[tuple[int, int], list[int]] = {}  # of a run: updates that wait for it
    ended: dict[int, list[int]] = {}  # of a kernel: updates that wait for its last run
    waits_for = dict.fromkeys(updates, 0)
    for k, makers in _runs_of_makers(order, updates).items():
        for maker in makers:
            begun.setdefault(maker, []).append(k)
        readers = [each for each in updates[k].readers if left[each]]
        for each in readers:
            ended.setdefault(each, []).append(k)
        waits_for[k] = len(makers) + len(readers)
    early: list[int] = []

    def run(first: int) -> None:
        pending = [first]
        while pending:
            kernel = pending.pop()
            early.append(kernel)
            runs[kernel] += 1
            left[kernel] -= 1
            waiting = begun.pop((kernel, runs[kernel]), [])
            if not left[kernel]:
                waiting = waiting + ended.pop(kernel, [])
            for each in reversed(waiting):
                waits_for[each] -= 1
                if not waits_for[each]:
                    pending.append(each)

    for k in [k for k, count in waits_for.items() if not count]:
        run(k)
    for kernel in others:
        run(kernel)
    return (*early, *(k for k, count in waits_for.items() if count))


def _runs_of_makers(
    order: Order, updates: Mapping[int, Before]
) -> dict[int, list[tuple[int, int]]]:
    """Returns for each update the runs that compute what it reads: kernels, and which run.

    An earlier run of the same kernel would do, but its result would stay in memory for longer.
    """
    found: dict[int, list[tuple[int, int]]] = {}
    runs: Counter[int] = Counter()
    for kernel in order:
        if kernel in updates and kernel not in found:
            makers = updates[kernel].makers
            # An update may stand before another one whose result it reads.
            found[kernel] = [
                (maker, 1 if maker in updates else max(1, runs[maker])) for maker in makers
            ]
        runs[kernel] += 1
    return found


@dataclass(frozen=True)
class KernelWork:
    """Kernels as numbers: what they read and write, and what that takes."""

    inputs: tuple[tuple[int, ...], ...]  # of each kernel, the values that kernels compute
    outputs: tuple[tuple[int, ...], ...]
    nbytes: tuple[int, ...]  # of each value
    flops: tuple[float, ...]  # of each kernel
    working_bytes: tuple[int, ...]
    in_place: tuple[bool, ...]
    repeatable: tuple[bool, ...]
    results: frozenset[int]  # values that stay in memory until the end
    updates: Mapping[int, Before] = field(default_factory=dict, hash=False)

    @cached_property
    def maker(self) -> tuple[int, ...]:
        """Of each value, the kernel that computes it."""
        makers = [0] * len(self.nbytes)
        for kernel, outputs in enumerate(self.outputs):
            for value in outputs:
                makers[value] = kernel
        return tuple(makers)

    @cached_property
    def plain(self) -> Order:
        """The order in which every kernel runs once."""
        return tuple(range(len(self.inputs)))

    @cached_property
    def result_bytes(self) -> int:
        """The bytes of all results."""
        return sum(self.nbytes[value] for value in self.results)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Of each value, the kernels that read it, in rising order."""
        readers: list[list[int]] = [[] for _ in self.nbytes]
        for kernel, inputs in enumerate(self.inputs):
            for value in inputs:
                readers[value].append(kernel)
        return tuple(map(tuple, readers))

    @cached_property
    def cost(self) -> tuple[float, ...]:
        """Of each kernel, its FLOPs and the bytes that it writes: a move is not for nothing."""
        written = (sum(self.nbytes[value] for value in outputs) for outputs in self.outputs)
        return tuple(flops + size / 4 + 1 for flops, size in zip(self.flops, written, strict=True))

    def least(self) -> int:
        """Returns bytes that no order stays below: those of one kernel, with results so far."""
        least = results = 0
        for kernel, inputs in enumerate(self.inputs):
            outputs = self.outputs[kernel]
            taken = sum(self.nbytes[value] for value in inputs if value not in self.results)
            written = sum(self.nbytes[v] for v in outputs if v not in self.results)
            results += sum(self.nbytes[v] for v in outputs if v in self.results)
            own = max(taken, written) if self.in_place[kernel] else taken + written
            least = max(least, own + results + self.working_bytes[kernel])
        return least

    def extra(self, order: Order) -> float:
        """Returns the FLOPs of an order beyond those of the plain one."""
        counts = Counter(order)
        return math.fsum((count - 1) * self.flops[kernel] for kernel, count in counts.items())

    def memory(self, order: Order) -> np.ndarray:
        """Returns the bytes in memory while each kernel of an order runs."""
        change = np.zeros(len(order) + 1, np.int64)
        ends: dict[int, list[int]] = {}  # at each position, the values that are in memory no longer
        for value, begin, end in self.lifetimes(order):
            change[begin] += self.nbytes[value]
            change[end + 1] -= self.nbytes[value]
            if value not in self.results:
                ends.setdefault(end, []).append(value)
        return np.cumsum(change[:-1]) + self._working(order, ends)

    def peak(self, order: Order) -> int:
        """Returns the most bytes in memory at once."""
        return int(self.memory(order).max()) if order else 0

    def lifetimes(self, order: Order) -> list[tuple[int, int, int]]:
        """Returns each time that a value is in memory: the value, first and last position."""
        begins: dict[int, int] = {}
        ends: dict[int, int] = {}
        found: list[tuple[int, int, int]] = []
        for position, kernel in enumerate(order):
            for value in self.inputs[kernel]:
                ends[value] = position
            for value in self.outputs[kernel]:
                if value in begins:
                    found.append((value, begins[value], ends[value]))
                begins[value] = ends[value] = position
        last = len(order) - 1
        for value, begin in begins.items():
            found.append((value, begin, last if value in self.results else ends[value]))
        return found

    def _working(self, order: Order, ends: Mapping[int, Sequence[int]]) -> np.ndarray:
        """Returns what each kernel takes besides its inputs and outputs, or less than these."""
        working = np.zeros(len(order), np.int64)
        for position, kernel in enumerate(order):
            working[position] = self.working_bytes[kernel]
            if self.in_place[kernel]:
                free = sum(
                    self.nbytes[value]
                    for value in ends.get(position, ())
                    if value not in self.outputs[kernel]
                )
                written = sum(self.nbytes[value] for value in self.outputs[kernel])
                working[position] -= min(free, written)
        return working
