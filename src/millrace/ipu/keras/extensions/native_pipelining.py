"""The native options of how the stages of an extended model run, and of what they compute again.

pipeline_schedule, recomputation_mode   -> names of `millrace.schedules` and `millrace.options`
gradient_accumulation_dtype             -> Pipelining.dtype
*_poplar_options                        -> `forward_options`, `backward_options`, `update_options`
batch_serialization_iterations          -> Pipelining.batch_serialization
IPUConfig.allow_recompute               -> Recomputation.mode
"""

from dataclasses import replace
from typing import Any

from millrace.ipu.keras.extensions.settings import Settings
from millrace.ipu.ops.pipeline_options import accumulator_dtype
from millrace.ipu.ops.schedules import NATIVE, recomputation_of
from millrace.ipu.ops.stage_options import options_of_update
from millrace.options import Pipelining, Recomputation, RecomputationMode


def pipelining(settings: Settings, before: Pipelining) -> Pipelining:
    """Returns how stages run.

    Args:
        settings: of the model.
        before: its options so far, of which those stay that no setter is for.

    Raises:
        DTypeError: for an enum's value, a dtype or an object of another type.
    """
    own = settings.pipelining

    def stages(way: str) -> Any:
        name = f"{way}_propagation_stages_poplar_options"
        given = own.more.get(name)
        return given and tuple(
            options_of_update(f"{name}[{k}]", each) or {} for k, each in enumerate(given)
        )

    return replace(
        before,
        steps=own.steps,
        reduction=own.reduction,
        dtype=accumulator_dtype(own.more.get("gradient_accumulation_dtype")),
        schedule=NATIVE[settings.schedule],
        device_mapping=settings.device_mapping,
        forward_options=stages("forward"),
        backward_options=stages("backward"),
        update_options=options_of_update(
            "weight_update_poplar_options", own.more.get("weight_update_poplar_options")
        ),
        batch_serialization=settings.serialization,
    )


def recomputation(settings: Settings, recomputes: bool) -> Recomputation:
    """Returns what is computed again.

    Args:
        settings: of the model.
        recomputes: whether the configuration allows recomputation.

    Raises:
        UnsupportedError: for a mode that does not go with the schedule.
    """
    mode = settings.pipelining.more.get("recomputation_mode")
    chosen = recomputation_of(mode, settings.schedule, recomputes)
    if mode is None and recomputes:
        # The same for a pipeline, and checkpoints act in a model in one piece.
        return Recomputation(mode=RecomputationMode.AUTO)
    return Recomputation(mode=RecomputationMode(chosen))
