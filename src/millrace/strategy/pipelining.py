"""What makes a model a pipeline: its stages, their devices, and the runner of its loops."""

from collections.abc import Sequence
from typing import Any

import jax
import keras

from millrace.compiling.stage_executables import StageExecutables
from millrace.errors import PlanError
from millrace.graph.assignment import (
    Assignment,
    check_unchanged,
    default_assignment,
    get_assignment,
    set_assignment,
)
from millrace.graph.calls import find_calls, leaves
from millrace.graph.marks import stages_were_entered
from millrace.graph.place import Marks
from millrace.options import Pipelining
from millrace.plan import Plan
from millrace.records.compilation import CompileRecord
from millrace.runtime.pipeline import PipelineRunner
from millrace.schedules.table import make_schedule


class Stages:
    """The stages of one model: set by its methods, or by `PipelineStage` scopes."""

    def __init__(self, model: keras.Model):
        self._model = model
        self._set: Assignment | None = None
        self._by_scopes = True  # until a method sets or resets the stages
        self._scoped: Assignment | None = None

    def assignment(self) -> Assignment | None:
        """Returns the stage of each layer call, or None if the model is not a pipeline.

        Raises:
            PlanError: if layers came or went since the stages were set.
            OptionError: if scopes give a stage to some calls only.
        """
        if self._set is not None:
            check_unchanged(self._set, self._model)
            return self._set
        if self._by_scopes and self._scoped is None and self._scopes_can_be_read():
            self._scoped = default_assignment(self._model)
        return self._scoped if self._by_scopes else None

    def get(self) -> list[Any]:
        """Returns an object for each layer call, with its present stage."""
        return get_assignment(self._model, self.assignment())

    def set(self, given: Any) -> None:
        """Puts a list of stages in force."""
        self.put(set_assignment(self._model, given))

    def put(self, assignment: Assignment) -> None:
        """Puts a checked assignment in force."""
        self._set, self._by_scopes = assignment, False

    def reset(self) -> None:
        """Makes the model one that is not a pipeline, whatever its scopes say."""
        self._set, self._by_scopes = None, False

    def _scopes_can_be_read(self) -> bool:
        # A subclassed model is run once on shapes to find out: only if some scope was entered
        # at all, and it is built.
        return stages_were_entered() and self._model.built


def stage_devices(
    num_stages: int, mapping: Sequence[int] | None, devices: Sequence[jax.Device]
) -> tuple[jax.Device, ...]:
    """Returns the device of each stage.

    Raises:
        PlanError: if the mapping has another length than the stages, or the strategy has fewer
            devices than it needs.
    """
    given = list(range(num_stages)) if mapping is None else list(mapping)
    if len(given) != num_stages:
        raise PlanError(
            f"device_mapping={given} has {len(given)} entries, and the model has {num_stages} "
            "pipeline stages. Give one device for each stage in set_pipelining_options()."
        )
    if max(given) >= len(devices):
        raise PlanError(
            f"The {num_stages} pipeline stages need the devices {sorted(set(given))}, and the "
            f"strategy has {len(devices)}. Set devices to {max(given) + 1} or more, such as "
            f"Strategy(devices='cpu:{max(given) + 1}'), or let stages share devices: "
            f"device_mapping={[k % len(devices) for k in range(num_stages)]}."
        )
    return tuple(devices[index] for index in given)


def make_pipeline_runner(
    model: keras.Model,
    assignment: Assignment,
    pipelining: Pipelining,
    plan: Plan,
    devices: Sequence[jax.Device],
    log: list[CompileRecord],
) -> PipelineRunner:
    """Makes the runner of one mode of a pipelined model."""
    scoped = assignment.stages is None
    calls = () if scoped else find_calls(model)
    names = [leaf.label for leaf in leaves(calls)]
    executables = StageExecutables(model, calls, Marks(assignment.stages, names), log, pipelining)
    placed = stage_devices(assignment.num_stages, pipelining.device_mapping, devices)
    groups = tuple(devices.index(device) for device in placed)

    def schedule(num_micro_batches: int) -> Any:
        return make_schedule(pipelining.schedule, assignment.num_stages, num_micro_batches, groups)

    return PipelineRunner(executables, plan, placed, schedule)
