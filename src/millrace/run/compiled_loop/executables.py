"""The executables of one mode of one model, compiled when first needed."""

import logging
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import jax
import keras

from millrace._compat.jax_executables import requirement
from millrace._compat.jax_tracing import trace_options, tracing_options
from millrace._compat.keras_layers import layer_names
from millrace.base.collector import fewer_collections
from millrace.base.records.compilation import ProgramKey
from millrace.compilation.executables.executable import Executable, compile_program, compiled_of
from millrace.compilation.executables.log import CompileLog
from millrace.compilation.executables.lowering import Request, tracing
from millrace.compilation.executables.progress import log_line, search
from millrace.compilation.explain.fingerprint import describe_model
from millrace.compilation.explain.key import ObjectNumbers, key_of
from millrace.compilation.explain.walk import Description
from millrace.compilation.export.exported import Wanted
from millrace.compilation.export.exporting import Exports, why_not
from millrace.programs.plan import BatchSpec, LoopForm, Mode, Plan
from millrace.programs.recomputation.boundaries import collected_boundaries
from millrace.programs.recomputation.choices import Choices, collected_choices
from millrace.programs.steps.program import Program
from millrace.programs.steps.state import State
from millrace.run.compiled_loop.budget import (
    OverBudgetError,
    has_budget,
    is_trial,
    with_choice,
    within_budget,
)
from millrace.run.compiled_loop.execution_calls import Call, ProgramName
from millrace.run.compiled_loop.micro_batch import (
    candidates,
    is_undecided,
    limit_of,
    most_that_fit,
    without_budget,
)
from millrace.run.compiled_loop.programs import ProgramBuilder

logger = logging.getLogger("millrace")


def why_boundaries_are_ignored(plan: Plan) -> str | None:
    """Returns why the programs of a plan ignore boundaries; None if they may use them."""
    recompute = plan.recompute
    if plan.mode is not Mode.TRAIN:
        return None  # nobody expects boundaries to act without a backward
    if recompute is None:
        return (
            "backward recomputes nothing. Set mode='auto' in model.set_recomputation_options(): "
            "'none' is off, and a model in one piece cannot be recomputed as a whole."
        )
    if recompute.budget is not None or recompute.choice is not None:
        return "the budget decides what is recomputed. Leave it out to recompute by boundaries."
    if recompute.whole_stages:
        return (
            "each stage is recomputed as a whole. Set "
            "recomputation_mode='recompute_and_backpropagate_interleaved' and a schedule that "
            "supports it."
        )
    return None


def log_ignored_boundaries(plan: Plan, boundaries: Sequence[str], model: str) -> bool:
    """Logs why a plan ignores the boundaries of a model; returns whether there was a reason."""
    reason = why_boundaries_are_ignored(plan) if boundaries else None
    if reason is not None:
        logger.info("RecomputationCheckpoint in %r has no effect: %s", model, reason)
    return reason is not None


_WITH_STEPS = ("run", "accumulate")


