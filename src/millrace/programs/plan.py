"""The description of one program: everything that decides its code, and nothing else."""

import enum
import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from millrace.base.devices import DeviceGroup
from millrace.base.options import (
    NO_OFFLOAD,
    NO_TAPS,
    Accumulation,
    Offload,
    Replication,
    TapRequest,
)


class Mode(enum.Enum):
    """The loop of Keras that a program serves."""

    TRAIN = "train"
    TEST = "test"
    PREDICT = "predict"


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """Structure, shapes and dtypes of one batch, as Keras's data adapter yields it."""

    treedef: Any  # JAX's, of x, y and sample weights; None where a program takes no batch
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype, ...]

    @property
    def rows(self) -> int:
        """Rows of the batch: the length of x's first axis."""
        return self.shapes[0][0] if self.shapes and self.shapes[0] else 1

    @property
    def nbytes(self) -> int:
        """Bytes of one batch."""
        return sum(
            math.prod(shape) * dtype.itemsize
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        )

    def of_rows(self, rows: int) -> "BatchSpec":
        """Returns the spec of a batch with another number of rows."""
        shapes = tuple((rows, *shape[1:]) for shape in self.shapes)
        return BatchSpec(self.treedef, shapes, self.dtypes)

    def __str__(self) -> str:
        """Writes the leaves as JAX does: `f32[32,64], i32[32]`."""
        return ", ".join(
            f"{dtype.name}[{','.join(map(str, shape))}]"
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """What backward runs again: by a budget, by a choice, else by boundaries."""

    budget: int | float | None = None  # as in `options.Recomputation`; programs have a choice
    choice: int | None = None  # number among the choices of a step; 0 keeps everything
    is_trial: bool = False  # compiled for its memory only, not to run
    whole_stages: bool = False  # ignoring boundaries in a stage


@dataclass(frozen=True, slots=True)
class Division:
    """The parts that a step divides a batch into."""

    batch_rows: int
    rows: int  # of each part
    count: int  # of these parts

    @property
    def rest(self) -> int:
        """Rows of a last, smaller part; 0 if there is none."""
        return self.batch_rows - self.rows * self.count

    @property
    def parts(self) -> int:
        """Number of parts, the last one included."""
        return self.count + (self.rest > 0)

    @property
    def slices(self) -> list[slice]:
        """The rows of each part."""
        starts = range(0, self.batch_rows, self.rows) if self.rows else (0,)
        return [slice(k, min(k + self.rows, self.batch_rows)) for k in starts]


def divided(rows: int, most: int) -> Division:
    """Divides a batch into parts of at most `most` rows.

    The fewest equal parts, unless these have less than half of `most` rows: then as few parts as
    `most` permits, of which the last one is smaller.
    """
    parts = -(-rows // max(most, 1))
    equal = next(k for k in range(parts, rows + 1) if rows % k == 0)
    if 2 * (rows // equal) >= min(most, rows):
        return Division(rows, rows // equal, equal)
    each = -(-rows // parts)
    return Division(rows, each, rows // each)


@dataclass(frozen=True)
class Plan:
    """One mode of one model on one shape of block.

    Programs are looked up by their plans, and a hash takes as long as a small step: each plan keeps
    its own.
    """

    mode: Mode
    batch: BatchSpec
    capacity: int  # steps in a block: the length of its leaves' first axis
    accumulation: Accumulation
    step_logs: bool  # return the logs of every step, not only of the last one
    records: int  # steps whose results one call returns, where those of every step are wanted
    group: DeviceGroup
    replication: Replication
    recompute: Recompute | None = None
    offload: Offload = NO_OFFLOAD  # each option True or False
    taps: TapRequest = NO_TAPS
    tapped: bool = False  # whether a step returns more than its result
    chooses_rows: bool = False  # whether its micro-batches are one choice of several
    is_shortened: bool = False  # whether its blocks are shorter than others, for a budget
    weighs_losses: bool = False  # whether micro-batches weigh what their losses divide by

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, field.name) for field in fields(self)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def replicas(self) -> int:
        """Copies of the model; each takes another batch in every step."""
        return self.group.replicas

    @property
    def update_steps(self) -> int:
        """Steps of one update; outside of training, one step of each replica."""
        return self.replicas * (self.accumulation.steps if self.mode is Mode.TRAIN else 1)

    @property
    def division(self) -> Division:
        """The parts of a batch; outside of training, and by default, one."""
        rows, most = self.batch.rows, self.accumulation.micro_batch
        is_whole = self.mode is not Mode.TRAIN or not isinstance(most, int) or most >= rows
        return Division(rows, rows, 1) if is_whole or not rows else divided(rows, cast(int, most))

    @property
    def each_step(self) -> bool:
        """Whether the results of every step are wanted, not only of the last one."""
        return self.step_logs or self.mode is Mode.PREDICT

    @property
    def has_budget(self) -> bool:
        """Whether a budget decides what its programs recompute."""
        return self.recompute is not None and self.recompute.budget is not None

    @property
    def is_trial(self) -> bool:
        """Whether its programs are compiled for their memory only."""
        return self.recompute is not None and self.recompute.is_trial


def with_choice(plan: Plan, number: int, is_trial: bool = False) -> Plan:
    """Returns the plan with one choice in place of the budget; choice 0 recomputes nothing."""
    chosen = Recompute(choice=number, is_trial=is_trial) if number or is_trial else None
    return replace(plan, recompute=chosen)


def with_micro_batch(plan: Plan, rows: int | str) -> Plan:
    """Returns a plan whose steps compute other rows at a time."""
    return replace(plan, accumulation=replace(plan.accumulation, micro_batch=rows))


@dataclass(frozen=True, slots=True)
class LoopForm:
    """The form of several steps in a program: a compiled loop, or `unroll` copies of the step."""

    unroll: int | None  # None for a loop of any number of steps

    @property
    def is_loop(self) -> bool:
        """Whether one executable runs any number of steps."""
        return self.unroll is None


# Equations in one unrolled program. Eight steps of a small convnet are 3,000; past this size a
# step is long enough to pay for its own dispatch, and compiling would take the time of hundreds.
MAX_UNROLLED_EQUATIONS = 6_000
MAX_UNROLLED_STEPS = 8


def choose_loop_form(mode: Mode, platform: str, primitives: dict[str, int]) -> LoopForm:
    """Chooses the loop form by the operations of the step and the platform.

    XLA's CPU compiler does not bring the weight gradient of a convolution into the layout of its
    fast kernel when it stands inside a loop: a small convnet then takes twice the time of a step
    dispatched alone, and unrolled steps take two thirds of it (`benchmarks/steps_per_execution.py`
    prints all three). So on CPU, training steps with convolutions are unrolled. Everything else,
    convolutions that run only forward included, is a loop: it compiles once for any number of
    steps.

    Args:
        mode: only training has gradients.
        platform: of the device, as JAX names it.
        primitives: counts of the JAX primitives in one step.
    """
    if mode is not Mode.TRAIN or platform != "cpu" or not primitives.get("conv_general_dilated"):
        return LoopForm(unroll=None)
    equations = max(1, sum(primitives.values()))
    return LoopForm(unroll=max(1, min(MAX_UNROLLED_STEPS, MAX_UNROLLED_EQUATIONS // equations)))
