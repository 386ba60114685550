"""The search for the fastest update that fits, by compiling as few trainings as possible.

    each layout               its first update is compiled: exact peak, counted FLOPs
    every other update        a predicted time, and the least memory that it can take
      in order of time        compiled, if it may fit and a cheaper form of it does not
    no candidate is left that is predicted to be faster than the best that fits      done

A candidate that fits makes the same update with more savings pointless. Where nothing fits, those
of least memory are compiled, so that the error can name the least that there is.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from millrace.compiled_loop.budget import OverBudgetError
from millrace.errors import MillraceError
from millrace.fit.controller import Controller
from millrace.fit.functions import LoopFunction
from millrace.memory_report.needs import Needs, measure
from millrace.plan import BatchSpec, Mode
from millrace.planning.alternatives import Cut, Layout, base, layouts, updates_of
from millrace.planning.applying import options_of
from millrace.planning.cost import CountedCosts, Rates, cost_of, counted, with_extra
from millrace.planning.estimates import least_peak
from millrace.planning.measuring import update_seconds
from millrace.precompile.precompile import Batches
from millrace.records.training_plan import Alternative, UpdatePlan

MOST_TRIED = 14  # candidates compiled in order of time, after the first update of each layout
MOST_LEAST = 3  # candidates of least memory, compiled where nothing fits
SHOWN = 4  # alternatives that fit, for which slower candidates are compiled, too
MOST_SHOWN = 8
EXTRA = 0.3  # of a step's FLOPs: what recomputation adds at most, before it is compiled


@dataclass(frozen=True, slots=True)
class FirstUpdate:
    """The first compiled update of a layout."""

    layout: Layout
    update: UpdatePlan
    needs: Needs
    costs: CountedCosts
    scale: float = 1.0  # measured seconds over predicted ones
    shortens: bool = False  # whether longer blocks than those of an update might not fit


@dataclass(frozen=True, slots=True)
class Planned:
    """A candidate with its predictions."""

    first: FirstUpdate
    update: UpdatePlan
    seconds: float
    least: int  # bytes
    unscaled: float = 0.0  # share of what it does not scale down, against the first update


@dataclass(slots=True)
class PlanSearch:
    """A search for one model.

    Attributes:
        controller: of the model.
        spec: of all rows of one update.
        memory: bytes of one device.
        updates: in one execution.
        rates: of the devices.
        is_measured: whether compiled updates are run for their time.
        tick: called with a description of each update before it is compiled.
        cut: returns an assignment to so many stages.
        keeps_batches: whether only updates are tried whose batches are those of the model's options.
        stops_at_first: whether the first update that fits without any saving ends the search.
    """

    controller: Controller
    spec: BatchSpec
    memory: int
    updates: int
    rates: Rates
    is_measured: bool
    tick: Callable[[str], object]
    cut: Cut
    keeps_batches: bool = False
    compilations: int = 0
    found: list[Alternative] = field(default_factory=list)
    least_over: list[tuple[int, UpdatePlan]] = field(default_factory=list)
    _first_error: MillraceError | None = None

    def run(self) -> list[Alternative]:
        """Returns the alternatives that were compiled; those that fit come first, by time.

        Raises:
            MillraceError: if no layout can train the model.
        """
        firsts = self._compile_layouts()
        if not firsts:
            raise self._first_error or ValueError("no layout")
        candidates = [planned for first in firsts for planned in self._planned(first)]
        self._by_time(candidates)
        if not self._fitting():
            self._of_least_memory(candidates)
        fitting = self._fitting()
        rest = sorted((e for e in self.found if not e.fits), key=lambda each: each.peak)
        return (fitting or rest)[:MOST_SHOWN]

    def _fitting(self) -> list[Alternative]:
        return sorted((each for each in self.found if each.fits), key=lambda each: each.seconds)

    def _compile_layouts(self) -> list[FirstUpdate]:
        firsts: list[FirstUpdate] = []
        for layout in layouts(self.controller.setup, self.spec.rows, self.cut):
            if self.keeps_batches and layout.assignment is not None:
                continue
            update = base(layout, self.spec.rows, self.updates)
            try:
                needs = self._compile(layout, update)
            except MillraceError as error:
                self._first_error = self._first_error or error
                continue
            costs = counted(self.controller.model, update, needs)
            shortens = needs.peak + self._longer_blocks(update, needs) > self.memory
            first = FirstUpdate(layout, update, needs, costs, shortens=shortens)
            added = self._add(first, update, needs)
            if self.is_measured:
                predicted = cost_of(update, costs, self.rates).seconds
                first = replace(first, scale=added.seconds / predicted)
            firsts.append(first)
        return firsts

    def _planned(self, first: FirstUpdate) -> Iterator[Planned]:
        layout, setup = first.layout, self.controller.setup
        for update in updates_of(layout, setup, self.spec.rows, self.updates):
            if self.keeps_batches and update.accumulation > 1:
                continue
            is_new = update != first.update
            if first.shortens:
                update = self._with_short_blocks(update)
            if is_new:
                yield self._predict(first, update, 0.0)
            yield self._predict(first, self._recomputing(update), EXTRA)

    def _predict(self, first: FirstUpdate, update: UpdatePlan, extra: float) -> Planned:
        weights, batch = sum(first.costs.weights), self.spec.nbytes // update.replicas
        least = least_peak(update, first.update, first.needs, weights, batch)
        if extra:  # by the part of what is kept that has to go
            plain = replace(update, budget=None, recomputation="none")
            peak = least_peak(plain, first.update, first.needs, weights, batch)
            extra *= min(1.0, max(0.1, (peak - self.memory) / max(1, peak - least)))
        cost = cost_of(update, with_extra(first.costs, extra), self.rates)
        return Planned(first, update, cost.seconds * first.scale, least)

    def _recomputing(self, update: UpdatePlan) -> UpdatePlan:
        """Returns the update with a budget of the memory that is left beside prefetched blocks."""
        limit = self.memory - self._ahead(update)
        return replace(update, recomputation="auto", budget=max(1, limit))

    def _ahead(self, update: UpdatePlan) -> int:
        """Returns the bytes of blocks that are prefetched to an accelerator, at the least."""
        setup = self.controller.setup
        if update.stages > 1 or setup.devices[0].platform == "cpu":
            return 0
        return setup.options.feed.prefetch_depth * self.spec.nbytes // update.replicas

    def _by_time(self, candidates: Sequence[Planned]) -> None:
        tried = 0
        order = sorted(candidates, key=lambda each: each.seconds)
        for planned in order:
            fitting = self._fitting()
            enough = len(fitting) >= SHOWN or tried >= MOST_TRIED // 2
            is_slower = bool(fitting) and planned.seconds >= fitting[0].seconds
            if tried >= MOST_TRIED or (is_slower and (enough or self.keeps_batches)):
                break
            if planned.least > self.memory or self._is_pointless(planned.update):
                continue
            tried += 1
            self._try(planned)

    def _of_least_memory(self, candidates: Sequence[Planned]) -> None:
        done = {each.update for each in self.found} | {update for _, update in self.least_over}
        order = sorted(candidates, key=lambda each: (each.least, each.seconds))
        left = [planned for planned in order if planned.update not in done]
        for planned in left[:MOST_LEAST]:
            self._try(planned)

    def _is_pointless(self, update: UpdatePlan) -> bool:
        """Whether an update that fits is the same with fewer savings."""
        return any(_saves_more(update, each.update) for each in self.found if each.fits)

    def _try(self, planned: Planned) -> None:
        first, update = planned.first, planned.update
        try:
            needs = self._compile(first.layout, update)
        except OverBudgetError as error:
            self.least_over.append((error.least, update))
            return
        except MillraceError as error:
            self._first_error = self._first_error or error
            return
        self._add(first, update, needs)

    def _compile(self, layout: Layout, update: UpdatePlan) -> Needs:
        self.compilations += 1
        self.tick(f"{update.layout}, batches of {update.batch_size} rows")
        variant, batches = self._variant(layout, update)
        return measure(variant, LoopFunction(variant, Mode.TRAIN).runner(), batches)

    def _variant(self, layout: Layout, update: UpdatePlan) -> tuple[Controller, Batches]:
        setup = self.controller.setup
        variant = self.controller.variant(options_of(update, setup.options), layout.stages)
        spec = self.spec.of_rows(update.batch_size)
        return variant, Batches(spec, update.steps_per_execution)

    def _add(self, first: FirstUpdate, update: UpdatePlan, needs: Needs) -> Alternative:
        """Adds a compiled update; with shorter blocks, where longer ones might not fit."""
        layout = first.layout
        if needs.peak + self._longer_blocks(update, needs) > self.memory:
            shorter = self._with_short_blocks(update)
            if shorter != update:
                update, needs = shorter, self._compile(layout, shorter)
        costs = counted(self.controller.model, update, needs)
        if needs.added_flops is not None:
            costs = with_extra(replace(costs, step=first.costs.step), needs.added_flops)
        cost = cost_of(update, costs, self.rates)
        peaks = tuple((name, device.peak) for device in needs.devices for name in device.devices)
        fits = needs.peak <= self.memory
        seconds = cost.seconds
        if self.is_measured and fits:
            variant, batches = self._variant(layout, update)
            seconds = update_seconds(variant, batches)
        alternative = Alternative(
            update=update,
            seconds=seconds,
            peaks=peaks,
            bubble=cost.bubble,
            flops=cost.flops,
            moved_bytes=cost.moved_bytes,
            fits=fits,
        )
        self.found.append(alternative)
        return alternative

    def _longer_blocks(self, update: UpdatePlan, needs: Needs) -> int:
        """Returns the bytes that longer blocks and resident data may take besides."""
        setup, feed = self.controller.setup, self.controller.setup.options.feed
        if update.stages > 1:  # batches wait in host memory
            return 0
        of_block = max(stage.batches for device in needs.devices for stage in device.stages)
        longest = feed.max_block_bytes // update.replicas
        if setup.devices[0].platform == "cpu":
            return max(0, longest - of_block)
        blocks = 1 + feed.prefetch_depth
        return max(0, longest * blocks - of_block) + feed.max_resident_bytes

    def _with_short_blocks(self, update: UpdatePlan) -> UpdatePlan:
        """Returns the update with blocks of its own batches, and no data kept on the device."""
        if update.stages > 1:
            return update
        setup = self.controller.setup
        longest = min(setup.options.feed.max_block_bytes, max(1, self.spec.nbytes))
        # On CPU resident data is in the same memory as the user's arrays.
        resident = None if setup.devices[0].platform == "cpu" else 0
        return replace(update, max_block_bytes=longest, max_resident_bytes=resident)


def _saves_more(update: UpdatePlan, other: UpdatePlan) -> bool:
    """Whether an update is another one with more savings, and so a slower form of it."""
    bare, other_bare = (
        replace(
            each,
            recomputation="none",
            budget=None,
            shard_optimizer_state=False,
            shard_weights=False,
            offload_optimizer_state=False,
            max_block_bytes=None,
            max_resident_bytes=None,
            **(
                {"batch_size": 0, "accumulation": 0, "steps_per_execution": 0}
                if each.stages == 1
                else {}
            ),
        )
        for each in (update, other)
    )
    return (
        bare == other_bare
        and all(
            getattr(update, name) >= getattr(other, name)
            for name in (
                "accumulation",
                "shard_optimizer_state",
                "shard_weights",
                "offload_optimizer_state",
            )
        )
        and (update.budget is not None) >= (other.budget is not None)
    )
