"""Scopes that hold the values of Keras variables while a user's function is traced.

    compiled function     scope: every variable that it touches, as arguments of the program
      └─ body of a loop     scope: those that the body assigns, as part of the carry
           └─ value_and_grad  scope: those that it differentiates by

A scope asks the surrounding one for the values that it does not hold. So a variable that is only
read has the same value in all iterations of a loop, and one that is assigned is carried.

repeat(n, body)   body -> a requirement on n, noted in the trace: EnclosingLoop   n=10 is an error
"""

import itertools
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, TypeVar

import jax
import keras

from millrace._compat.jax_arrays import uncommitted
from millrace._compat.jax_tracing import trace_state
from millrace._compat.keras_optimizers import let_optimizers_be_made
from millrace._compat.keras_steps import current_scope, let_scopes_branch, stored_value
from millrace._compat.patches import hold, release
from millrace.api.own_loops.replication import holds_anywhere, watching_exchanges
from millrace.base.pytrees import ArrayTree, SpecTree
from millrace.base.threads.scoped_value import ScopedValue
from millrace.errors import ModelError, TapError, UnsupportedError
from millrace.programs.steps.ended_values import check_variable
from millrace.programs.taps.taps import Tapped, collecting

BranchResult = TypeVar("BranchResult")


@dataclass(frozen=True, slots=True)
class EnclosingLoop:
    """The loop whose body is being traced, and requirements of the body on it."""

    is_counted: bool  # whether the number of iterations is known before the first one
    # By name: each is called with a number of iterations before they run, and raises its error.
    requirements: dict[Hashable, Callable[[int], None]] = field(default_factory=dict)

    def check(self, iterations: int) -> None:
        """Checks a number of iterations."""
        for require in self.requirements.values():
            require(iterations)


_numbers = itertools.count(1)
_trace_number = jax.make_user_context(0)  # part of the key of what `jax.jit` has traced
_enclosing_loop = ScopedValue[EnclosingLoop | None](None)


def enclosing_loop() -> EnclosingLoop | None:
    """Returns the innermost loop whose body is being traced."""
    return _enclosing_loop.get()


def in_body_of(loop: EnclosingLoop | None) -> AbstractContextManager[Any]:
    """Makes `loop` the enclosing loop of the trace inside."""
    return _enclosing_loop.bound_to(loop)


