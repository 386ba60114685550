"""The executables of one mode of one pipelined model, made when first needed and kept."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import keras

from millrace._compat.jax import looks_for_non_finite
from millrace.compiling.executable import Executable, compile_program
from millrace.compiling.inert import say_if_boundaries_rest
from millrace.devices import DeviceGroup
from millrace.graph.boundaries import boundaries_found
from millrace.graph.calls import LayerCall
from millrace.graph.place import Marks
from millrace.options import CompilerOptions, Pipelining
from millrace.plan import Plan
from millrace.programs.offload import with_moves
from millrace.programs.program import Program
from millrace.programs.replica_stages import ReplicaStageBuilder
from millrace.programs.stages import StageBuilder
from millrace.programs.state import State
from millrace.records.compilation import CompileRecord


class StageExecutables:
    """Finds or compiles the executable of a stage's pass, for the devices of the stage.

    It belongs to one compiled function of one model with one assignment of stages, so what it
    must tell apart is the plan, the specs of the state and the device.
    """

    def __init__(
        self,
        model: keras.Model,
        calls: Sequence[LayerCall],
        marks: Marks,
        log: list[CompileRecord],
        pipelining: Pipelining,
    ):
        self._model = model
        self._calls = calls
        self._marks = marks
        self._log = log
        self._pipelining = pipelining
        self._builders: dict[Any, StageBuilder] = {}
        self._has_said = False  # what the model's boundaries do not do
        self._executables: dict[Any, Executable] = {}

    def builder(self, plan: Plan, state: State, groups: Sequence[DeviceGroup]) -> StageBuilder:
        """Returns what makes the programs of a plan. Traces one step if it is new."""
        specs = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype), state)
        key = (plan, tuple((spec.shape, spec.dtype) for spec in jax.tree.leaves(specs)))
        if key not in self._builders:
            make = StageBuilder if plan.replicas == 1 else ReplicaStageBuilder
            given = (self._model, plan, self._calls, self._marks, specs, groups)
            with boundaries_found() as found:
                self._builders[key] = make(*given)
            if not self._has_said:
                self._has_said = say_if_boundaries_rest(plan, found, self._model.name)
        return self._builders[key]

    def find(
        self,
        builder: StageBuilder,
        plan: Plan,
        group: DeviceGroup,
        name: str,
        stage: int,
        make: Callable[[], Program],
    ) -> Executable:
        """Returns the executable of that name, stage and group; `make` makes its program."""
        key = (builder, name, stage, group, looks_for_non_finite())
        if key not in self._executables:
            placed = replace(plan, group=group)
            options = self._options(name, stage)
            self._executables[key] = compile_program(
                with_moves(make()), placed, self._model.name, self._log, compiler_options=options
            )
        return self._executables[key]

    def _options(self, name: str, stage: int) -> CompilerOptions | None:
        pipelining = self._pipelining
        if name == "forward":
            return pipelining.forward_options[stage] if pipelining.forward_options else None
        if name.startswith("backward"):
            return pipelining.backward_options[stage] if pipelining.backward_options else None
        return pipelining.update_options if name in ("partial", "shared", "final") else None
