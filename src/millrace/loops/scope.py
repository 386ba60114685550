"""Where Keras variables read and write while a function of the user's is traced.

repeat(n, body)   body -> optimizer.apply -> needs_multiple_of(4)      n % 4 is an error

    compiled function     scope: every variable that is touched, as arguments of the program
      └─ body of a loop     scope: those that the body assigns, as what the loop carries
           └─ value_and_grad  scope: those to differentiate by

What a scope does not hold it asks the scope around it for. So a variable that is only read is the
same value for all turns of a loop, and one that is assigned goes round.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import jax
import keras

from millrace._compat.jax_arrays import uncommitted
from millrace._compat.jax_tracing import trace_state
from millrace._compat.keras_optimizers import let_optimizers_be_made
from millrace._compat.keras_scope import current_scope, let_scopes_branch, stored_value
from millrace._compat.patches import hold, release
from millrace.errors import ModelError, PlanError, TapError
from millrace.taps.taps import Tapped, collecting
from millrace.threads.scoped_value import ScopedValue


class LoopAround:
    """What the body of a loop has asked of it."""

    def __init__(self, is_counted: bool):
        """Begins with nothing.

        Args:
            is_counted: whether the number of turns is known before the first one.
        """
        self.is_counted = is_counted
        self._windows: list[int] = []

    def needs_multiple_of(self, turns: int) -> None:
        """Takes note that the number of turns must be a multiple."""
        if turns not in self._windows:
            self._windows.append(turns)

    @property
    def windows(self) -> tuple[int, ...]:
        """What the number of turns must be a multiple of."""
        return tuple(self._windows)

    def check(self, turns: int) -> None:
        """Checks a number of turns.

        Raises:
            PlanError: if it is no multiple of what the body needs.
        """
        for window in self._windows:
            if turns % window:
                fitting = max(turns // window, 1) * window
                raise PlanError(
                    f"A loop of {turns} turns accumulates the gradients of {window} turns for "
                    f"each update, and {turns} is no multiple of {window}. Set n={fitting} in "
                    "repeat(), or another number of mini-batches in the optimizer."
                )


_around = ScopedValue[LoopAround | None](None)


def loop_around() -> LoopAround | None:
    """Returns the innermost loop of the user's whose body is being traced."""
    return _around.get()


def inside(loop: LoopAround | None) -> AbstractContextManager[Any]:
    """Says that the body of a loop is traced inside."""
    return _around.bound_to(loop)


class Context:
    """What one trace of a whole program knows, whatever scopes there are in it."""

    def __init__(
        self,
        outer: "Context | None" = None,
        looks_only: bool = False,
        exchanges: list[Any] | None = None,
    ):
        """Begins a trace.

        Args:
            outer: that of the trace around.
            looks_only: to find variables: what is traced will not run.
            exchanges: with the host, of the loops in the program. JAX may trace a program again,
                for another device say, and its loops must then find those that they had.
        """
        self.looks_only = looks_only
        self._exchanges = [] if exchanges is None else exchanges
        self._met = 0
        self._queues: list[Any] = list(outer._queues) if outer is not None else []
        self._trace = trace_state()
        self.turns: list[tuple[Any, LoopAround]] = []  # numbers to be checked after the run

    def exchange(self, make: Callable[[], Any]) -> Any:
        """Returns the exchange of the loop that is being traced."""
        if self._met == len(self._exchanges):
            self._exchanges.append(make())
        self._met += 1
        return self._exchanges[self._met - 1]

    def checked(self, turns: Any, loop: LoopAround) -> Any:
        """Returns a number of turns that the program computes: 0 if the loop must not make these.

        The program returns the number, too, and its caller raises. A loop within a loop cannot
        return one, and makes the turns that it is told to.
        """
        if self._trace != trace_state() or not loop.windows:
            return turns
        self.turns.append((turns, loop))
        for window in loop.windows:
            turns = jax.numpy.where(turns % window, 0, turns)
        return turns

    def claim(self, tapped: Tapped) -> None:
        """Takes note of the queues that one loop enqueues.

        Raises:
            TapError: if another loop of the program enqueues one of them, too.
        """
        for queue in tapped.keys:
            if any(queue is other for other in self._queues):
                raise TapError(
                    f"{queue!r} takes values from one place of each program, and got a second "
                    "one. Use a queue for each loop."
                )
            self._queues.append(queue)


