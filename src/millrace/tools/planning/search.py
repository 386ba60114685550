"""The search for the fastest update that fits, by compiling as few trainings as possible.

    each layout               its first update is compiled: exact peak, counted FLOPs
    every other update        a predicted time, and the least memory that it can take
      in order of time        compiled, if it may fit and no cheaper form of it does
    no candidate is left that is predicted to be faster than the best that fits      done

An update that fits makes the same one with more savings pointless. Where nothing fits, candidates
of least memory are compiled, so that the error can name the least that there is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from millrace.base.records.training_plan import Alternative, UpdatePlan
from millrace.errors import MillraceError, PlanError
from millrace.run.compiled_loop.budget import OverBudgetError
from millrace.run.fit.setup import Setup
from millrace.tools.planning.alternatives import Cut, PlannedLayout, base, layouts, updates_of
from millrace.tools.planning.cost import cost_of, least_peak, with_extra
from millrace.tools.planning.trials import CompiledUpdate, UpdateTrials

# The numbers weigh seconds against certainty: a compilation takes one or more, and there are
# hundreds of candidates. With these, the chosen update took 1.00x the time of the fastest of up to
# 40 (the median of eight trainings by two processes), and 1.27x at worst. With 40 for each number,
# that plan had the fastest, too, predicted within 1 % of the chosen one (docs/benchmarks.md).
MOST_TRIED = 10  # candidates compiled in order of time, after the first update of each layout
MOST_LEAST = 2  # candidates of least memory, compiled where nothing fits
SHOWN = 3  # alternatives that fit, up to which slower candidates are compiled, too
MOST_FOR_SHOW = 4  # candidates, after which no slower ones are compiled for the table
MOST_SHOWN = 8
# Of a step's FLOPs: what recomputation adds at most, before it is compiled. One more forward is a
# third of a step: `jax.checkpoint` around a whole model adds 0.31 to 0.37 in 23 families, and a
# budget mostly less.
EXTRA = 0.3
_SAVINGS = ("shard_optimizer_state", "shard_weights", "offload_optimizer_state")


@dataclass(frozen=True, slots=True)
class PredictedUpdate:
    """A candidate with its predictions."""

    first: CompiledUpdate  # of its layout
    update: UpdatePlan
    seconds: float
    least: int  # bytes

    @property
    def kind(self) -> tuple[object, ...]:
        """What it has in common with updates whose estimates are wrong by as much."""
        return id(self.first), self.update.budget is None

    @property
    def family(self) -> tuple[object, ...]:
        """What it has in common with updates of other micro-batches."""
        savings = tuple(getattr(self.update, name) for name in _SAVINGS)
        return *self.kind, self.update.schedule, savings

    @property
    def unscaled(self) -> float:
        """The share of rows that its micro-batches lack, against the first update's."""
        return 1.0 - self.update.micro_rows / self.first.update.micro_rows


