"""The executables of one mode of one model, found when first needed.

    a new plan             -> the form of its programs: as exported, or of a step that is traced
    of_call(plan, call)    -> known, or found: see `compilation/finder.py`

A budget and an undecided micro-batch have been replaced in these plans: see `plan_chooser.py`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import keras

from millrace._compat.jax_tracing import trace_options, tracing_options
from millrace._compat.keras_layers import layer_names
from millrace.base.collector import fewer_collections
from millrace.compilation.executables.executable import Executable
from millrace.compilation.executables.log import CompileLog
from millrace.compilation.executables.lowering import code_of, tracing
from millrace.compilation.executables.wanted import Code, Wanted, of_plan
from millrace.compilation.explain.key import ObjectNumbers
from millrace.compilation.explain.model_keys import ModelKeys
from millrace.compilation.export.exporting import Exports, why_not
from millrace.compilation.finder import ProgramFinder
from millrace.programs.plan import LoopForm, Plan, with_choice
from millrace.programs.recomputation.choices import Choices, collected_choices
from millrace.programs.recomputation.modes import IgnoredBoundaries
from millrace.programs.steps.state import State
from millrace.run.compiled_loop.execution_calls import WITH_STEPS, Call, ProgramName
from millrace.run.compiled_loop.programs import ProgramBuilder

# Numbers of what a trace depends on besides a plan: the specs of the state, and options of JAX.
Moment = tuple[int, int]


class CompiledCall(NamedTuple):
    """A call that an execution would make, with its executable."""

    program: ProgramName
    executable: Executable
    steps: int  # that the executable runs; 0 if it runs none
    is_loop: bool  # whether its HLO contains one iteration, however many it runs


class LoopPrograms(NamedTuple):
    """The programs of an execution of a model in one piece."""

    plan: Plan  # of the last block
    calls: tuple[CompiledCall, ...]  # each executable once
    apply: Callable[[], Executable]  # the program of an update alone


class Executables:
    """Finds the executable of a call.

    Exported executables are loaded without a trace of the model, so the exports are searched
    before anything is traced.

    An object belongs to one compiled function of one model. Its executables differ in the plan,
    the specs of the state, the length of an unrolled program, and options of JAX.
    """

    def __init__(
        self,
        model: keras.Model,
        log: CompileLog,
        identity: ObjectNumbers,
        exports: Exports,
    ):
        self.model, self.log = model, log
        self._exports = exports
        self._finder = ProgramFinder(log, exports)
        self._keys = ModelKeys(model, identity)
        self._boundaries = IgnoredBoundaries(model.name)
        self._builders: dict[tuple[Plan, Moment], ProgramBuilder] = {}
        self._choices: dict[tuple[Plan, Moment], Choices | None] = {}  # of what a step runs again
        self._executables: dict[tuple[Plan, ProgramName, int | None, Moment], Executable] = {}
        self._state: State | None = None  # the one that `_specs` describe
        self._specs: Any = None
        self._specs_numbers: dict[object, int] = {}
        self._options: object = None  # of JAX at the last call
        self._options_numbers: dict[object, int] = {}
        self._now: Moment = -1, 0

    def knows(self, state: State) -> bool:
        """Whether programs take this state as they took the one that they returned last.

        Between two epochs, or two calls, only metrics have other values.
        """
        last = self._state
        if last is None or state is last:
            return last is not None
        return all(map(_are_alike, state, last))

    def see(self, state: State) -> None:
        """Sets the state whose specs the next executables are compiled for."""
        if self.knows(state):
            return
        leaves, tree = jax.tree.flatten(state)
        key = (tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves))
        number = self._specs_numbers.setdefault(key, len(self._specs_numbers))
        if number != self._now[0]:
            specs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in key[1]]
            self._specs = jax.tree.unflatten(tree, specs)
            self._now = number, self._now[1]

    @property
    def state_bytes(self) -> int:
        """Bytes of the state."""
        return sum(spec.size * spec.dtype.itemsize for spec in jax.tree.leaves(self._specs))

    def returned(self, state: State) -> None:
        """Remembers a state with unchanged specs, so that `see` can skip it."""
        self._state = state

    def forget(self) -> None:
        """Releases the state of a loop that has ended."""
        self._state = None

    def now(self) -> Moment:
        """Returns what a trace depends on now: programs of other moments are others."""
        options = trace_options()
        if options != self._options:
            self._options, numbers = options, self._options_numbers
            number = numbers.setdefault(tuple(tracing_options().items()), len(numbers))
            self._now = self._now[0], number
        return self._now

    def form(self, plan: Plan) -> LoopForm:
        """Returns the loop form of the plan's programs. Traces one step if it is new."""
        return self.loaded_form(plan) or self._builder(plan).form

    def taps_values(self, plan: Plan) -> bool:
        """Whether the model taps values that the plan's programs do not carry out."""
        # Programs that tap values are not exported.
        return self.loaded_form(plan) is None and self._builder(plan).taps_values

    def max_tapped_steps(self, plan: Plan) -> int | None:
        """Returns the most steps of a call that returns taps; None: no limit."""
        return None if self.loaded_form(plan) else self._builder(plan).max_tapped_steps

    def choices(self, plan: Plan) -> Choices | None:
        """Returns the choices of a plan with a budget; None if nothing is differentiated."""
        plan = with_choice(plan, 1)
        self._builder(plan)
        return self._choices[plan, self.now()]

    def of_call(self, plan: Plan, call: Call) -> Executable:
        """Returns the program of a call."""
        key = plan, call.program, call.unroll, self.now()
        executable = self._executables.get(key)
        if executable is None:
            wanted = self._wanted(plan, call.program, call.unroll)
            executable = self._executables[key] = self._finder.find(wanted)
        return executable

    def forget_trials(self) -> None:
        """Releases the programs that were compiled for their memory only."""
        for key in [key for key in self._executables if key[0].is_trial]:
            del self._executables[key]

    def loaded_form(self, plan: Plan) -> LoopForm | None:
        """Returns the loop form of a plan that has an export to load; None for any other plan."""
        now = self.now()
        if self._exports.loaded.is_empty or (plan, now) in self._builders:
            return None
        key = self._keys.of(plan, "run", now)
        return None if why_not(plan, key) else self._exports.loaded.form(key)

    def _wanted(self, plan: Plan, name: ProgramName, unroll: int | None) -> Wanted:
        now, form = self.now(), self.form(plan)
        key = self._keys.of(plan, name, now, unroll=unroll)

        def make() -> Code:
            builder = self._builder(plan)
            program = getattr(builder, name)(*[LoopForm(unroll)] * (name in WITH_STEPS))
            seconds, builder.trace_seconds = builder.trace_seconds, 0.0  # counted once
            return code_of(program, plan, seconds=seconds)

        return of_plan(
            key,
            plan,
            make,
            self.model,
            why_not(plan, key, self._keys.describe(plan, now).model.gaps),
            unrolled=unroll,
            layers=layer_names(self.model),
            form=form,
        )

    def _builder(self, plan: Plan) -> ProgramBuilder:
        requested = plan
        if plan.has_budget:
            plan = with_choice(plan, 0)  # all choices have the same loop form and taps
        if plan.recompute is not None and plan.is_trial:
            plan = with_choice(plan, plan.recompute.choice or 0)  # it has the same programs
        key = plan, self.now()
        if key not in self._builders:
            self._keys.describe(*key)
            self.log.begin(f"{plan.mode.value}_run of {self.model.name!r}")
            with (
                tracing(self.model),
                fewer_collections(),
                collected_choices() as choices,
                self._boundaries.watched(requested),
            ):
                self._builders[key] = ProgramBuilder(self.model, plan, self._specs)
            self._choices[key] = choices[0] if choices else None
        return self._builders[key]


def _are_alike(values: Sequence[jax.Array], known: Sequence[jax.Array]) -> bool:
    return len(values) == len(known) and all(
        a is b or (a.shape == b.shape and a.dtype == b.dtype and a.sharding == b.sharding)
        for a, b in zip(values, known, strict=True)
    )