class VariableScope(keras.StatelessScope):
    """Gives variables the values of a trace, and takes note of those that are touched."""

    def __init__(
        self, values: Iterable[tuple[Any, Any]] = (), context: Context | None = None
    ) -> None:
        # Losses that layers add are collected, so that `model.losses` has them in the body.
        builds = context is not None and context.looks_only
        super().__init__(collect_losses=True, initialize_variables=builds)
        self._held = {id(variable): value for variable, value in values}
        self._own_context = context
        self._around: Any = None
        self.read: dict[int, Any] = {}  # variables whose value was asked for outside
        self.assigned: dict[int, Any] = {}
        self.meets_new = False  # a variable that has no value before the trace is over

    def __enter__(self) -> "VariableScope":
        self._around = current_scope()
        hold(self)
        let_scopes_branch()
        let_optimizers_be_made()
        return super().__enter__()

    def __exit__(self, *failure: Any) -> None:
        super().__exit__(*failure)
        release(self)

    @property
    def context(self) -> Context | None:
        """That of the program; None inside of a trace that is not ours."""
        return self._own_context or context_of(self._around)

    def get_current_value(self, variable: Any) -> Any:
        """Returns the value that `variable` has now, here or in the scope around."""
        key = id(variable)
        if key in self._held:
            return self._held[key]
        self.read[key] = variable
        if self._around is not None:
            value = self._around.get_current_value(variable)
            if value is not None:
                return value
        value = stored_value(variable)
        if value is None:
            self.meets_new = True
        return value

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Gives a variable a new value."""
        variable, value = update
        self.assigned[id(variable)] = variable
        self._held[id(variable)] = value

    def values(self, variables: Iterable[Any]) -> list[Any]:
        """Returns the values of variables now, each of its variable's dtype."""
        found = []
        for variable in variables:
            value = self.get_current_value(variable)
            if value is None:  # just created: Keras has a placeholder, while we are only looking
                value = variable.value
            found.append(jax.lax.convert_element_type(value, variable.dtype))
        return found

    def branch(
        self,
        cond: Callable[..., Any],
        pred: Any,
        true_fn: Callable[[], Any],
        false_fn: Callable[[], Any],
    ) -> Any:
        """Runs a conditional of Keras's; what its branches assign are results of both."""
        looks = look_at(true_fn), look_at(false_fn)
        changed = list({id(v): v for look in looks for v in look.changed}.values())

        def with_states(function: Callable[[], Any]) -> Callable[[], Any]:
            def run() -> Any:
                with VariableScope() as scope:
                    return function(), scope.values(changed)

            return run

        result, states = cond(pred, with_states(true_fn), with_states(false_fn))
        for variable, state in zip(changed, states, strict=True):
            variable.assign(state)
        return result

    def refuse_others(self, known: Iterable[Any]) -> None:
        """Refuses variables that the first look at a function has not met.

        Raises:
            ModelError: if the function has assigned one.
        """
        found = {id(variable) for variable in known}
        others = [v.path for key, v in self.assigned.items() if key not in found]
        if others:
            raise ModelError(
                f"Variables {others} were assigned when the function was traced, and not when it "
                "was looked at before. What a compiled function assigns must not depend on "
                "Python values that change: create layers, metrics and optimizers outside of it."
            )


def value_of(variable: Any) -> Any:
    """Returns a variable's value as it is after an assignment, for which nothing is traced anew.

    The first value of a variable may be of a weak type, as Python numbers are.
    """
    value = variable.value
    weak = getattr(value, "weak_type", False)
    return jax.lax.convert_element_type(value, variable.dtype) if weak else value


def put(variables: Iterable[Any], values: Iterable[Any]) -> None:
    """Gives variables the values that a program has returned for them."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(uncommitted(value))


def context_of(scope: Any) -> Context | None:
    """Returns the context of a scope; None for one of Keras's own, and for none."""
    return scope.context if isinstance(scope, VariableScope) else None


class Touched:
    """What a first look at a function finds: its results, its variables and what it taps."""

    def __init__(self, result: Any, tapped: Tapped, scope: VariableScope):
        self.result = result  # specs
        self.tapped = tapped  # of specs
        self.changed = list(scope.assigned.values())
        changed = set(scope.assigned)
        self.fixed = [v for key, v in scope.read.items() if key not in changed]


def look_at(function: Callable[..., Any], *specs: Any) -> Touched:
    """Traces a function without keeping the program, to find out which variables it touches.

    Layers and optimizers that are not built build themselves here. Variables that they make have
    values only afterwards, so the function is then looked at again.
    """
    for _ in range(5):  # a model, then its optimizer, then what is made of their variables
        context = Context(context_of(current_scope()), looks_only=True)
        scope = VariableScope(context=context)
        with scope:
            result, tapped = _shapes(collecting(function), specs)
        if not scope.meets_new or current_scope() is not None:
            return Touched(result, tapped, scope)
    raise ModelError(
        "The function makes new variables whenever it is called. Create layers, metrics and "
        "optimizers outside of it."
    )


def _shapes(function: Callable[..., Any], specs: tuple[Any, ...]) -> Any:
    try:
        return jax.eval_shape(function, *specs)
    except ValueError as error:
        if "while in a stateless scope" not in str(error):
            raise
        raise ModelError(
            "A variable with a value of its own was made while a function was traced, which "
            "Keras cannot do. Build what makes it before: "
            "optimizer.build(model.trainable_variables), or model.build(input_shape)."
        ) from error
