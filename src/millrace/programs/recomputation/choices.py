"""Choices of recomputation for a step, from the fewest FLOPs to the least memory.

peak                    for each form of the loops, the cheapest order of its kernels at each
 | a                    limit; those that another one beats in both memory and FLOPs are left
 |   b  .               out, as are those that take hardly less than the one before
 |      c  .
 |           d
 +-------------- extra FLOPs
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from millrace._compat.jaxpr import Graph, inlined, needed, scope
from millrace.base.threads.made_once import MadeOnce
from millrace.base.threads.scoped_value import ScopedValue
from millrace.programs.recomputation.costs import has_product
from millrace.programs.recomputation.evictions import WEIGHTS, cheapest_order
from millrace.programs.recomputation.joint_graph import Joint, Update, joint_graph, with_update
from millrace.programs.recomputation.kernel_work import KernelWork, Order
from millrace.programs.recomputation.kernels import Kernel, kernels_of, work_of
from millrace.programs.recomputation.lean_gradients import with_lean_gradients
from millrace.programs.recomputation.ordered import OrderedKernels
from millrace.programs.recomputation.scans import (
    FORMS,
    KEEP,
    ScanForm,
    is_long,
    with_last_results,
    with_loops,
)

RATIO = 0.93  # of memory besides results: that of a choice, as a share of the choice before
_LIMITS, _LEAST_LIMITS = 24, 8  # tried between the least memory and the plain peak
_FEW_WEIGHTS = 3
_MANY = 300  # kernels of a step; where it has more, few weights are tried to save time
_MOST_RUNS = 100_000  # of kernels in all simulations: some seconds
_SEEDS = 8  # orders of lower limits that the search at a limit starts from
_NAMES = 4  # layers named in a description


@dataclass(frozen=True, slots=True)
class Choice:
    """An order of the kernels of a step, with its memory and FLOPs."""

    peak_bytes: int  # of what kernels compute; predicted
    extra_flops: float
    form: ScanForm
    order: Order


class Choices:
    """The choices for one step or stage.

    Attributes:
        choices: the first is the step as it is, the last takes the least memory.
        flops: of forward and backward, if nothing runs again.
    """

    def __init__(
        self,
        graph: Graph,
        learns: Sequence[bool],
        answered: Sequence[bool],
        platform: str,
        update: Update | None = None,
    ) -> None:
        """Plans a step.

        Args:
            graph: of a forward.
            learns: for each input, whether the graph is differentiated with respect to it.
            answered: for each result, whether it is differentiated.
            platform: for which it will be compiled.
            update: of what it is differentiated by, which are the first inputs; None if that comes
                later.
        """
        self._update = update
        self._graph = with_last_results(needed(inlined(graph)))
        self._learns, self._answered, self._platform = learns, answered, platform
        self._kernels: dict[ScanForm, tuple[Joint, list[Kernel], KernelWork]] = {}
        plain = self._in_form(KEEP)[2]
        self.flops = math.fsum(plain.flops)
        # Loops that are alike as kernels may differ in what another form keeps.
        loops = tuple(str(equation) for equation in self._graph.equations if is_long(equation))
        self.choices = _plans.get((plain, loops), self._plan)
        collected = _collected.get()
        if collected is not None:
            collected.append(self)

    def below(self, share: float) -> int:
        """Returns the first choice whose peak is at most `share` of that of choice 0."""
        most = share * self.choices[0].peak_bytes
        fitting = (k for k, choice in enumerate(self.choices) if choice.peak_bytes <= most)
        return next(fitting, len(self.choices) - 1)

    def extra(self, number: int) -> float:
        """Returns the FLOPs that a choice adds, as a share of those without recomputation."""
        return self.choices[number].extra_flops / self.flops if self.flops else 0.0

    def kernels(self, number: int) -> OrderedKernels:
        """Returns what runs under a choice."""
        choice = self.choices[min(number, len(self.choices) - 1)]
        return OrderedKernels(*self._in_form(choice.form), choice.order)

    def describe(self, number: int) -> str:
        """Describes in words what a choice runs again."""
        choice = self.choices[number]
        if number == 0:
            return "nothing is run again"
        kernels = self._in_form(choice.form)[1]
        runs = Counter(choice.order)
        again = [kernels[k] for k in sorted(runs) if runs[k] > 1]
        layers = dict.fromkeys(filter(None, (_layer(k) for k in again if _is_product(k))))
        parts = []
        if choice.form.in_chunks:
            parts.append(f"{choice.form.in_chunks:.0%} of the steps of loops run again in chunks")
        if layers:
            shown = ", ".join(list(layers)[:_NAMES]) + (", ..." if len(layers) > _NAMES else "")
            parts.append(f"{len(layers)} layers run again ({shown})")
        elif again:
            parts.append("cheap operations run again")
        what = " and ".join(parts) or "nothing is run again, in an order that takes less memory"
        return f"{what}, for {1 + self.extra(number):.2f}x the FLOPs"

    def _in_form(self, form: ScanForm) -> tuple[Joint, list[Kernel], KernelWork]:
        if form not in self._kernels:
            joint = joint_graph(with_loops(self._graph, form), self._learns, self._answered)
            if self._platform == "cpu":
                joint = replace(joint, graph=with_lean_gradients(joint.graph))
            if self._update is not None:
                joint = with_update(joint, self._update)
            kernels = kernels_of(joint.graph, replaced=joint.replaced, results=joint.results)
            self._kernels[form] = joint, kernels, work_of(joint.graph, kernels, joint.replaced)
        return self._kernels[form]

    def _plan(self) -> tuple[Choice, ...]:
        forms = FORMS if any(map(is_long, self._graph.equations)) else (KEEP,)
        joint, _, work = self._in_form(KEEP)
        # Programs that run nothing again update all weights at the end.
        kernels = kernels_of(joint.graph) if joint.replaced else ()
        last = work_of(joint.graph, kernels, joint.replaced) if kernels else work
        plain = Choice(last.peak(last.plain), 0.0, KEEP, work.plain)
        found: list[Choice] = []
        for form in forms:
            work = self._in_form(form)[2]
            more = max(0.0, math.fsum(work.flops) - self.flops)
            for order in orders_of(work, _MOST_RUNS // len(forms)):
                found.append(Choice(work.peak(order), more + work.extra(order), form, order))
        return tuple(_ladder(plain, found, work.result_bytes))


def orders_of(work: KernelWork, most_runs: int = _MOST_RUNS) -> list[Order]:
    """Returns the cheapest orders found at limits from the lowest to the plain peak.

    Args:
        work: the kernels.
        most_runs: of kernels in all simulations, which determines how many limits are tried, and
            with how many weights.
    """
    tries = most_runs // max(1, len(work.inputs))
    is_short = len(work.inputs) <= _MANY and tries >= len(WEIGHTS) * _LIMITS
    weights = WEIGHTS if is_short else WEIGHTS[:_FEW_WEIGHTS]
    results = work.result_bytes
    least, plain = work.least() - results, work.peak(work.plain) - results
    limits = max(_LEAST_LIMITS, min(_LIMITS, tries // len(weights)))
    ratio = min(RATIO, (max(1, least) / max(1, plain)) ** (1 / limits))
    orders: list[Order] = [work.plain]
    limit = max(1, least)
    while limit < plain:
        order = cheapest_order(work, results + limit, weights, also=orders[1:][-_SEEDS:])
        if order is not None:
            orders.append(order)
        limit = math.ceil(limit / ratio)
    return orders


def _ladder(plain: Choice, found: Sequence[Choice], results: int) -> list[Choice]:
    """Returns the choices that none beats in both memory and FLOPs, and not too many of them."""
    best: list[Choice] = []
    for choice in sorted(found, key=lambda c: (c.extra_flops, c.peak_bytes)):
        if not best or choice.peak_bytes < best[-1].peak_bytes:
            best.append(choice)
    rungs = [plain]
    for choice in best:
        besides = rungs[-1].peak_bytes - results
        if choice.peak_bytes - results <= (1 + RATIO) / 2 * besides or len(rungs) == 1:
            rungs.append(choice)
    if rungs[-1] is not best[-1]:
        rungs.append(best[-1])
    return rungs


def _layer(kernel: Kernel) -> str:
    """Returns the name of the layer that a kernel belongs to, empty if there is none."""
    names = (scope(equation).rpartition("/")[2].rstrip(")") for equation in kernel.equations)
    return next(filter(None, (name.rpartition("(")[2] for name in names)), "")


def _is_product(kernel: Kernel) -> bool:
    return any(map(has_product, kernel.equations))


_plans: MadeOnce[tuple[Choice, ...]] = MadeOnce(16)  # by kernels and loops of the plain step
_collected = ScopedValue[list[Choices] | None](None)


@contextmanager
def collected_choices() -> Iterator[list[Choices]]:
    """Yields a list that fills with the choices of the steps that are traced inside."""
    collected: list[Choices] = []
    with _collected.bound_to(collected):
        yield collected
