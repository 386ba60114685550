"""The executables of one mode of one model, made when first needed and kept."""

import logging
from collections.abc import Sequence
from typing import Any

import jax
import keras

from millrace._compat.jax_tracing import trace_options, tracing_options
from millrace._compat.keras_layers import layer_names
from millrace.compiled_loop.budget import has_budget, with_choice, within_budget
from millrace.compiled_loop.calls import Call
from millrace.compiled_loop.programs import ProgramBuilder
from millrace.compiling.executable import Executable, compile_program
from millrace.compiling.log import CompileLog
from millrace.compiling.lowering import Request
from millrace.compiling.tracing import tracing
from millrace.explain.fingerprint import describe_model
from millrace.explain.key import ObjectNumbers, key_of
from millrace.explain.walk import Description
from millrace.export.exported import Wanted
from millrace.export.exporting import Exports, why_not
from millrace.plan import LoopForm, Mode, Plan
from millrace.recomputation.costs import Chain, chains_seen
from millrace.recomputation.segments import boundaries_found
from millrace.records.compilation import ProgramKey
from millrace.replicas.programs import ReplicaProgramBuilder
from millrace.steps.program import Program
from millrace.steps.state import State

logger = logging.getLogger("millrace")


def reason_boundaries_rest(plan: Plan) -> str | None:
    """Returns why boundaries do nothing in the programs of a plan, None if they may act."""
    recompute = plan.recompute
    if plan.mode is not Mode.TRAIN:
        return None  # there is no backward, and nobody expects one
    if recompute is None:
        return (
            "backward keeps everything. Set mode='auto' in model.set_recomputation_options(): "
            "'none' is off, and a model in one piece cannot be run again as a whole."
        )
    if recompute.budget is not None or recompute.choice is not None:
        return "the budget chooses what is kept. Leave it out to choose by boundaries."
    if recompute.whole_stages:
        return (
            "each stage is run again as a whole. Set "
            "recomputation_mode='recompute_and_backpropagate_interleaved' and a schedule that goes "
            "with it."
        )
    return None


def say_if_boundaries_rest(plan: Plan, found: Sequence[str], model: str) -> bool:
    """Logs why boundaries that were found do nothing; returns whether it did."""
    reason = reason_boundaries_rest(plan) if found else None
    if reason is not None:
        logger.info("RecomputationCheckpoint in %r does nothing: %s", model, reason)
    return reason is not None


_WITH_STEPS = ("run", "accumulate")


