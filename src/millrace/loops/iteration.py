"""One turn of a loop as a pure function: carried values and variables in, and out again.

carry = (values, states)        turn(carry, element) -> carry, Tapped
                                goes_on(carry)       -> truth value
"""

from collections.abc import Callable
from typing import Any

import jax

from millrace.loops.body import Body, Carried, next_values, truth_of
from millrace.loops.replication import holds_anywhere
from millrace.loops.scope import LoopAround, Touched, VariableScope, inside, look_at
from millrace.taps.taps import Tapped, collecting

Carry = tuple[list[Any], list[Any]]


class Turn:
    """A body and, where the loop has one, its condition, with the variables that they touch."""

    def __init__(
        self,
        body: Callable[..., Any],
        carried: Carried,
        condition: Callable[..., Any] | None = None,
        element: Any = None,
    ):
        """Looks at both once.

        Args:
            body: of the user.
            carried: what goes round.
            condition: of the user; None goes on for ever.
            element: specs of one element of the infeed; None if there is none.

        Raises:
            LoopError: if they do not fit what is carried.
        """
        self._body, self._specs = Body(body), carried.specs
        self._condition = None if condition is None else Body(condition, "condition")
        self._body.check_arity(carried.values, element)
        if self._condition is not None:
            self._condition.check_arity(carried.values)
        self.around = LoopAround(is_counted=condition is None)
        self.touched: Touched = look_at(self._both, carried.specs, element)

    @property
    def tapped(self) -> Tapped:
        """What one turn carries out: queues, and specs of what they take."""
        return self.touched.tapped

    @property
    def goes_on(self) -> Callable[[Carry], Any] | None:
        """The condition as a function of what is carried; None goes on for ever."""
        return None if self._condition is None else self._goes_on

    def __call__(self, carry: Carry, element: Any) -> tuple[Carry, Tapped]:
        """Runs the body once."""
        values, states = carry
        changed = self.touched.changed
        with VariableScope(zip(changed, states, strict=True)) as scope:
            new, tapped = collecting(self._next)(values, element)
            new_states = scope.values(changed)
        scope.refuse_others(changed)
        return (new, new_states), tapped

    def _goes_on(self, carry: Carry) -> Any:
        values, states = carry
        with VariableScope(zip(self.touched.changed, states, strict=True)) as scope:
            result = truth_of(self._condition(values))  # type: ignore[misc]
        scope.refuse_others(())
        # All replicas make the same turns: what they give each other in one comes from all.
        return holds_anywhere(result)

    def _next(self, values: list[Any], element: Any) -> list[Any]:
        with inside(self.around):
            return next_values(self._body(values, element), self._specs)

    def _both(self, values: list[Any], element: Any) -> Any:
        result = self._next(values, element)
        return result, None if self._condition is None else truth_of(self._condition(values))


def specs_of(batch: Any) -> Any:
    """Returns specs of the elements that a block has stacked."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), batch)
