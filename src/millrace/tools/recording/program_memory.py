"""The memory of an executable, as a record.

NewExecutable -> labels of its arguments
-> areas, peak, segments    run/memory/program.py
-> ProgramMemory
"""

from collections.abc import Sequence
from dataclasses import replace

from millrace._compat.jax_executables import devices_of, requirement
from millrace._compat.keras_layers import layer_names
from millrace.base.devices import device_name
from millrace.base.records.program_memory import ProgramMemory
from millrace.compilation.executables.executable import compiled_of, renames_of
from millrace.compilation.executables.trials import NewExecutable
from millrace.programs.plan import Plan
from millrace.programs.steps.program import FunctionSource
from millrace.run.memory.function_labels import FunctionLabels
from millrace.run.memory.hlo_proto import Module
from millrace.run.memory.labels import LoopLabels, ProgramLabels
from millrace.run.memory.owners import layer_finder
from millrace.run.memory.program import analyze
from millrace.run.memory.stage_labels import StageLabels
from millrace.run.pipelines.programs.stages import StageSource

SHOWN_LAYERS = 6  # that the words about recomputation name


def program_memory(new: NewExecutable, module: Module) -> ProgramMemory:
    """Returns the memory of an executable.

    Args:
        new: the executable.
        module: its program.

    Raises:
        Exception: of many classes, if XLA describes it in a way that is not known here.
    """
    record, plan, model = new.record, new.plan, new.model
    compiled = compiled_of(new.executable)
    labels = _labels(new)
    names = labels.layers if isinstance(labels, FunctionLabels) else ()
    names = names if model is None else layer_names(model)
    layer_of = layer_finder(names, renames_of(new.executable))
    devices = devices_of(compiled) if plan is None else plan.group.devices
    memory = ProgramMemory(
        model=record.model,
        program=record.program,
        key=record.key,
        stage=stage_of(record.program),
        devices=tuple(map(device_name, devices)),
        requirement=record.peak_bytes or requirement(compiled),  # 0.1 s for ResNet50
        areas=(),
        point=0,
        alive=(),
        began=record.began,
        is_trial=new.is_trial,
    )
    memory, recomputed = analyze(memory, compiled, module, layer_of, labels)
    return replace(memory, recomputation=_recomputation(plan, _in_order(recomputed, names)))


def _labels(new: NewExecutable) -> ProgramLabels:
    if isinstance(new.source, StageSource):
        return StageLabels(*new.source)
    if isinstance(new.source, FunctionSource):
        return FunctionLabels(new.source)
    program = new.record.program.partition("_")[2]
    if new.model is not None and new.plan is not None and program in LoopLabels.PROGRAMS:
        return LoopLabels(new.model, new.plan, program)
    return ProgramLabels()


def stage_of(program: str) -> int:
    """Returns the stage that a program is of; 0 for a model in one piece."""
    _, of_stage, number = program.rpartition(" of stage ")
    return int(number) if of_stage and number.isdecimal() else 0


def _in_order(layers: Sequence[str], names: Sequence[str]) -> list[str]:
    """Returns layers in the order of the model's; backward has them the other way round."""
    order = {name: number for number, name in enumerate(names)}
    return sorted(layers, key=lambda layer: order.get(layer.rpartition("/")[2], len(order)))


def _recomputation(plan: Plan | None, layers: Sequence[str]) -> str:
    """Returns in words what backward computes again, as the operations of the program show it."""
    if not layers:
        return ""
    recompute = plan.recompute if plan is not None else None
    how = ""
    if recompute is not None:
        how = "between boundaries"
        if recompute.choice is not None:
            how = f"choice {recompute.choice} of the budget"
        elif recompute.whole_stages:
            how = "whole stages"
    named = ", ".join(layers[:SHOWN_LAYERS])
    others = len(layers) - SHOWN_LAYERS
    named += f" and {others} more layers" if others > 0 else ""
    return f"{how}: {named}" if how else named