class Executables:
    """Finds, loads or compiles the executable for a plan.

    Exported executables are loaded without a trace of the model, so the exports are searched
    before anything is traced.

    An object belongs to one compiled function of one model. Its executables differ in the plan,
    the specs of the state, the length of an unrolled program, and options of JAX.
    """

    def __init__(
        self,
        model: keras.Model,
        log: CompileLog,
        identity: ObjectNumbers = (),
        exports: Exports | None = None,
        blocks_ahead: int = 0,
        memory: int | None = None,
        may_shorten: bool = True,
    ):
        self._model = model
        self._blocks_ahead = blocks_ahead  # that wait on the device while a program runs
        self._memory = memory  # bytes of a device that training may take
        self._may_shorten = may_shorten  # blocks, whose length the user has not chosen
        self.shortened: dict[BatchSpec, int] = {}  # steps of their blocks
        # The first plan that has one, as the user gave it, and its bytes.
        self._budget: tuple[Plan, int] | None = None
        self._log = log
        self._identity = identity  # of model and strategy, for the keys of programs
        self._exports = exports or Exports()
        self._descriptions: dict[Any, Description] = {}  # of the model when its steps are traced
        self._context: Any = None  # options of JAX at the last call
        self._contexts: dict[Any, int] = {}  # numbers of the options that tracing depends on
        self._context_number = 0
        self._builders: dict[Any, ProgramBuilder] = {}
        self._extra_flops: dict[Plan, float] = {}  # of plans with a budget
        self._has_logged = False  # why boundaries are ignored
        self._choices: dict[Any, Choices | None] = {}  # of steps with a budget
        self._decided: dict[Any, Plan] = {}  # of plans whose micro-batches are to be chosen
        self._executables: dict[Any, Executable] = {}
        self._state: State | None = None  # the one that `_specs` describe
        self._specs: Any = None
        self._specs_key: Any = None
        # By identity of the plan: hashing a plan takes as long as a small step.
        self._recent: dict[Any, tuple[Plan, Executable]] = {}

    def knows(self, state: State) -> bool:
        """Whether this is the object that an executable returned last."""
        return state is self._state

    def see(self, state: State) -> None:
        """Sets the state whose specs the next executables are compiled for."""
        if self.knows(state):
            return
        specs = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype), state)
        key = (
            jax.tree.structure(specs),
            tuple((spec.shape, spec.dtype) for spec in jax.tree.leaves(specs)),
        )
        if key != self._specs_key:
            self._specs, self._specs_key = specs, key
            self._recent.clear()

    def returned(self, state: State) -> None:
        """Remembers a state with unchanged specs, so that `see` can skip it."""
        self._state = state

    def forget(self) -> None:
        """Releases the state of a loop that has ended."""
        self._state = None

    def decided(self, plan: Plan, single_steps: bool) -> Plan:
        """Returns the plan with a number of rows for `micro_batch="auto"`. May compile programs.

        Args:
            plan: of a block.
            single_steps: whether executions have one step.
        """
        if not is_undecided(plan):
            return plan
        key = (plan, *self._now())
        if key not in self._decided:
            self._decided[key] = self._decide(plan, single_steps)
        return self._decided[key]

    def _decide(self, plan: Plan, single_steps: bool) -> Plan:
        plans = candidates(plan)
        exported = next((each for each in plans if self._loaded_form(each) is not None), None)
        limit = limit_of(plan, self._blocks_ahead, self._memory)
        if exported is not None or limit is None or plan.batch.treedef is None:
            return exported or plans[0]

        def find(each: Plan) -> Executable:
            form, rounds = self.form(each), plan.update_steps // plan.replicas
            if form.is_loop:
                return self._find(each, "run", 1 if single_steps and rounds == 1 else None)
            if rounds <= (form.unroll or 1):
                return self._find(each, "run", rounds)
            return self._find(each, "accumulate", form.unroll)

        if self._may_shorten and plan.capacity > plan.update_steps:  # before rows are divided
            with self._log.trying(plans[0], self._model.name):
                peak = requirement(compiled_of(find(without_budget(plans[0]))))
            if peak > limit:
                self._shorten(plan, plan.update_steps)
                return plans[0]
        return most_that_fit(plans, limit, find, self._model.name, self._log)

    def in_bytes(self, plan: Plan) -> Plan:
        """Returns a plan with the bytes of the first plan's budget, if it is another one.

        A share is of the memory of the first program: that of a smaller last batch, or of shorter
        blocks, has weights of the same size.
        """
        if self._budget is None or plan.recompute is None or plan == self._budget[0]:
            return plan
        return replace(plan, recompute=replace(plan.recompute, budget=self._budget[1]))

    def stays_within_budget(self, plan: Plan, calls: Iterable[Call]) -> bool:
        """Whether the calls of a block keep to the budget; if not, its blocks get shorter.

        Raises:
            OverBudgetError: if they cannot be shorter, or the user chose their length.
        """
        if not has_budget(plan):
            return True
        try:
            for call in calls:
                self.of_call(plan, call)
            return True
        except OverBudgetError as error:
            shorter = [n for n in (plan.update_steps, plan.replicas) if n < plan.capacity]
            self._budget = first, nbytes = self._budget or (plan, error.nbytes)
            if not self._may_shorten or not shorter:
                given = None if first.recompute is None else first.recompute.budget
                refusal = OverBudgetError(given, nbytes, error.least)
                refusal.programs = error.programs
                raise refusal from None
            self._shorten(plan, shorter[0])
            return False

    def _shorten(self, plan: Plan, steps: int) -> None:
        self.shortened[plan.batch] = steps
        log_line(
            f"training {self._model.name!r} takes {steps} of its batches to the device at a time: "
            f"{plan.capacity} take too much memory"
        )

    def form(self, plan: Plan) -> LoopForm:
        """Returns the loop form of the plan's programs. Traces one step if it is new."""
        return self._loaded_form(plan) or self._builder(plan).form

    def taps_values(self, plan: Plan) -> bool:
        """Whether the model taps values that the plan's programs do not carry out."""
        # Programs that tap values are not exported.
        return self._loaded_form(plan) is None and self._builder(plan).taps_values

    def max_tapped_steps(self, plan: Plan) -> int | None:
        """Returns the most steps of a call that returns taps; None: no limit."""
        return None if self._loaded_form(plan) else self._builder(plan).max_tapped_steps

    def of_call(self, plan: Plan, call: Call) -> Executable:
        """Returns the program of a call."""
        return self._find(plan, call.program, call.unroll)

    def apply(self, plan: Plan) -> Executable:
        """Returns the program of an update."""
        return self._find(plan, "apply")

    def _loaded_form(self, plan: Plan) -> LoopForm | None:
        """Returns the loop form of a plan that has an export to load; None for any other plan."""
        if self._exports.loaded.is_empty or (plan, *self._now()) in self._builders:
            return None
        key = self._key(plan, "run")
        return None if why_not(plan, key) else self._exports.loaded.form(key)

    def _builder(self, plan: Plan) -> ProgramBuilder:
        requested = plan
        if has_budget(plan):
            plan = with_choice(plan, 0)  # all choices have the same loop form and taps
        if plan.recompute is not None and plan.recompute.is_trial:
            plan = with_choice(plan, plan.recompute.choice or 0)  # it has the same programs
        key = (plan, *self._now())
        if key not in self._builders:
            self._describe(plan)
            self._log.begin(f"{plan.mode.value}_run of {self._model.name!r}")
            with (
                tracing(self._model),
                fewer_collections(),
                collected_choices() as choices,
                collected_boundaries() as boundaries,
            ):
                self._builders[key] = ProgramBuilder(self._model, plan, self._specs)
            self._choices[key] = choices[0] if choices else None
            if not self._has_logged:
                self._has_logged = log_ignored_boundaries(requested, boundaries, self._model.name)
        return self._builders[key]

    def _choices_of(self, plan: Plan) -> Choices | None:
        """Returns the choices of a plan with a budget; None if nothing is differentiated."""
        plan = with_choice(plan, 1)
        self._builder(plan)
        return self._choices[plan, *self._now()]

    def extra_flops(self, plan: Plan) -> float | None:
        """Returns the share of FLOPs that a budget adds to a step; None without a budget."""
        return self._extra_flops.get(plan) if has_budget(plan) else None

    def _find_within_budget(self, plan: Plan, name: ProgramName, unroll: int | None) -> Executable:
        if name not in _WITH_STEPS:
            return self._find(with_choice(plan, 0), name)
        state = sum(spec.size * spec.dtype.itemsize for spec in jax.tree.leaves(self._specs))
        with (
            self._log.timed(),
            search(f"planning {self._model.name!r} for its recomputation budget") as tick,
        ):
            try:
                executable, extra, nbytes = within_budget(
                    plan,
                    name,
                    self._choices_of(plan),
                    lambda plan: self._find(plan, name, unroll),
                    state + plan.capacity * plan.batch.nbytes,
                    self._model.name,
                    self._log,
                    tick,
                )
            finally:
                self._forget_trials()
        self._budget = self._budget or (plan, nbytes)
        self._extra_flops[plan] = max(extra, self._extra_flops.get(plan, 0.0))
        return executable

    def _forget_trials(self) -> None:
        """Releases the programs that were compiled for their memory only."""
        for key in [key for key in self._executables if is_trial(key[0])]:
            del self._executables[key]
        self._recent.clear()

    def _find(self, plan: Plan, name: ProgramName, unroll: int | None = None) -> Executable:
        context = self._context_now()
        recent = self._recent.get((id(plan), name, unroll, context))
        if recent is not None and recent[0] is plan:
            return recent[1]
        key = (plan, self._specs_key, name, unroll, context)
        executable = self._executables.get(key)
        if executable is None and has_budget(plan):
            executable = self._find_within_budget(plan, name, unroll)
            self._executables[key] = executable
        elif executable is None:
            executable = self._executables[key] = self._load_or_compile(plan, name, unroll)
        if len(self._recent) > 16:
            self._recent.clear()
        self._recent[id(plan), name, unroll, context] = (plan, executable)
        return executable

    def _load_or_compile(self, plan: Plan, name: str, unroll: int | None) -> Executable:
        layers = layer_names(self._model)
        gaps = self._describe(plan).gaps
        wanted = Wanted(self._key(plan, name, unroll), plan, unroll, layers, gaps, self._model)
        if why_not(plan, wanted.key) is None:
            loaded = self._exports.loaded.executable(wanted, self._log)
            if loaded is not None:
                self._exports.made(wanted, loaded, self._loaded_form(plan))
                return loaded
        builder = self._builder(plan)
        make = getattr(builder, name)
        program: Program = make(LoopForm(unroll)) if name in _WITH_STEPS else make()
        spent, builder.trace_seconds = builder.trace_seconds, 0.0  # counted once
        request = Request(
            program, plan, wanted.key, trace_seconds=spent, layers=layers, model=self._model
        )
        executable = compile_program(request, self._log)
        self._exports.made(wanted, executable, builder.form)
        return executable

    def _key(self, plan: Plan, name: str, unroll: int | None = None) -> ProgramKey:
        return key_of(
            f"{plan.mode.value}_{name}",
            self._model,
            plan,
            unroll=unroll,
            identity=self._identity,
            description=self._describe(plan),
        )

    def _describe(self, plan: Plan) -> Description:
        """Describes the model before its step is traced, which may change its attributes."""
        key = (plan, *self._now())
        if key not in self._descriptions:
            self._descriptions[key] = describe_model(self._model, plan.mode)
        return self._descriptions[key]

    def _now(self) -> tuple[Hashable, int]:
        """Returns the specs of the state and the options of JAX, on which a traced step depends."""
        return self._specs_key, self._context_now()

    def _context_now(self) -> int:
        """Returns a number for the options of JAX with which programs are traced now."""
        context = trace_options()
        if context != self._context:
            self._context = context
            options = tuple(tracing_options().items())
            self._context_number = self._contexts.setdefault(options, len(self._contexts))
        return self._context_number
