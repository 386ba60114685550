"""The memory of a pipelined model on each device: resident, waiting and running values."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras

from millrace._compat.jax_executables import argument_bytes, requirement
from millrace._compat.jax_memory import is_on_host
from millrace._compat.keras_layers import layer_names
from millrace._compat.keras_loops import variables_of
from millrace._compat.keras_steps import stored_value
from millrace.base.devices import DeviceGroup, device_name
from millrace.base.pytrees import Spec
from millrace.base.records.memory import LiveBuffer, largest
from millrace.base.records.memory_report import DeviceMemory, StageMemory
from millrace.compilation.executables.executable import compiled_of, renames_of
from millrace.run.memory.labels import ValueLabel, ValuePath
from millrace.run.memory.liveness import memory_profile
from millrace.run.memory.owners import layer_finder
from millrace.run.memory.stage_labels import OF_MICRO_BATCH, StageLabels
from millrace.run.memory.walk import PeakMoment, StageSizes, UpdateWalk
from millrace.run.pipelines.programs.builder import arguments_of
from millrace.run.pipelines.programs.split import Slot
from millrace.run.pipelines.programs.stage_programs import UPDATE_PROGRAMS, StagePrograms
from millrace.run.pipelines.programs.stages import state_groups

_HOST = ("pinned_host", "unpinned_host")  # memory where values rest between their uses


def pipeline_memory(model: keras.Model, programs: StagePrograms) -> tuple[DeviceMemory, ...]:
    """Returns the memory of an update on the devices of each group of this process.

    Args:
        model: of the programs.
        programs: of an update.
    """
    builder, groups = programs.builder, programs.groups
    stages = range(len(groups))
    sizes = [_sizes(programs, stage) for stage in stages]
    walk = UpdateWalk(builder.stages.split, builder.stages.passes, sizes, groups)
    ends = [key for key in programs.executables if key[0] in UPDATE_PROGRAMS]
    walk.run(programs.order, ends)
    devices_of_groups = []
    for group in dict.fromkeys(groups):
        if not group.local:
            continue
        here = [stage for stage in stages if groups[stage] == group]
        moment = walk.peaks[group]
        seen: set[Slot] = set()
        rows = [_stage_memory(programs, stage, moment, seen) for stage in here]
        others = _of_other_stages(model, programs, group, here, sum(row.total for row in rows))
        rows[0] = replace(rows[0], other=rows[0].other + others)
        program = builder.program(moment.program, moment.stage).name
        devices = tuple(map(device_name, group.devices))
        alive = _alive(model, programs, moment, rows)
        if others and alive:
            alive.append(LiveBuffer("values of other stages, at first", others, "", ""))
        alive = largest(alive)
        devices_of_groups.append(DeviceMemory(devices, program, tuple(rows), alive))
    return tuple(devices_of_groups)


def _sizes(programs: StagePrograms, index: int) -> StageSizes:
    builder = programs.builder
    stage = builder.stages.split.stages[index]
    forward, backward, weights = (
        builder.program(name, index).arguments
        for name in ("forward", "backward", "backward_weight")
    )
    return StageSizes(
        batch=dict(zip(stage.batch, map(_bytes, forward[3]), strict=True)),
        held=list(map(_bytes, backward[1])),
        kept=sum(map(_bytes, weights[3])),
        own={
            name: requirement(compiled) - argument_bytes(compiled)
            for (name, stage_index), each in programs.executables.items()
            if stage_index == index
            for compiled in [compiled_of(each)]
        },
    )


def _stage_memory(
    programs: StagePrograms, index: int, moment: PeakMoment, seen: set[Slot]
) -> StageMemory:
    """Returns the memory of a stage at the peak of its device.

    Args:
        programs: of the pipeline.
        index: of the stage.
        moment: the peak.
        seen: values of other stages of the device; those of this stage are added.
    """
    resident: Counter[str] = Counter()
    for slot, nbytes in _resident(programs, index).items():
        if slot not in seen:
            resident[slot.role] += nbytes
            seen.add(slot)
    return StageMemory(
        stage=index,
        parameters=resident["trainable"] + resident["non_trainable"],
        optimizer_state=resident["optimizer"],
        accumulators=sum(map(_bytes, programs.builder.program("backward", index).arguments[3])),
        temporaries=moment.own if moment.stage == index else 0,
        in_flight=moment.held.get((index, "in flight"), 0),
        batches=moment.held.get((index, "batches"), 0),
        other=resident["metric"],
    )


def _resident(programs: StagePrograms, index: int) -> dict[Slot, int]:
    """Returns the values of the model that a stage holds, and their bytes on one device."""
    builder = programs.builder
    stage = builder.stages.split.stages[index]
    forward = builder.program("forward", index).arguments
    fixed, changing = state_groups(stage)
    weights = [Slot("trainable", k) for k in stage.trainable]
    resident = {
        slot: _bytes(spec)
        for slots, specs in zip((weights, fixed, changing), forward[:3], strict=True)
        for slot, spec in zip(slots, specs, strict=True)
    }
    if (update := builder.stages.update.final.get(index)) is not None:
        arguments = builder.program("final", index).arguments
        for slots, specs in zip(
            arguments_of(builder.stages.update, update), arguments, strict=True
        ):
            for slot, spec in zip(slots, specs, strict=True):
                if slot.role in ("trainable", "optimizer"):
                    resident[slot] = _bytes(spec)
    return resident


def _of_other_stages(
    model: keras.Model,
    programs: StagePrograms,
    group: DeviceGroup,
    here: Sequence[int],
    peak: int,
) -> int:
    """Returns the bytes by which values of other stages raise the peak of a device of the group.

    A model is built on one device, which holds all values until the first execution has moved them
    to their stages: before it computes. Those of stages in other processes stay.

    Args:
        model: of the programs.
        programs: of the pipeline.
        group: of devices of this process.
        here: the stages on it.
        peak: bytes of a device while it computes.
    """
    stages, groups = programs.builder.stages, programs.groups
    owners = {**stages.split.owners, **stages.update.owners}
    resident = {slot for stage in here for slot in _resident(programs, stage)}
    before: Counter[Any] = Counter()
    stay: Counter[Any] = Counter()
    for role in ("trainable", "non_trainable", "optimizer", "metric"):
        for index, variable in enumerate(variables_of(model, role)):
            value, slot = stored_value(variable), Slot(role, index)
            if value is None or value.is_deleted() or is_on_host(value.sharding):
                continue
            moves = slot in owners and bool(groups[owners[slot]].local)
            for device in value.devices():
                before[device] += value.nbytes
                if not moves and slot not in resident:
                    stay[device] += value.nbytes
    return max(max(before[device] - peak, stay[device], 0) for device in group.devices)


def _alive(
    model: keras.Model, programs: StagePrograms, moment: PeakMoment, rows: Sequence[StageMemory]
) -> list[LiveBuffer]:
    """Returns the tensors of the program at the peak, and the sums of all other values."""
    executable = programs.executables[moment.program, moment.stage]
    labels = StageLabels(programs.builder.stages, moment.program, moment.stage)
    in_flight: set[str] = set()  # names of values of a micro-batch

    def label(path: ValuePath) -> ValueLabel:
        label = labels.argument(path)
        if labels.kind_of_argument(path) in OF_MICRO_BATCH:
            in_flight.add(label.name)
        return label

    layers = layer_finder(layer_names(model), renames_of(executable))
    alive = list(memory_profile(compiled_of(executable), layers, label).alive)
    if not alive:  # the compilers of targets do not say which are
        return alive
    waiting = sum(each.nbytes for each in alive if each.name in in_flight)
    sums = {
        "other micro-batches in flight": sum(r.in_flight + r.batches for r in rows) - waiting,
        "optimizer state": sum(r.optimizer_state for r in rows) * (moment.program != "final"),
    }
    return alive + [LiveBuffer(name, size, "", "") for name, size in sums.items() if size > 0]


def _bytes(spec: Spec) -> int:
    """Returns the bytes of a value on one device."""
    sharding = getattr(spec, "sharding", None)
    if sharding is not None and sharding.memory_kind in _HOST:
        return 0
    shape = spec.shape if sharding is None else sharding.shard_shape(tuple(spec.shape))
    return math.prod(shape) * spec.dtype.itemsize
