"""The memory of every executable of a run, written when it is made.

compile log -> NewExecutable -> labels of its arguments
-> areas, peak, segments       memory/program.py
-> ProgramMemory -> run directory
"""

import logging

from millrace._compat.jax_executables import devices_of
from millrace._compat.keras_layers import layer_names
from millrace.compiling.executable import compiled_of, renames_of
from millrace.compiling.log import CompileLog, NewExecutable
from millrace.memory.labels import LoopLabels, NoLabels, ProgramLabels
from millrace.memory.owners import layer_finder
from millrace.memory.program import AnalyzedProgram, analyze
from millrace.plan import Plan
from millrace.records.program_memory import ProgramMemory
from millrace.records.sinks import RecordSinks

logger = logging.getLogger("millrace")

SHOWN_LAYERS = 6  # that the words about recomputation name


def program_memory(new: NewExecutable) -> ProgramMemory:
    """Returns the memory of an executable.

    Raises:
        Exception: of many classes, if XLA describes it in a way that is not known here.
    """
    record, plan, model = new.record, new.plan, new.model
    compiled = compiled_of(new.executable)
    names = () if model is None else layer_names(model)
    layer_of = layer_finder(names, renames_of(new.executable))
    analyzed = analyze(compiled, layer_of, _labels(new))
    devices = devices_of(compiled) if plan is None else plan.group.devices
    return ProgramMemory(
        model=record.model,
        program=record.program,
        key=record.key,
        stage=_stage(record.program),
        devices=tuple(map(str, devices)),
        recomputation=_recomputation(plan, analyzed),
        requirement=analyzed.requirement,
        areas=analyzed.areas,
        point=analyzed.point,
        alive=analyzed.alive,
        segments=analyzed.segments,
        began=record.began,
        is_trial=new.is_trial,
        num_points=analyzed.num_points,
        attributed=analyzed.attributed,
    )


def _labels(new: NewExecutable) -> ProgramLabels:
    program = new.record.program.partition("_")[2]
    if new.model is not None and new.plan is not None and program in LoopLabels.PROGRAMS:
        return LoopLabels(new.model, new.plan, program)
    return NoLabels()


def _stage(program: str) -> int:
    _, of_stage, number = program.rpartition(" of stage ")
    return int(number) if of_stage and number.isdecimal() else 0


def _recomputation(plan: Plan | None, analyzed: AnalyzedProgram) -> str:
    """Returns in words what backward computes again, as the operations of the program show it."""
    layers = analyzed.recomputed
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


class MemoryRecorder:
    """An observer of a compile log, which writes the memory of every executable."""

    def __init__(self, sinks: RecordSinks):
        self._sinks = sinks
        self._has_failed = False

    def __call__(self, new: NewExecutable) -> None:
        """Writes the memory of an executable; an error is logged, once, and training goes on."""
        if not self._sinks:
            return
        try:
            self._sinks.add(program_memory(new))
        except Exception as error:  # of any kind: training is worth more than its records
            if not self._has_failed:
                self._has_failed = True
                logger.warning(
                    "The memory of %s of %r is not recorded, and that of later programs is not "
                    "if they fail alike: %s: %s",
                    new.record.program, new.record.model, type(error).__name__, error,
                    exc_info=True,
                )  # fmt: skip


def record_memory(log: CompileLog, sinks: RecordSinks) -> None:
    """Writes the memory of all executables that `log` will get.

    Args:
        log: of a strategy.
        sinks: take the records; without any, nothing is analyzed.
    """
    log.observers.append(MemoryRecorder(sinks))