class Executables:
    """Finds, loads or compiles the executable for a plan.

    What was exported elsewhere is loaded without a trace of the model, so nothing is traced before
    it is looked for.

    It belongs to one compiled function of one model, so what it must tell apart is the plan, the
    specs of the state, and the length of an unrolled program.
    """

    def __init__(
        self,
        model: keras.Model,
        log: CompileLog,
        identity: ObjectNumbers = (),
        exports: Exports | None = None,
    ):
        self._model = model
        self._log = log
        self._identity = identity  # of model and strategy, for the keys of programs
        self._exports = exports or Exports()
        self._descriptions: dict[Any, Description] = {}  # of the model as its steps are traced
        self._context: Any = None  # options of JAX when it was last asked
        self._contexts: dict[Any, int] = {}  # those that tracing depends on, numbered
        self._context_number = 0
        self._builders: dict[Any, ProgramBuilder | ReplicaProgramBuilder] = {}
        self._extra_flops: dict[Plan, float] = {}  # of plans with a budget
        self._has_said = False  # what its boundaries do not do
        self._chains: dict[Any, Chain | None] = {}  # of steps that millrace cuts into segments
        self._executables: dict[Any, Executable] = {}
        self._state: State | None = None  # the one whose specs we have
        self._specs: Any = None
        self._specs_key: Any = None
        # By identity of the plan: hashing a plan takes as long as a small step.
        self._recent: dict[Any, tuple[Plan, Executable]] = {}

    def knows(self, state: State) -> bool:
        """Whether this is the very state that an executable returned last."""
        return state is self._state

    def see(self, state: State) -> None:
        """Takes note of the state that the next executables are for."""
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
        """Takes note of a state with unchanged specs, so that `see` can recognize it."""
        self._state = state

    def forget(self) -> None:
        """Lets go of the state of a loop that has ended."""
        self._state = None

    def form(self, plan: Plan) -> LoopForm:
        """Returns the loop form of the plan's programs. Traces one step if it is new."""
        return self._loaded_form(plan) or self._builder(plan).form

    def taps_found(self, plan: Plan) -> bool:
        """Whether the model taps values that the plan's programs do not carry out."""
        # What taps is not exported.
        return self._loaded_form(plan) is None and self._builder(plan).taps_found

    def tap_room(self, plan: Plan) -> int | None:
        """Returns how many steps a call may have whose taps it returns; None: any number."""
        return None if self._loaded_form(plan) else self._builder(plan).tap_room

    def of_call(self, plan: Plan, call: Call) -> Executable:
        """Returns the program of a call."""
        return self._find(plan, call.program, call.unroll)

    def apply(self, plan: Plan) -> Executable:
        """Returns the program of an update."""
        return self._find(plan, "apply")

    def _loaded_form(self, plan: Plan) -> LoopForm | None:
        """Returns the loop form of a plan of which something can be loaded; None for any other."""
        if self._exports.loaded.is_empty or (plan, *self._now()) in self._builders:
            return None
        key = self._key(plan, "run")
        return None if why_not(plan, key) else self._exports.loaded.form(key)

    def _builder(self, plan: Plan) -> ProgramBuilder | ReplicaProgramBuilder:
        asked = plan
        if has_budget(plan):
            plan = with_choice(plan, 0)  # whatever is chosen, the steps are of one kind
        key = (plan, *self._now())
        if key not in self._builders:
            self._describe(plan)
            self._log.begin(f"{plan.mode.value}_run of {self._model.name!r}")
            make = ProgramBuilder if plan.replicas == 1 else ReplicaProgramBuilder
            with tracing(self._model), chains_seen() as chains, boundaries_found() as found:
                self._builders[key] = make(self._model, plan, self._specs)
            self._chains[key] = chains[0] if chains else None
            if not self._has_said:
                self._has_said = say_if_boundaries_rest(asked, found, self._model.name)
        return self._builders[key]

    def _chain(self, plan: Plan) -> Chain | None:
        """Returns what there is to choose from in a plan with a budget."""
        plan = with_choice(plan, 1)
        self._builder(plan)
        return self._chains[plan, *self._now()]

    def extra_flops(self, plan: Plan) -> float | None:
        """Returns the share of FLOPs that a budget has added to a step; None without a budget."""
        return self._extra_flops.get(plan) if has_budget(plan) else None

    def _find_within_budget(self, plan: Plan, name: str, unroll: int | None) -> Executable:
        if name not in _WITH_STEPS:
            return self._find(with_choice(plan, 0), name)
        executable, extra = within_budget(
            plan,
            self._chain(plan),
            lambda plan: self._find(plan, name, unroll),
            self._model.name,
            self._log,
        )
        self._extra_flops[plan] = max(extra, self._extra_flops.get(plan, 0.0))
        return executable

    def _find(self, plan: Plan, name: str, unroll: int | None = None) -> Executable:
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
        wanted = Wanted(self._key(plan, name, unroll), plan, unroll, layers, gaps)
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
        """Describes the model, before its step is traced: that may change what it looks like."""
        key = (plan, *self._now())
        if key not in self._descriptions:
            self._descriptions[key] = describe_model(self._model, plan.mode)
        return self._descriptions[key]

    def _now(self) -> tuple[Any, int]:
        """Returns what decides the steps of a plan besides the plan: state, options of JAX."""
        return self._specs_key, self._context_now()

    def _context_now(self) -> int:
        """Returns a number that is another one when tracing would give another program."""
        context = trace_options()
        if context != self._context:
            self._context = context
            options = tuple(tracing_options().items())
            self._context_number = self._contexts.setdefault(options, len(self._contexts))
        return self._context_number