class Context:
    """Facts about the trace of a whole program, for all scopes in it."""

    def __init__(
        self,
        outer: "Context | None" = None,
        looks_only: bool = False,
        is_program: bool = False,
        variables: Sequence[keras.Variable] = (),
    ):
        """Begins a trace.

        Args:
            outer: context of the surrounding trace.
            looks_only: whether the trace only finds variables, and will not run.
            is_program: whether it is the trace of a program, and not of a part of one.
            variables: that the program assigns.
        """
        self.looks_only, self.variables = looks_only, variables
        self._outer, self._is_program = outer, is_program
        self._queues: list[object] = list(outer._queues) if outer is not None else []
        self._trace = trace_state()
        self.has_driven_loops = False

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Surrounds the trace of the program.

        A function of `jax.jit` is traced in it anew: JAX would find the trace of a program that
        only looked, or that had other values in scope.
        """
        self._trace = trace_state()
        with _trace_number(next(_numbers)):
            yield

    @property
    def is_between_loops(self) -> bool:
        """Whether the trace is at a place of the program that is in no loop and no branch."""
        return self._is_program and self._trace == trace_state()

    def needs_host(self) -> None:
        """Notes that the program has loops that the host drives."""
        self.has_driven_loops = True
        if self._outer is not None:
            self._outer.needs_host()

    def claim(self, tapped: Tapped) -> None:
        """Reserves the queues that one loop enqueues into.

        Raises:
            TapError: if another loop of the program enqueues into one of them, too.
        """
        for queue in tapped.keys:
            if any(queue is other for other in self._queues):
                raise TapError(
                    f"{queue!r} takes values from one place in each program, and got a second "
                    "one. Use a separate queue for each loop."
                )
            self._queues.append(queue)


class VariableScope(keras.StatelessScope):
    """Gives variables the values of a trace, and records which of them are read and assigned."""

    def __init__(
        self,
        values: Iterable[tuple[keras.Variable, ArrayTree]] = (),
        context: Context | None = None,
    ) -> None:
        # Losses that layers add are collected, so that `model.losses` has them in the body.
        builds = context is not None and context.looks_only
        super().__init__(collect_losses=True, initialize_variables=builds)
        self._held = {id(variable): value for variable, value in values}
        self._own_context = context
        self._outer: keras.StatelessScope | None = None
        self.read: dict[int, keras.Variable] = {}  # whose values are not held here
        self.assigned: dict[int, keras.Variable] = {}
        self.meets_new = False  # a variable that has no value before the trace is over

    def __enter__(self) -> "VariableScope":
        self._outer = current_scope()
        hold(self)
        let_scopes_branch()
        let_optimizers_be_made()
        return super().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        release(self)

    @property
    def context(self) -> Context | None:
        """The context of the program; None inside of a trace that is not millrace's."""
        return self._own_context or context_of(self._outer)

    def get_current_value(self, variable: keras.Variable) -> Any:
        """Returns the current value of `variable`, held here or in the surrounding scope."""
        key = id(variable)
        if key in self._held:
            return self._held[key]
        self.read[key] = variable
        if self._outer is not None:
            value = self._outer.get_current_value(variable)
            if value is not None:
                return value
        value = stored_value(variable)
        if value is None:
            self.meets_new = True  # the trace is repeated: only the shape of this value counts
            return jax.numpy.zeros(variable.shape, variable.dtype)
        return value

    def add_update(self, update: tuple[keras.Variable, ArrayTree]) -> None:
        """Assigns a variable a new value, given the pair."""
        variable, value = update
        self.assigned[id(variable)] = variable
        self._held[id(variable)] = value

    def values(self, variables: Iterable[keras.Variable]) -> list[Any]:
        """Returns the current values of variables, each of its variable's dtype."""
        values = []
        for variable in variables:
            value = self.get_current_value(variable)
            if value is None:  # just created: Keras has a placeholder in the first trace
                value = variable.value
            check_variable(partial("Variable {!r}".format, variable.path), value)
            values.append(jax.lax.convert_element_type(value, variable.dtype))
        return values

    def branch(
        self,
        cond: Callable[..., Any],
        pred: jax.Array,
        true_fn: Callable[[], BranchResult],
        false_fn: Callable[[], BranchResult],
    ) -> BranchResult:
        """Runs `keras.ops.cond`; both branches return the variables that either assigns.

        A replica takes part in what the others exchange in a branch: where they differ, all run
        both branches, and each selects its results.
        """
        with watching_exchanges() as exchanges:
            looks = look_at(true_fn), look_at(false_fn)
        if any(look.has_driven_loops for look in looks):
            refuse_driven_loop("a branch of keras.ops.cond")
        changed = list({id(v): v for look in looks for v in look.changed}.values())

        def with_states(
            function: Callable[[], BranchResult],
        ) -> Callable[[], tuple[BranchResult, list[Any]]]:
            def run() -> tuple[BranchResult, list[Any]]:
                with VariableScope() as scope:
                    return function(), scope.values(changed)

            return run

        branches = with_states(true_fn), with_states(false_fn)

        def selected() -> tuple[BranchResult, list[Any]]:
            return jax.tree.map(lambda a, b: jax.numpy.where(pred, a, b), *(f() for f in branches))

        if exchanges:
            result, states = cond(holds_anywhere(pred), selected, branches[1])
        else:
            result, states = cond(pred, *branches)
        for variable, state in zip(changed, states, strict=True):
            variable.assign(state)
        return result

    def refuse_others(self, expected: Iterable[keras.Variable]) -> None:
        """Refuses assignments to other variables than in the first trace of a function.

        Raises:
            ModelError: if the function has assigned one.
        """
        expected_ids = {id(variable) for variable in expected}
        others = [v.path for key, v in self.assigned.items() if key not in expected_ids]
        if others:
            raise ModelError(
                f"The function assigns the variables {others}, which it did not assign when it "
                "was traced first. The variables that a compiled function assigns must not depend "
                "on Python values that change: create layers, metrics and optimizers outside of "
                "it."
            )


