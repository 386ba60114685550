"""One iteration of a loop as a pure function of carried values and variables.

carry = (values, states)        iteration(carry, element) -> carry, Tapped
                                goes_on(carry)            -> truth value
"""

from collections.abc import Callable
from typing import Any

import jax

from millrace.api.own_loops.body import Body, Carried, loop_name, next_values, truth_of
from millrace.api.own_loops.chunk import IterationCarry
from millrace.api.own_loops.replication import holds_anywhere
from millrace.api.own_loops.scope import EnclosingLoop, Touched, VariableScope, in_body_of, look_at
from millrace.base.pytrees import ArrayTree, SpecTree
from millrace.programs.taps.taps import Tapped, collecting


class Iteration:
    """The body and the condition of a loop, with the variables that they touch."""

    def __init__(
        self,
        body: Callable[..., object],
        carried: Carried,
        condition: Callable[..., object] | None = None,
        element: SpecTree = None,
    ):
        """Traces both once, to find the variables.

        Args:
            body: of the user.
            carried: values that the loop carries.
            condition: of the user; None never ends the loop.
            element: specs of one element of the infeed; None without an infeed.

        Raises:
            LoopError: if body or condition do not fit the carried values and the element.
        """
        self.name = loop_name(body, condition)
        self.body, self.specs, self.element = Body(body), carried.specs, element
        self.condition = None if condition is None else Body(condition, "condition")
        self.body.check_arity(carried.values, element)
        if self.condition is not None:
            self.condition.check_arity(carried.values)
        self.loop = EnclosingLoop(is_counted=condition is None)
        self.touched: Touched = look_at(self._both, carried.specs, element)

    @property
    def tapped(self) -> Tapped:
        """Queues, and specs of their elements from one iteration."""
        return self.touched.tapped

    @property
    def goes_on(self) -> Callable[[IterationCarry], jax.Array] | None:
        """The condition as a function of the carry; None never ends the loop."""
        return None if self.condition is None else self._goes_on

    def __call__(self, carry: IterationCarry, element: ArrayTree) -> tuple[IterationCarry, Tapped]:
        """Runs the body once."""
        values, states = carry
        changed = self.touched.changed
        with VariableScope(zip(changed, states, strict=True)) as scope:
            new, tapped = collecting(self._next)(values, element)
            new_states = scope.values(changed)
        scope.refuse_others(changed)
        return (new, new_states), tapped

    def _goes_on(self, carry: IterationCarry) -> jax.Array:
        values, states = carry
        with VariableScope(zip(self.touched.changed, states, strict=True)) as scope:
            result = truth_of(self.condition(values))  # type: ignore[misc]
        scope.refuse_others(())
        # All replicas run the same iterations: each takes part in what the others exchange.
        return holds_anywhere(result)

    def _next(self, values: list[ArrayTree], element: ArrayTree) -> list[ArrayTree]:
        with in_body_of(self.loop):
            return next_values(self.body(values, element), self.specs)

    def _both(self, values: list[ArrayTree], element: ArrayTree) -> Any:
        result = self._next(values, element)
        return result, None if self.condition is None else truth_of(self.condition(values))


def specs_of(batches: ArrayTree) -> Any:
    """Returns the specs of one element of a block, whose leaves are `[capacity, ...]`."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), batches)
