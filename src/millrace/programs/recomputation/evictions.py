"""Orders in which kernels run, some of them again, so that memory stays below a limit.

    kernels   0 1 2 3   forward    4 5 6 7   backward: 4 reads 3, 5 reads 2, 6 reads 1, 7 reads 0
    order     0 1 2 3 4 5 6 7             the results of 0 to 3 are in memory when 3 has run
              0 1 2 3 4 5 0 1 6 0 7       those of 0 and 1 are not: 0 runs twice more, 1 once

An order is found by simulating the step. Where a result does not fit, another one is evicted: of
those in memory the one that is cheap to compute again, large, and not needed soon. Where an
evicted one is needed, the kernel that computes it runs again, after those whose results it needs
and that have been evicted, too. It is not known in advance how much each of these should weigh, so
several weights are tried. Afterwards, as long as memory allows, results are kept after all: those
first which save most.

Sources: Kirisame et al. 2021, arXiv 2006.09616, for evicting by cost, size and time on any graph,
there without knowing what comes next; Jain et al. 2020, arXiv 1910.02653, for the problem. Tests
compare with the best of all orders of small graphs.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from millrace.programs.recomputation.kernel_work import KernelWork, Order, with_updates_early


@dataclass(frozen=True, slots=True)
class Weights:
    """How much cost and time weigh against size when a value is evicted."""

    cost: float
    time: float


# None is the best throughout: of 38 cases (ten families of models at up to four limits) each finds
# the cheapest order in 11 to 26. The first three together are nearly as good as all.
WEIGHTS = (
    Weights(1.0, 1.0),
    Weights(0.5, 1.0),
    Weights(1.0, 0.3),
    Weights(0.5, 0.3),
    Weights(2.0, 1.0),
    Weights(1.0, 2.0),
)


def cheapest_order(
    work: KernelWork, limit: int, weights: Sequence[Weights] = WEIGHTS, also: Iterable[Order] = ()
) -> Order | None:
    """Returns the order with the fewest FLOPs found whose peak is at most `limit`.

    Args:
        work: the kernels.
        limit: bytes.
        weights: each is tried.
        also: orders to start from besides, such as those of lower limits.

    Returns:
        None if no order was found: the limit may be lower than any order can keep to.
    """
    if work.peak(work.plain) <= limit:
        return work.plain
    # What a lower limit allowed is allowed here, too, and `keeping_more` spends the room that is
    # left. So the search at a limit cannot end with more FLOPs than at the limits in `also`.
    orders = [order for order in also if work.peak(order) <= limit]
    for each in weights:
        order = _Simulation(work, limit, each).run()
        if order is not None:
            order = with_updates_early(without_unused(work, order), work.updates)
            if work.peak(order) <= limit:
                orders.append(order)
    orders = [keeping_more(work, order, limit) for order in dict.fromkeys(orders)]
    return min(orders, key=work.extra, default=None)


def without_unused(work: KernelWork, order: Order) -> Order:
    """Returns an order without the runs whose results nobody reads."""
    wanted = set(work.results)
    kept: list[int] = []
    # From the end: leaving a run out may leave those before it without a reader, too.
    for kernel in reversed(order):
        outputs = work.outputs[kernel]
        if not wanted.isdisjoint(outputs) or not work.repeatable[kernel]:
            kept.append(kernel)
            wanted.difference_update(outputs)
            wanted.update(work.inputs[kernel])
    return tuple(reversed(kept))


def keeping_more(work: KernelWork, order: Order, limit: int) -> Order:
    """Returns an order that keeps results instead of computing them again, where they fit."""
    # The simulation evicts for the kernel at hand, and cannot see that there will be room again
    # before the next use. Once the whole order is there, one can. On random steps of 24 kernels, at
    # half to 0.7 of their memory, this brings the extra FLOPs from 21.7 to 20.1 % on average.
    while True:
        shorter = without_unused(work, _keeping(work, order, limit))
        shorter = with_updates_early(shorter, work.updates)
        if len(shorter) == len(order) or work.peak(shorter) > limit:
            return order
        order = shorter


def _keeping(work: KernelWork, order: Order, limit: int) -> Order:
    """Leaves out runs whose results, kept since their last use, fit; the best savings first."""
    memory = work.memory(order)
    runs: list[tuple[float, int, list[tuple[int, int]]]] = []
    ends: dict[int, int] = {}  # of each value, its last use so far
    for position, kernel in enumerate(order):
        for value in work.inputs[kernel]:
            ends[value] = position
        outputs = work.outputs[kernel]
        if outputs and outputs[0] in ends:
            # Bytes times kernels for which they would be held are the price of a run that is
            # saved. To take the best rate first is greedy, as for a knapsack, and not the best.
            spans = [(ends[value], work.nbytes[value]) for value in outputs]
            space = sum((position - begin) * size for begin, size in spans)
            runs.append((-work.cost[kernel] / (space + 1), position, spans))
        for value in outputs:
            ends[value] = position
    gone: set[int] = set()
    for _, position, spans in sorted(runs):
        for begin, size in spans:
            memory[begin:position] += size
        first = min(begin for begin, _ in spans)
        if memory[first:position].max() <= limit:
            gone.add(position)
        else:
            for begin, size in spans:
                memory[begin:position] -= size
    return tuple(kernel for position, kernel in enumerate(order) if position not in gone)


# Of each kernel on average; where it takes more, the limit is out of reach. An MLP of 16 layers
# gets down to 0.23 of its memory with 2, and to 0.17 with 4; 64 brings nothing more, and takes
# longer.
_MOST_RUNS = 8
_NEVER = 1 << 60  # the next use of a value that is read no more
# Values below this share of the limit are evicted only where no others are left. A step has many
# of them (means, biases, their gradients), each of which makes hardly any room and has to be ranked
# at every eviction. A choice: at any value from 30 up, an MLP and a GRU get the same orders.
_SMALL = 300


class _Simulation:
    """A run of the step within a limit, as far as memory goes."""

    def __init__(self, work: KernelWork, limit: int, weights: Weights) -> None:
        self._work, self._limit, self._weights = work, limit, weights
        self._resident: dict[int, int] = {}  # bytes of each value in memory
        self._used = 0
        self._evictable: dict[int, int] = {}  # those of them that can be computed again
        self._pinned = [0] * len(work.nbytes)  # of each value: kernels under way that read it
        self._now = 0  # the kernel of the plain order that runs, or for which others run again
        self._order: list[int] = []
        self._most = _MOST_RUNS * len(work.inputs)
        self._next = [0] * len(work.nbytes)  # of each value: index of its next reader
        self._uses = [-1] * len(work.nbytes)  # of each value: its next use, as last looked up
        self._costs: dict[
            int, float
        ] = {}  # of kernels, while the values that they lack are lacking
        self._depending: list[list[int]] = [[] for _ in work.nbytes]  # of each value: of `_costs`
        times = np.cumsum((0.0, *work.cost))
        self._time: list[float] = times.tolist()

    def run(self) -> Order | None:
        """Returns the order; None if the limit cannot be kept to in this way."""
        for kernel in self._work.plain:
            self._now = kernel
            if not self._execute(kernel):
                return None
            self._now = kernel + 1
            for value in (*self._work.inputs[kernel], *self._work.outputs[kernel]):
                if value in self._resident and self._next_use(value) == _NEVER:
                    self._free(value)
        return tuple(self._order)

    def _execute(self, kernel: int) -> bool:
        # A stack of our own, since a value may have to be computed again from the beginning of a
        # chain of thousands of kernels, where Python allows 1,000 calls. Inputs are pinned before
        # they are made: else the second may evict the first, and the first the second. Of 240
        # limits of random steps, the simulation keeps to 166 so, and to 89 without pins.
        work, stack = self._work, [kernel]
        self._pin(kernel, 1)
        while stack:
            kernel = stack[-1]
            for value in work.inputs[kernel]:
                if value not in self._resident:
                    stack.append(work.maker[value])
                    self._pin(stack[-1], 1)
                    break
            else:
                if len(self._order) >= self._most or not self._make_room(kernel):
                    return False
                stack.pop()
                self._order.append(kernel)
                self._pin(kernel, -1)
                for value in work.outputs[kernel]:
                    if value not in self._resident and self._is_wanted(value):
                        self._keep(value)
        return True

    def _pin(self, kernel: int, count: int) -> None:
        for value in self._work.inputs[kernel]:
            self._pinned[value] += count

    def _keep(self, value: int) -> None:
        size = self._work.nbytes[value]
        self._resident[value] = size
        self._used += size
        if self._may_go(value):
            self._evictable[value] = size
        self._changes(value)

    def _is_wanted(self, value: int) -> bool:
        return self._pinned[value] > 0 or self._next_use(value) != _NEVER

    def _next_use(self, value: int) -> int:
        """Returns the kernel that reads a value next; past the last one for a result."""
        if self._uses[value] >= self._now:
            return self._uses[value]
        readers, index = self._work.readers[value], self._next[value]
        while index < len(readers) and readers[index] < self._now:
            index += 1
        self._next[value] = index
        use = readers[index] if index < len(readers) else _NEVER
        if use == _NEVER and value in self._work.results:
            use = len(self._work.inputs)
        self._uses[value] = use
        return use

    def _free(self, value: int) -> None:
        self._used -= self._resident.pop(value)
        self._evictable.pop(value, None)
        self._changes(value)

    def _changes(self, value: int) -> None:
        """Forgets the costs that depend on whether a value is in memory."""
        for kernel in self._depending[value]:
            self._costs.pop(kernel, None)
        self._depending[value].clear()

    def _make_room(self, kernel: int) -> bool:
        """Evicts values until a kernel fits; returns whether it does."""
        work = self._work
        need = work.working_bytes[kernel]
        need += sum(work.nbytes[v] for v in work.outputs[kernel] if v not in self._resident)
        if work.in_place[kernel] and kernel == self._now:
            last = (v for v in work.inputs[kernel] if self._next_use(v) == kernel)
            need -= min(need, sum(work.nbytes[v] for v in last if self._ends_at(v, kernel)))
        while self._used + need > self._limit:
            value = self._least_loss()
            # All that is pinned may be more than fits. What kernels further out wait for goes then,
            # and is computed once more for them. Rarely needed: for 3 of those 166.
            if value is None:
                read = work.inputs[kernel]
                waiting = (v for v in self._evictable if v not in read)
                value = next(waiting, None)
            if value is None:
                return False
            self._free(value)
        return True

    def _may_go(self, value: int) -> bool:
        work = self._work
        return value not in work.results and work.repeatable[work.maker[value]]

    def _ends_at(self, value: int, kernel: int) -> bool:
        return value not in self._work.results and self._work.readers[value][-1] == kernel

    def _least_loss(self) -> int | None:
        """Returns the value to evict; None if all in memory are needed now."""
        weights, threshold = self._weights, self._limit // _SMALL
        # Thousands of calls look at each value in memory: names of this function are faster.
        makers, pinned, uses, costs = self._work.maker, self._pinned, self._uses, self._costs
        time, now = self._time, self._now
        begin = time[now]
        best, least = None, math.inf
        small: int | None = None
        for value, size in self._evictable.items():
            if pinned[value]:
                continue
            use = uses[value] if uses[value] >= now else self._next_use(value)
            if use == _NEVER:  # was needed for a run that is over; it costs nothing to let it go
                return value
            if size <= threshold:
                small = value
                continue
            cost = costs.get(makers[value]) or self._cost(makers[value])
            wait = max(time[use] - begin, 1.0)
            # The heuristic of Kirisame et al., with the time until the next use, which is known
            # here, in place of the time since the last one, which is all that they can see.
            loss = cost**weights.cost / (size * wait**weights.time)
            if loss < least:
                best, least = value, loss
        return small if best is None else best

    def _cost(self, kernel: int) -> float:
        """Returns the cost of running a kernel, and those whose results it lacks."""
        work, resident, depending = self._work, self._resident, self._depending
        seen, pending, total = {kernel}, [kernel], 0.0
        while pending:
            each = pending.pop()
            total += work.cost[each]
            for value in work.inputs[each]:
                depending[value].append(kernel)
                if value not in resident:
                    maker = work.maker[value]
                    if maker not in seen:
                        seen.add(maker)
                        pending.append(maker)
        self._costs[kernel] = total
        return total
