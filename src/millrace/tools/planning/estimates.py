"""The least memory that an update can take, by the compiled memory of its layout's first update.

    fixed       parameters, optimizer state, metrics      shared out where replicas share them
                gradients                                 of a part, where no more is updated
    scaling     other temporaries, values in flight       by the rows of a micro-batch

Other temporaries do not all shrink with the rows, so that the compiled peak is above this.
Candidates above the memory even so need no compilation.
"""

from millrace.base.records.training_plan import UpdatePlan
from millrace.run.schedules.simulate import UNIT_COST, simulate
from millrace.tools.memory_report.needs import Needs
from millrace.tools.planning.cost import schedule_of

KEPT = 0.1  # of temporaries and values in flight, that recomputation leaves at least


def least_peak(
    update: UpdatePlan, first: UpdatePlan, needs: Needs, weights: int, batch: int
) -> int:
    """Returns bytes of the fullest device below which an update cannot stay.

    Args:
        update: of the same layout as `first`.
        first: an update that was compiled.
        needs: of it.
        weights: bytes of the trainable weights of one replica.
        batch: bytes of the data of one update, on one device.
    """
    scale = update.micro_rows / first.micro_rows
    kept = 1.0 if update.budget is None and update.recomputation == "none" else KEPT
    flight = _in_flight(update) / max(1.0, _in_flight(first))
    weight_parts = update.replicas if update.shard_weights else 1
    optimizer_parts = update.replicas if update.shard_optimizer_state else 1
    peaks = []
    for device in needs.devices:
        peak = 0.0
        for stage in device.stages:
            trainable = min(weights, stage.parameters)
            peak += stage.parameters - trainable + trainable / weight_parts
            if not update.offload_optimizer_state:
                peak += stage.optimizer_state / optimizer_parts
            peak += stage.accumulators + (min(stage.batches, batch) if update.stages == 1 else 0)
            fixed = 0.0
            if update.stages == 1 and not _updates_in_order(update):  # gradients are temporaries
                fixed = min(weights / optimizer_parts, stage.temporaries)
            peak += fixed + (stage.temporaries - fixed) * kept * min(1.0, scale)
            peak += stage.in_flight * kept * scale * min(1.0, flight)
        peaks.append(peak)
    return int(max(peaks))


def _updates_in_order(update: UpdatePlan) -> bool:
    """Whether each weight is updated once its gradient is there, so that none need wait."""
    one_step = update.replicas == 1 and update.micro_batches == 1
    return update.budget is not None and one_step and not update.offload_optimizer_state


def _in_flight(update: UpdatePlan) -> float:
    if update.stages == 1:
        return 1.0
    return float(max(simulate(schedule_of(update), UNIT_COST).peak_in_flight))
