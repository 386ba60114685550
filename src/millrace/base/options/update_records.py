"""The options of one weight update: of a model in one piece, and of one that is a pipeline."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from millrace.base.options.checks import (
    at_least,
    compiler_options,
    device_numbers,
    member_of,
    rows_of_part,
    stages_compiler_options,
    truth,
    unchecked,
)
from millrace.base.options.choices import Reduction
from millrace.base.options.default_devices import default_devices
from millrace.base.options.table import (
    ACCUMULATION,
    PIPELINING,
    REPLICATION,
    Auto,
    Option,
    declare,
    file_text,
)

# `keras.Variable` is spelled `Any` here: options know neither Keras nor JAX.
AccumulatorDtype = str | Callable[[Any], str | None] | None
CompilerOptions = Mapping[str, Any]  # of XLA, by name
# A name, text in the notation of run/schedules/text.py, a path of such text, or a function of the
# numbers of stages and micro-batches.
PipelineSchedule = str | pathlib.Path | Callable[[int, int], Any]

_STEPS = "gradient_accumulation_steps_per_replica"
_REDUCTION = "gradient_accumulation_reduction_method"
_SERIALIZATION = "batch_serialization_iterations"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulation:
    """The micro-batches of one weight update, and how their gradients are combined."""

    steps: int = declare(
        1,
        Option(
            _STEPS,
            at_least(1),
            (ACCUMULATION,),
            doc="steps (micro-batches) in one update; 1 turns accumulation off.",
            in_key=lambda accumulation: accumulation.steps // accumulation.batch_serialization,
        ),
    )
    reduction: Reduction = declare(
        Reduction.AUTO,
        Option(
            _REDUCTION,
            member_of(Reduction),
            (ACCUMULATION,),
            doc='`"auto"` weighs each micro-batch by what its loss divides by (tokens of a mask, a '
            "sum of sample weights, rows), so that the update equals that of one big batch; "
            '`"mean"` weighs by rows alone; `"sum"` adds the gradients of the micro-batches; '
            '`"running_mean"` is a mean at any time, so that float16 never has to hold a sum. '
            '`"mean_then_sum"` and '
            '`"running_mean_then_sum"` are means over the micro-batches of a replica, added up '
            'over replicas; `"sum_then_mean"` is the mean over replicas of their sums.',
        ),
    )
    dtype: AccumulatorDtype = declare(
        None,
        Option(
            "dtype",
            unchecked,
            (ACCUMULATION,),
            doc="of the accumulators: a name is for all, a function of the variable chooses for "
            "each.",
            auto="each variable's own",
            is_in_key=False,  # a function is described, not named
        ),
    )
    micro_batch: int | str = declare(
        "whole",
        Option(
            "micro_batch",
            rows_of_part,
            (ACCUMULATION,),
            doc="rows that a step computes at a time, in the memory of so many: it adds up their "
            'gradients, and losses and updates stay those of the whole batch. `"auto"` takes the '
            'most that fit; `"whole"` does not divide batches.',
            accepts=int | Literal["auto", "whole"],
        ),
    )
    synchronized_statistics: bool = declare(
        False,
        Option(
            "synchronized_batch_statistics",
            truth,
            (ACCUMULATION, REPLICATION),
            doc="True normalizes in `BatchNormalization` by the mean and variance of all "
            "micro-batches and replicas of an update, as one big batch does, and takes the memory "
            "of one: micro-batches are computed together (docs/gradient_accumulation.md).",
        ),
    )
    # `steps` is a multiple of it.
    batch_serialization: int = declare(
        1,
        Option(
            _SERIALIZATION,
            at_least(1),
            doc="micro-batches that each stage of a pipeline runs before the next stage starts.",
            saved_as="at_a_time",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelining:
    """The update, schedule, devices and compiler options of a pipelined model."""

    # None until set: the number of micro-batches decides how long devices idle, and no default
    # suits most models.
    steps: int | None = declare(
        None,
        Option(
            _STEPS,
            at_least(1),
            (PIPELINING,),
            doc="steps (micro-batches) in one update. `fit` of a pipeline needs it; `evaluate` and "
            "`predict` do not.",
        ),
    )
    device_mapping: tuple[int, ...] | None = declare(
        None,
        Option(
            "device_mapping",
            device_numbers,
            (PIPELINING,),
            doc="for each stage the number of its device within a replica. Stages may share "
            "devices.",
            auto="stage i on device i; with `batch_serialization_iterations` all on device 0; with "
            '`"zb_v"`, `"v_half"` and `"v_min"` out and back, as in `[0, 1, 1, 0]`',
            accepts=Sequence[int] | Auto,
        ),
    )
    reduction: Reduction = declare(
        Reduction.AUTO,
        Option(
            _REDUCTION,
            member_of(Reduction),
            (PIPELINING,),
            doc="as in `set_gradient_accumulation_options`.",
        ),
    )
    schedule: PipelineSchedule | None = declare(
        None,
        Option(
            "pipeline_schedule",
            unchecked,
            (PIPELINING,),
            doc='`"1f1b"`, `"1f1b_slack"`, `"grouped"`, `"gpipe"`, `"sequential"`, `"looped"`, '
            '`"zero_bubble"`, `"zb_v"`, `"v_half"`, `"v_min"`, a '
            "function of the numbers of stages and of micro-batches, the schedule as text, or the "
            "path of such text (docs/schedules.md).",
            auto='`"1f1b"`; over processes on CPUs `"1f1b_slack"`; with '
            '`batch_serialization_iterations` `"sequential"`',
            to_json=lambda schedule: None if schedule is None else file_text(schedule),
        ),
    )
    dtype: AccumulatorDtype = declare(
        None,
        Option(
            "gradient_accumulation_dtype",
            unchecked,
            (PIPELINING,),
            doc="the `dtype` of `set_gradient_accumulation_options`.",
            auto="each variable's own",
        ),
    )
    forward_options: tuple[CompilerOptions, ...] | None = declare(
        None,
        Option(
            "forward_propagation_stages_compiler_options",
            stages_compiler_options,
            (PIPELINING,),
            doc="for each stage a dict of options of XLA, for its forward passes; `[]` for none.",
            auto="none",
            accepts=Sequence[CompilerOptions] | Auto,
        ),
    )
    backward_options: tuple[CompilerOptions, ...] | None = declare(
        None,
        Option(
            "backward_propagation_stages_compiler_options",
            stages_compiler_options,
            (PIPELINING,),
            doc="the same for its backward passes.",
            auto="none",
            accepts=Sequence[CompilerOptions] | Auto,
        ),
    )
    update_options: CompilerOptions | None = declare(
        None,
        Option(
            "weight_update_compiler_options",
            compiler_options,
            (PIPELINING,),
            doc="a dict of options of XLA, for the weight update; `{}` for none.",
            auto="none",
            accepts=CompilerOptions | Auto,
        ),
    )
    # `steps` is the number of such groups in an update.
    batch_serialization: int = declare(
        1,
        Option(
            _SERIALIZATION,
            at_least(1),
            (PIPELINING,),
            doc="micro-batches that a stage runs before the next stage starts. An update then has "
            f"that many times `{_STEPS}`. More than 1 needs all stages on one device, where they "
            "are unless mapped otherwise.",
        ),
    )
    # The stage of the schedule that each stage is part of, where some run at the same time.
    schedule_stages: tuple[int, ...] | None = None

    @property
    def accumulation(self) -> Accumulation | None:
        """The accumulation of one update; None until its steps are set."""
        if self.steps is None:
            return None
        return Accumulation(
            steps=self.steps * self.batch_serialization,
            reduction=self.reduction,
            dtype=self.dtype,
            batch_serialization=self.batch_serialization,
        )

    @property
    def schedule_in_force(self) -> PipelineSchedule:
        """The schedule that was set, or the default."""
        if self.schedule is not None:
            return self.schedule
        return "sequential" if self.batch_serialization > 1 else "1f1b"

    def devices_of(self, num_stages: int) -> tuple[int, ...]:
        """Returns the device of each stage, as it was set, or the default."""
        if self.device_mapping is not None:
            return self.device_mapping
        return default_devices(self.schedule_in_force, num_stages, self.batch_serialization)
