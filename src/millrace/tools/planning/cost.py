"""The predicted time of an update, the FLOPs, and the bytes that it moves between devices.

    one piece   FLOPs / rate + micro-batches * (step + accumulators / memory)
                + moved / link + collectives * latency
    pipeline    the simulated schedule, of tasks that take FLOPs / rate + a call, and transfers
                + update: FLOPs / rate + moved / link + collectives * latency

FLOPs are counted in the compiled programs. The rates are assumptions about a platform: they
decide which costs outweigh which, not how long an update takes. Measured times replace them. Those
of a target are public figures of its device, of whose FLOPs a share is assumed to be reached.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import keras

from millrace._compat.keras_layers import all_layers
from millrace.base.options import default_devices
from millrace.base.records.training_plan import UpdatePlan
from millrace.base.targets.target import TargetKind, target_of
from millrace.run.pipelines.programs.stage_programs import UPDATE_PROGRAMS, StagePrograms
from millrace.run.schedules.costs import PassOfStage, cost_of_pass
from millrace.run.schedules.simulate import UNIT_COST, simulate
from millrace.run.schedules.table import make_schedule
from millrace.run.schedules.task import Pass, Schedule, Task
from millrace.tools.memory_report.needs import Needs, stage_flops


@dataclass(frozen=True, slots=True)
class Rates:
    """The assumed speed of a device and its links."""

    flops: float  # in a second
    memory: float  # bytes in a second, within a device
    link: float  # bytes in a second, between two devices
    host: float  # bytes in a second, between a device and host memory
    call: float  # seconds of a call of a program
    step: float  # seconds of a micro-batch in a compiled loop, besides its FLOPs
    latency: float  # seconds of a transfer or a collective operation, besides its bytes


# A core or two of a server; an accelerator of 2020 and its usual links. Wrong by some factor on
# any one machine, and so for all alternatives there.
RATES: Mapping[str, Rates] = {
    "cpu": Rates(flops=5e10, memory=1e10, link=5e9, host=5e9, call=1e-4, step=1e-5, latency=5e-4),
    "gpu": Rates(
        flops=3e13, memory=1.5e12, link=1e11, host=2e10, call=5e-5, step=1e-5, latency=3e-5
    ),
    "tpu": Rates(flops=1e14, memory=1e12, link=1e11, host=1e10, call=5e-5, step=1e-5, latency=1e-5),
}


# Of a device's FLOPs, the share at which a target's time is estimated. Trainings of transformers on
# accelerators reach 0.3 to 0.6 of the peak; what is compared is alternatives on one device.
UTILIZATION = 0.4


def rates_of(model: keras.Model, device: jax.Device) -> Rates:
    """Returns the rates of a device: those of its platform, or of its kind for a target."""
    rates, kind = RATES.get(device.platform, RATES["gpu"]), target_of(device)
    if kind is None:
        return rates
    return replace(
        rates,
        flops=UTILIZATION * peak_flops(model, kind),
        memory=kind.rates["memory_bytes"],
        link=kind.rates["link_bytes"],
        host=kind.rates["host_bytes"],
    )


def peak_flops(model: keras.Model, kind: TargetKind) -> float:
    """Returns the most FLOPs in a second of a device, in the fastest dtype that a model uses."""
    dtypes = {layer.compute_dtype for layer in [model, *all_layers(model)]}
    return max(kind.flops_of(dtype) for dtype in dtypes if dtype)


def least_seconds(model: keras.Model, needs: Needs, flops: float, device: jax.Device) -> float:
    """Returns a lower bound of the time of an update on the devices of a target.

    No device computes faster than its peak, and each has to read and write its trainable weights
    and its optimizer's state, but for what its caches may hold. Nothing else is counted.

    Args:
        model: that is trained.
        needs: of the training, for devices of a target.
        flops: of one update, on all devices.
        device: one of them.
    """
    kind = target_of(device)
    if kind is None:
        return 0.0
    trainable = _bytes(model.trainable_variables)
    states = [
        sum(min(stage.parameters, trainable) + stage.optimizer_state for stage in each.stages)
        for each in needs.devices
    ]
    moved = 2 * max(0, max(states) - kind.on_chip)
    number = sum(len(each.devices) for each in needs.devices)
    return max(flops / number / peak_flops(model, kind), moved / kind.rates["memory_bytes"])


@dataclass(frozen=True, slots=True)
class CountedCosts:
    """FLOPs and bytes of compiled programs, on the devices of one replica."""

    rows: int  # of the micro-batch that the programs were compiled for
    step: float  # FLOPs of a row, of a model in one piece
    tasks: Mapping[PassOfStage, float]  # FLOPs of a micro-batch
    update: tuple[float, ...]  # FLOPs of an update of the weights, for each stage
    boundary: float  # bytes of a row that the widest boundary between stages sends
    sent: float  # bytes of a row that all stages send, forward and backward
    weights: tuple[int, ...]  # bytes of trainable weights, for each stage
    variables: int  # trainable ones, of the stage that has the most
    optimizer: int  # bytes of the optimizer's state


@dataclass(frozen=True, slots=True)
class UpdateCost:
    """The predicted costs of one update."""

    seconds: float
    bubble: float
    flops: float  # on all devices
    moved_bytes: float  # between devices


def counted(model: keras.Model, update: UpdatePlan, needs: Needs) -> CountedCosts:
    """Counts the costs of compiled programs."""
    programs, rows = needs.programs, update.micro_rows
    optimizer = _bytes(model.optimizer.variables)
    if not isinstance(programs, StagePrograms):
        step = needs.update_flops() / (update.batch_size * update.accumulation)
        weights = (_bytes(model.trainable_variables),)
        variables = len(model.trainable_variables)
        return CountedCosts(rows, step, {}, (0.0,), 0.0, 0.0, weights, variables, optimizer)
    split = programs.builder.stages.split
    counts, stages = stage_flops(programs), range(len(split.stages))
    tasks = {
        (stage, kind): counts[kind.program, stage]
        for kind in Pass
        for stage in stages
        if (kind.program, stage) in counts
    }
    updates = tuple(
        sum(counts.get((name, stage), 0.0) for name in UPDATE_PROGRAMS) for stage in stages
    )
    ways = [
        value.nbytes * len(value.consumers) * (2 if value.differentiable else 1)
        for value in split.values
    ]
    of_producer = [
        sum(value.nbytes for value in split.values if value.producer == stage) for stage in stages
    ]
    variables = model.trainable_variables
    weights = tuple(_bytes(variables[k] for k in stage.trainable) for stage in split.stages)
    sent, most = sum(ways) / rows, max(len(stage.trainable) for stage in split.stages)
    boundary = max(of_producer) / rows
    return CountedCosts(rows, 0.0, tasks, updates, boundary, sent, weights, most, optimizer)


def with_extra(costs: CountedCosts, share: float) -> CountedCosts:
    """Returns costs with FLOPs added to every step and task, as a share of its own."""
    tasks = {key: count * (1 + share) for key, count in costs.tasks.items()}
    return replace(costs, step=costs.step * (1 + share), tasks=tasks)


def cost_of(update: UpdatePlan, costs: CountedCosts, rates: Rates) -> UpdateCost:
    """Returns the predicted costs of an update.

    Args:
        update: to run.
        costs: counted for the same layout, with micro-batches of any size.
        rates: of the devices.
    """
    shared = update.replicas - 1
    # An all-reduce sends all but its own part twice; weights that are shared out are gathered, too.
    times = 3 if update.shard_weights else 2
    moved = times * shared * sum(costs.weights)
    seconds = times * shared / update.replicas * max(costs.weights) / rates.link
    seconds += collectives(update, costs.variables) * rates.latency
    if update.offload_optimizer_state:
        parts = update.replicas if update.shard_optimizer_state else 1
        seconds += 2 * costs.optimizer / parts / max(1, len(costs.weights)) / rates.host
    if update.stages == 1:
        rows = update.batch_size * update.accumulation
        count = costs.step * rows
        micro_batches = update.micro_batches
        seconds += count / rates.flops + rates.call + micro_batches * rates.step
        if micro_batches > 1:  # each reads the accumulators, and writes them
            seconds += micro_batches * 2 * sum(costs.weights) / rates.memory
        return UpdateCost(seconds, 0.0, count * update.replicas, moved)
    return _pipelined(update, costs, rates, seconds, moved)


def collectives(update: UpdatePlan, variables: int) -> int:
    """Returns how many collective operations an update has, as XLA compiles it."""
    if update.replicas == 1:
        return 0
    of_losses = of_gradients = 1  # all are summed at once
    if update.shard_optimizer_state:
        of_gradients = 2 * variables  # each is summed by itself, and its new value gathered
    elif update.shard_weights:
        of_gradients += variables  # each value is gathered
    return of_losses + of_gradients


def _pipelined(
    update: UpdatePlan, costs: CountedCosts, rates: Rates, seconds: float, moved: float
) -> UpdateCost:
    schedule, scale = schedule_of(update), update.batch_size / costs.rows

    def task_flops(task: Task) -> float:
        return cost_of_pass(costs.tasks, task.stage, task.kind) * scale

    def task_seconds(task: Task) -> float:
        weights = costs.weights[task.stage] if task.kind is not Pass.FORWARD else 0
        return task_flops(task) / rates.flops + rates.call + 2 * weights / rates.memory

    transfer = rates.latency + costs.boundary * update.batch_size / rates.link
    timeline = simulate(schedule, task_seconds, transfer)
    seconds += timeline.end + max(costs.update) / rates.flops + rates.call
    count = sum(task_flops(task) for row in schedule for task in row) + sum(costs.update)
    moved += costs.sent * update.rows
    return UpdateCost(seconds, timeline.bubble, count * update.replicas, moved)


def schedule_of(update: UpdatePlan) -> Schedule:
    """Returns the schedule of an update of a pipeline."""
    mapping = update.device_mapping or default_devices(update.schedule, update.stages)
    return make_schedule(update.schedule, update.stages, update.accumulation, mapping)


def _bytes(variables: Iterable[keras.Variable]) -> int:
    return sum(math.prod(each.shape) * jnp.dtype(each.dtype).itemsize for each in variables)


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
