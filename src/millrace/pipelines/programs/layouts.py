"""Layouts of the values of a pipeline's stages: on their devices, or offloaded to host memory."""

from collections.abc import Sequence
from typing import Protocol

import jax

from millrace.pipelines.programs.split import Slot, Stage
from millrace.pipelines.programs.stage_update import contributions
from millrace.pipelines.programs.stages import Stages
from millrace.plan import Plan
from millrace.pytrees import Layout, LayoutTree, Spec
from millrace.replicas.state import layout_of
from millrace.steps.offload import host_layouts, with_host_layouts


class Layouts(Protocol):
    """The layouts of the values of all stages."""

    @property
    def plans(self) -> Sequence[Plan]:
        """The plan of each stage, with its group of devices."""
        ...

    def of(self, index: int, slot: Slot) -> Layout | None:
        """Returns the layout of a value at a stage between updates; None: on its device."""
        ...

    def accumulated(self, stage: Stage) -> list[Spec]:
        """Returns the specs of a stage's gradient accumulators."""
        ...

    def host_layouts(self, index: int) -> list[Layout | None]:
        """Returns the host layouts of a stage's gradient accumulators; None: not offloaded."""
        ...

    def of_taps(self, index: int) -> Layout:
        """Returns the layout of the values that a stage taps."""
        ...


class DeviceLayouts:
    """The layouts of stages of one replica, each on one device."""

    def __init__(self, stages: Stages, plans: Sequence[Plan]):
        """Describes one replica.

        Args:
            stages: whose values are laid out.
            plans: of each stage, with its group of devices.
        """
        self._stages, self.plans = stages, plans

    def of(self, index: int, slot: Slot) -> Layout | None:
        """Returns the layout of a value at a stage between updates; None: on its device."""
        stages = self._stages
        if not moves(stages.plan):
            return None
        if slot.role == "gradient":
            stage, weight = contributions(stages.split)[slot.index]
            return self.host_layouts(index)[stages.split.stages[stage].trainable.index(weight)]
        if slot.role in ("trainable", "optimizer"):
            return layout_of(self.plans[index], slot.role, stages.slot(slot))
        return None

    def accumulated(self, stage: Stage) -> list[Spec]:
        """Returns the specs of a stage's gradient accumulators."""
        zeros = jax.eval_shape(self._stages.accumulator(stage).zeros)
        return with_host_layouts(zeros, self.host_layouts(stage.index))

    def host_layouts(self, index: int) -> list[Layout | None]:
        """Returns the host layouts of a stage's gradient accumulators; None: not offloaded."""
        stages = self._stages
        zeros = jax.eval_shape(stages.accumulator(stages.split.stages[index]).zeros)
        if not stages.plan.offload.accumulators:
            return [None] * len(zeros)
        plan = self.plans[index]
        return host_layouts(plan, "gradient", zeros, plan.group.whole)

    def of_taps(self, index: int) -> Layout:
        """Returns the layout of the values that a stage taps."""
        return self.plans[index].group.whole


def moves(plan: Plan) -> bool:
    """Whether any state is offloaded to host memory between its uses."""
    offload = plan.offload
    return bool(offload.optimizer_state or offload.accumulators or offload.weights)


def with_sums(
    layouts: Layouts, index: int, returns: bool = False, taps: bool = False
) -> LayoutTree:
    """Returns the layouts of a pass's results, one of which are the gradient accumulators.

    Either all results have a layout or none: JAX would otherwise give results the memory of
    arguments of another kind.

    Args:
        layouts: of all stages.
        index: of the stage.
        returns: whether cotangents come before the accumulators.
        taps: whether tapped values come after them.
    """
    plan = layouts.plans[index]
    if not plan.offload.accumulators:
        return None
    split = plan.group.split(0)
    sums = [layout or split for layout in layouts.host_layouts(index)]
    if not (returns or taps):
        return sums
    return (*(split,) * returns, sums, *(layouts.of_taps(index),) * taps)