@dataclass(slots=True)
class PlanSearch:
    """A search for one model.

    Attributes:
        trials: compile updates.
        cut: returns an assignment to so many stages.
        updates: in one execution.
        keeps_batches: whether only updates are tried whose batches `fit` already has: of a model
            in one piece.
    """

    trials: UpdateTrials
    cut: Cut
    updates: int
    keeps_batches: bool = False
    _first_error: MillraceError | None = None
    _constant: dict[tuple[object, ...], float] = field(default_factory=dict)

    def run(self) -> list[Alternative]:
        """Returns the alternatives that were compiled; those that fit come first, by time.

        Raises:
            MillraceError: if no layout can train the model.
        """
        # Neither a formula nor a sample can be trusted with memory: where XLA fuses or copies, a
        # peak is off its prediction by a factor. So predictions say what to compile next and what
        # cannot fit, and whatever the table states was compiled.
        firsts = self._compile_layouts()
        candidates = [planned for first in firsts for planned in self._candidates(first)]
        self._by_time(candidates)
        if not self.trials.fitting():
            self._of_least_memory(candidates)
        rest = sorted(self.trials.found, key=lambda each: each.peak)
        return (self.trials.fitting() or rest)[:MOST_SHOWN]

    def _compile_layouts(self) -> list[CompiledUpdate]:
        setup, rows = self.trials.controller.setup, self.trials.spec.rows
        firsts: list[CompiledUpdate] = []
        found = list(layouts(setup, rows, self.cut, only_one_piece=self.keeps_batches))
        self.trials.most = len(found) + MOST_TRIED
        # Several stages on a device last, and only where they may win.
        for layout in sorted(found, key=lambda each: each.num_stages > each.groups):
            if self._cannot_win(layout, firsts):
                continue
            try:
                firsts.append(self.trials.compile(layout, base(layout, rows, self.updates)))
            except MillraceError as error:
                self._first_error = self._first_error or error
        if not firsts:
            raise self._first_error or PlanError(_no_layout(setup, rows))
        return firsts

    def _cannot_win(self, layout: PlannedLayout, firsts: Sequence[CompiledUpdate]) -> bool:
        """Whether a layout of several stages on a device is slower than one that fits.

        Without a bubble it takes the time of as many devices with one stage on each.
        """
        fitting = self.trials.fitting()
        alike = [
            each.alternative.seconds * (1 - each.alternative.bubble)
            for each in firsts
            if (each.layout.replicas, each.layout.groups) == (layout.replicas, layout.groups)
        ]
        has_several = layout.num_stages > layout.groups
        return has_several and bool(fitting and alike) and fitting[0].seconds <= min(alike)

    def _candidates(self, first: CompiledUpdate) -> Iterator[PredictedUpdate]:
        setup, rows = self.trials.controller.setup, self.trials.spec.rows
        is_tight = self.trials.is_tight(first.update, first.needs)
        for update in updates_of(first.layout, setup, rows, self.updates):
            if self.keeps_batches and update.accumulation > 1:
                continue
            if is_tight or first.update.max_block_bytes is not None:
                update = self.trials.with_short_blocks(update)
            if update != first.update:
                yield self._predicted(first, update, 0.0)
            yield self._predicted(first, self._recomputing(update), EXTRA)

    def _predicted(
        self, first: CompiledUpdate, update: UpdatePlan, extra: float
    ) -> PredictedUpdate:
        weights = sum(first.costs.weights)
        batch, memory = self.trials.spec.nbytes // update.replicas, self.trials.memory
        least = least_peak(update, first.update, first.needs, weights, batch)
        if extra:  # by the part of what is kept that has to go
            # Of it a tenth at least, a choice: how much has to go is a prediction itself.
            plain = replace(update, budget=None, recomputation="none")
            peak = least_peak(plain, first.update, first.needs, weights, batch)
            extra *= min(1.0, max(0.1, (peak - memory) / max(1, peak - least)))
        cost = cost_of(update, with_extra(first.costs, extra), self.trials.rates)
        seconds = cost.seconds
        if self.trials.is_measured and first.alternative.fits:
            counted = cost_of(first.update, first.costs, self.trials.rates).seconds
            seconds *= first.alternative.seconds / counted
        return PredictedUpdate(first, update, seconds, least)

    def _recomputing(self, update: UpdatePlan) -> UpdatePlan:
        """Returns the update with a budget of the memory that is left beside prefetched blocks."""
        setup, ahead = self.trials.controller.setup, 0
        if update.stages == 1 and setup.devices[0].platform != "cpu":
            ahead = setup.options.feed.prefetch_depth * self.trials.spec.nbytes // update.replicas
        return replace(update, recomputation="auto", budget=max(1, self.trials.memory - ahead))

    def _by_time(self, candidates: Sequence[PredictedUpdate]) -> None:
        tried, memory = 0, self.trials.memory
        for planned in sorted(candidates, key=lambda each: each.seconds):
            fitting = self.trials.fitting()
            if tried >= MOST_TRIED or self._is_enough(fitting, planned, tried):
                break
            if self._estimate(planned) <= memory and not _is_pointless(planned.update, fitting):
                tried += 1
                self._try(planned)

    def _is_enough(
        self, fitting: Sequence[Alternative], planned: PredictedUpdate, tried: int
    ) -> bool:
        if not fitting or planned.seconds < fitting[0].seconds:
            return False
        return self.keeps_batches or len(fitting) >= SHOWN or tried >= MOST_FOR_SHOW

    def _of_least_memory(self, candidates: Sequence[PredictedUpdate]) -> None:
        done = {each.update for each in self.trials.found}
        left = [planned for planned in candidates if planned.update not in done]
        # A budget does not say what the least is, so that plain updates come first.
        left.sort(key=lambda each: (each.update.budget is not None, self._estimate(each)))
        likely = [planned for planned in left if self._estimate(planned) <= self.trials.memory]
        for planned in [*likely, *left][: MOST_LEAST + len(likely[:MOST_LEAST])]:
            self._try(planned)
            if self.trials.fitting():
                self._refine(planned, candidates)
                return

    def _refine(self, fitting: PredictedUpdate, candidates: Sequence[PredictedUpdate]) -> None:
        """Looks for larger micro-batches between those that fit and those that do not."""
        done = {each.update for each in self.trials.found if not each.fits}
        family = [each for each in candidates if each.family == fitting.family]
        family.sort(key=lambda each: each.update.micro_batches)
        high = family.index(fitting)
        low = max((k for k in range(high) if family[k].update in done), default=-1)
        for _ in range(MOST_LEAST):
            if high - low < 2:
                break
            middle = (low + high) // 2
            is_fitting = self._try(family[middle])
            low, high = (low, middle) if is_fitting else (middle, high)

    def _estimate(self, planned: PredictedUpdate) -> float:
        """Returns the estimated peak: the least, and the part that did not scale before."""
        constant = max(0.0, self._constant.get(planned.kind, 0.0))
        if planned.update.budget is None:
            constant *= max(0.0, planned.unscaled)  # recomputation leaves as much at every size
        return planned.least + constant

    def _try(self, planned: PredictedUpdate) -> bool:
        """Compiles a candidate; returns whether it fits."""
        try:
            compiled = self.trials.compile(planned.first.layout, planned.update)
            peak = compiled.needs.peak
        except OverBudgetError as error:
            peak = error.least
        except MillraceError as error:
            self._first_error = self._first_error or error
            return False
        # A budget that was kept tells nothing about the least: it takes what it may. One that was
        # missed has compiled its least, and the other candidates of its kind miss as well.
        if planned.update.budget is not None:
            if peak > self.trials.memory:
                self._constant[planned.kind] = float(peak - planned.least)
        elif planned.unscaled > 0:
            self._constant[planned.kind] = (peak - planned.least) / planned.unscaled
        return peak <= self.trials.memory