def refuse_driven_loop(place: str) -> NoReturn:
    """Raises UnsupportedError for a loop with queues in a place that the host cannot reach."""
    raise UnsupportedError(
        f"A loop with an infeed or an outfeed queue is driven by the host, and this one is in "
        f"{place}, which runs on the device as a whole. Call the loop in the function of "
        "millrace.compile() itself or in the body of another loop of millrace, or on its own; "
        "choose between two loops in Python."
    )


def value_of(variable: keras.Variable) -> Any:
    """Returns a variable's value in the type that it has after an assignment.

    The first value of a variable may be of a weak type, as Python numbers are, for which JAX would
    trace a function once more.
    """
    value = variable.value
    weak = getattr(value, "weak_type", False)
    return jax.lax.convert_element_type(value, variable.dtype) if weak else value


def put(variables: Iterable[keras.Variable], values: Iterable[jax.Array]) -> None:
    """Assigns variables the values that a program has returned for them."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(uncommitted(value))


def context_of(scope: keras.StatelessScope | None) -> Context | None:
    """Returns the context of a scope; None for Keras's own scopes and outside of all scopes."""
    return scope.context if isinstance(scope, VariableScope) else None


_assigned: "weakref.WeakValueDictionary[int, keras.Variable]" = weakref.WeakValueDictionary()


def assigned_by_loops() -> list[keras.Variable]:
    """Returns the variables of this process that loops and compiled functions assign."""
    return list(_assigned.values())


def forget_assigned() -> None:
    """Forgets these variables: those of loops that are traced afterwards count again."""
    _assigned.clear()


class Touched:
    """Results, taps and variables of a function, as its first trace finds them."""

    def __init__(
        self, result: SpecTree, tapped: Tapped, scope: VariableScope, has_driven_loops: bool = False
    ):
        self.result: Any = result
        self.tapped = tapped  # of specs
        self.has_driven_loops = has_driven_loops  # which the host drives
        self.changed = list(scope.assigned.values())
        _assigned.update(scope.assigned)
        changed = set(scope.assigned)
        self.fixed = [v for key, v in scope.read.items() if key not in changed]


def look_at(function: Callable[..., object], *specs: SpecTree, is_program: bool = False) -> Touched:
    """Traces a function without keeping the program, to find the variables that it touches.

    Layers and optimizers that are not built build themselves here. Variables that they create have
    values only afterwards, so the function is then traced again.

    Args:
        function: of arrays.
        *specs: of its arguments.
        is_program: whether it becomes a program of its own.

    Raises:
        ModelError: if every trace creates new variables.
    """
    for _ in range(5):  # a model, then its optimizer, then wrappers with variables like theirs
        context = Context(context_of(current_scope()), looks_only=True, is_program=is_program)
        scope = VariableScope(context=context)
        with scope:
            result, tapped = _shapes(collecting(function), specs, context)
        if not scope.meets_new or current_scope() is not None:
            return Touched(result, tapped, scope, context.has_driven_loops)
    raise ModelError(
        "The function creates new variables whenever it is called. Create layers, metrics and "
        "optimizers outside of it."
    )


def _shapes(function: Callable[..., object], specs: tuple[SpecTree, ...], context: Context) -> Any:
    def begun(*arguments: ArrayTree) -> object:
        with context.begun():
            return function(*arguments)

    try:
        return jax.eval_shape(begun, *specs)
    except ValueError as error:
        if "while in a stateless scope" not in str(error):
            raise
        raise ModelError(
            "A variable with an initial value was created while a function was traced, which "
            "Keras does not support. Build the model or the optimizer before: "
            "model.build(input_shape), or optimizer.build(model.trainable_variables)."
        ) from error
