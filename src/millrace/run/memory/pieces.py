"""The memory of a model in one piece: that of the largest program of an execution.

    run          arguments: state, batches            temporaries: accumulators and others
    accumulate   arguments: state, accumulated, batches
    apply        arguments: state, accumulated        the batches are in memory, too

Sizes are those of the executable: of sharded values, the shards on one device.
"""

from collections import Counter

import jax
import keras

from millrace._compat.jax_executables import (
    argument_sizes,
    buffers_proto,
    kept_arguments,
    requirement,
)
from millrace._compat.keras_layers import layer_names
from millrace.base.devices import device_name
from millrace.base.records.memory_report import DeviceMemory, StageMemory
from millrace.compilation.executables.executable import compiled_of, renames_of
from millrace.programs.plan import Plan
from millrace.programs.steps.accumulate import make_accumulator
from millrace.run.compiled_loop.executables import CompiledCall, LoopPrograms
from millrace.run.memory.hlo_proto import read_buffers
from millrace.run.memory.labels import ARGUMENTS, ROLE_OF_VARIABLES, LoopLabels, ValuePath
from millrace.run.memory.liveness import memory_profile
from millrace.run.memory.owners import layer_finder


def piece_memory(model: keras.Model, programs: LoopPrograms) -> DeviceMemory:
    """Returns the memory of an execution on each device.

    Args:
        model: of the programs.
        programs: of the execution.
    """
    plan = programs.plan  # `zeros` needs less than the others
    calls = [call for call in programs.calls if call.program != "zeros"]
    sizes = {id(call): _arguments(call) for call in calls}
    all_sizes = {key: size for call_sizes in sizes.values() for key, size in call_sizes.items()}
    resident = sum(all_sizes.values())
    # Values that are not arguments of a program are in memory all the same.
    absent = {key: resident - sum(call_sizes.values()) for key, call_sizes in sizes.items()}

    def needed(call: CompiledCall) -> int:
        return requirement(compiled_of(call.executable)) + absent[id(call)]

    peak = max(calls, key=needed)
    compiled = compiled_of(peak.executable)
    by_role: Counter[str] = Counter()
    for (kind, path), size in all_sizes.items():
        by_role[_role(kind, path)] += size
    memory = compiled.memory_analysis()
    temporaries = memory.temp_size_in_bytes if memory is not None else 0
    accumulators = by_role["accumulators"]
    if peak.program == "run" and plan.accumulation.steps > 1:
        accumulators = min(_accumulator_bytes(model, plan), temporaries)
        temporaries -= accumulators
    named = sum(by_role.values()) - by_role["accumulators"] + accumulators + temporaries
    stage = StageMemory(
        stage=0,
        parameters=by_role["parameters"],
        optimizer_state=by_role["optimizer"],
        accumulators=accumulators,
        temporaries=temporaries,
        in_flight=0,
        batches=by_role["batches"],
        other=by_role["other"] + needed(peak) - named,
    )
    profile = memory_profile(
        compiled,
        layer_finder(layer_names(model), renames_of(peak.executable)),
        LoopLabels(model, plan, peak.program).argument,
    )
    devices = tuple(map(device_name, plan.group.devices))
    name = f"{plan.mode.value}_{peak.program}"
    return DeviceMemory(devices, name, (stage,), profile.alive, curve=profile.curve)


def _arguments(call: CompiledCall) -> dict[tuple[str, ValuePath], int]:
    """Returns the bytes of each argument on one device, numbers excluded."""
    compiled, kinds = compiled_of(call.executable), ARGUMENTS[call.program]
    paths = kept_arguments(compiled)
    sizes = {
        each.parameter: each.size
        for each in read_buffers(buffers_proto(compiled)).allocations
        if each.is_parameter
    }
    if not sizes:  # a backend without the addresses of buffers
        sizes = dict(enumerate(argument_sizes(compiled)))
    return {
        (kinds[position.idx], tuple(rest)): sizes[number]
        for number, (position, *rest) in enumerate(paths)
        if number in sizes and position.idx < len(kinds)
    }


def _role(kind: str, path: ValuePath) -> str:
    if kind == "state":
        kind = path[0].name if path else "trainable"
    return ROLE_OF_VARIABLES.get(kind, "other")


def _accumulator_bytes(model: keras.Model, plan: Plan) -> int:
    accumulator = make_accumulator(model.trainable_variables, plan.accumulation)
    zeros = jax.tree.leaves(jax.eval_shape(accumulator.zeros))
    return sum(spec.size * spec.dtype.itemsize for spec in zeros)