def _no_layout(setup: Setup, rows: int) -> str:
    """Returns the message about devices that no layout can use."""
    name, devices, own = setup.model.name, len(setup.devices), setup.stages.assignment()
    if own is not None and own.stages is None and not own.is_open:
        return (
            f"The call() of {name!r} enters {own.num_stages} pipeline stages, and the strategy has "
            f"{devices} devices, which cannot be shared out to replicas of so many stages with "
            f"equal parts of {rows} rows. Set Strategy(devices={own.num_stages})."
        )
    return (
        f"The {rows} rows of an update cannot be shared out equally over {devices} devices, and "
        f"{name!r} cannot be cut into stages for them. Set batch_spec to "
        f"{max(rows - rows % devices, devices)} rows, or Strategy(devices=1)."
    )


def _is_pointless(update: UpdatePlan, fitting: Sequence[Alternative]) -> bool:
    """Whether an update that fits is the same with fewer savings, and so a faster form of it."""
    return any(
        _form_of(update) == _form_of(each.update)
        and update.micro_batches >= each.update.micro_batches
        and (update.budget is not None) >= (each.update.budget is not None)
        and all(getattr(update, name) >= getattr(each.update, name) for name in _SAVINGS)
        for each in fitting
    )


def _form_of(update: UpdatePlan) -> tuple[object, ...]:
    """Returns what makes updates more than savings of one another."""
    # More micro-batches of a pipeline have a smaller bubble.
    micro_batches = 0 if update.stages == 1 else update.micro_batches
    return update.layout, update.groups, update.cut, update.schedule, micro_batches
