"""The compiled trainings of a search: each update's exact peak, its costs, and its time."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from millrace.base.records.training_plan import Alternative, UpdatePlan
from millrace.programs.plan import BatchSpec
from millrace.run.fit.controller import Controller
from millrace.run.precompile.precompile import Batches
from millrace.tools.memory_report.needs import Needs, training_needs
from millrace.tools.planning.alternatives import PlannedLayout
from millrace.tools.planning.applying import options_of
from millrace.tools.planning.cost import CountedCosts, Rates, cost_of, counted, least_seconds
from millrace.tools.planning.measuring import update_seconds


@dataclass(frozen=True, slots=True)
class CompiledUpdate:
    """An update that was compiled."""

    layout: PlannedLayout
    update: UpdatePlan
    needs: Needs
    costs: CountedCosts
    alternative: Alternative


@dataclass(slots=True)
class UpdateTrials:
    """Compiles updates of one model, and keeps what was learned.

    Attributes:
        controller: of the model.
        spec: of all rows of one update.
        memory: bytes of one device.
        rates: of the devices.
        is_measured: whether compiled updates are run for their time.
        tick: called with a description of each update before it is compiled.
        steps_of_epoch: batches of an epoch; None if unknown, so that blocks may be of any length.
        found: all alternatives so far.
        compilations: trainings compiled so far.
        most: trainings that are compiled, as a rule.
    """

    controller: Controller
    spec: BatchSpec
    memory: int
    rates: Rates
    is_measured: bool
    tick: Callable[[str], object]
    steps_of_epoch: int | None = None
    found: list[Alternative] = field(default_factory=list)
    compilations: int = 0
    most: int = 0

    def compile(self, layout: PlannedLayout, update: UpdatePlan) -> CompiledUpdate:
        """Compiles an update; with shorter blocks where longer ones might not fit.

        Args:
            layout: of the devices.
            update: to compile.

        Raises:
            MillraceError: if it cannot be compiled, or no choice stays within its budget.
        """
        needs = self._needs(layout, update)
        of_blocks = max(stage.batches for device in needs.devices for stage in device.stages)
        if self.is_tight(update, needs) and needs.peak - of_blocks <= self.memory:
            shorter = self.with_short_blocks(update)
            if shorter != update:
                update, needs = shorter, self._needs(layout, shorter)
        costs = counted(self.controller.model, update, needs)
        cost, fits = cost_of(update, costs, self.rates), needs.peak <= self.memory
        seconds = cost.seconds
        if self.is_measured and fits:
            seconds = update_seconds(*self._variant(layout, update))
        alternative = Alternative(
            update=update,
            seconds=seconds,
            peaks=tuple((name, each.peak) for each in needs.devices for name in each.devices),
            bubble=cost.bubble,
            flops=cost.flops,
            moved_bytes=cost.moved_bytes,
            fits=fits,
            least_seconds=least_seconds(
                self.controller.model, needs, cost.flops, self.controller.setup.devices[0]
            ),
        )
        self.found.append(alternative)
        return CompiledUpdate(layout, update, needs, costs, alternative)

    def fitting(self) -> list[Alternative]:
        """Returns the alternatives that fit, the fastest first."""
        return sorted((each for each in self.found if each.fits), key=lambda each: each.seconds)

    def is_tight(self, update: UpdatePlan, needs: Needs) -> bool:
        """Whether longer blocks, and resident data, of a training might not fit."""
        return needs.peak + self._longer_blocks(update, needs) > self.memory

    def with_short_blocks(self, update: UpdatePlan) -> UpdatePlan:
        """Returns the update with blocks of its own batches, and no data kept on the device."""
        if update.stages > 1:  # batches wait in host memory
            return update
        setup = self.controller.setup
        longest = min(setup.options.feed.max_block_bytes, max(1, self.spec.nbytes))
        # On CPU resident data is in the same memory as the user's arrays.
        resident = None if setup.devices[0].platform == "cpu" else 0
        return replace(update, max_block_bytes=longest, max_resident_bytes=resident)

    def _longer_blocks(self, update: UpdatePlan, needs: Needs) -> int:
        setup, feed = self.controller.setup, self.controller.setup.options.feed
        if update.stages > 1:
            return 0
        of_block = max(stage.batches for device in needs.devices for stage in device.stages)
        longest, resident = feed.max_block_bytes // update.replicas, feed.max_resident_bytes
        is_cpu = setup.devices[0].platform == "cpu"
        if self.steps_of_epoch is not None:
            of_epoch = self.spec.nbytes // update.rows * update.batch_size * self.steps_of_epoch
            return 0 if is_cpu else min(resident, of_epoch)
        if is_cpu:
            return max(0, longest - of_block)
        return max(0, longest * (1 + feed.prefetch_depth) - of_block) + resident

    def _needs(self, layout: PlannedLayout, update: UpdatePlan) -> Needs:
        self.compilations += 1
        total = f" of about {self.most}" if self.compilations <= self.most else ""
        parts = f" in {update.micro_batches} micro-batches" if update.micro_batches > 1 else ""
        what = f"replicas x stages = {update.layout}{parts}"
        self.tick(f"compiling training {self.compilations}{total}: {what}")
        return training_needs(*self._variant(layout, update))

    def _variant(self, layout: PlannedLayout, update: UpdatePlan) -> tuple[Controller, Batches]:
        options = options_of(update, self.controller.setup.options)
        variant = self.controller.variant(options, layout.stages)
        spec = self.spec.of_rows(update.batch_size)
        return variant, Batches(spec, update.steps_per_execution, self.steps_of_epoch)
