"""Conversion of a state between the form that Keras keeps and the form that programs take.

Keras     weights, state, optimizer, metrics
programs  the same on one device; with replicas each value laid out over them, and metrics
          as [replicas, ...] followed by their sums, which go back to Keras
"""

import jax
import numpy as np

from millrace.devices import put_on
from millrace.plan import ROLES, Mode, Plan
from millrace.replicas.state import layout_of
from millrace.steps.state import State, Values


def specs_of_programs(plan: Plan, specs: State) -> State:
    """Returns the specs of a state of Keras in the form that programs take."""
    if plan.replicas == 1 or "metric" not in ROLES[plan.mode]:
        return specs
    *others, metrics = specs
    parts = [jax.ShapeDtypeStruct((plan.replicas, *m.shape), m.dtype) for m in metrics]
    return (*others, Values((*parts, *metrics)))


class Placement:
    """Converts the states of one mode of one model."""

    def __init__(self, plan: Plan):
        self._plan = plan
        self._outer: State | None = None  # the state that Keras received last
        self._inner: State | None = None  # the same in the form that programs take
        self._sums: tuple[jax.Array, ...] = ()  # metrics that Keras received last
        self._parts: tuple[jax.Array, ...] = ()  # the same of each replica, `[replicas, ...]`

    def enter(self, state: State) -> State:
        """Returns a state of Keras in the form that programs take."""
        plan = self._plan
        if plan.replicas == 1:
            layouts = self._layouts_of(state)
            if all(map(_is_placed, jax.tree.leaves(state), jax.tree.leaves(layouts))):
                return state
            return jax.tree.map(put_on, state, layouts)
        if state is self._outer and self._inner is not None:
            return self._inner
        inner = []
        for role, values in zip(ROLES[plan.mode], state, strict=True):
            if role == "metric":
                inner.append(self._metrics(values))
            else:
                inner.append(Values(put_on(v, layout_of(plan, role, v)) for v in values))
        return tuple(inner)

    def leave(self, inner: State) -> State:
        """Returns a state of programs in the form that Keras keeps."""
        if self._plan.replicas == 1:
            return inner
        outer = inner
        if self._plan.mode is not Mode.PREDICT:
            half = len(inner[-1]) // 2
            metrics = tuple(inner[-1])
            self._parts, self._sums = metrics[:half], metrics[half:]
            outer = (*inner[:-1], Values(self._sums))
        self._outer, self._inner = outer, inner
        return outer

    def release(self) -> None:
        """Releases the state of a loop that has ended."""
        self._outer = self._inner = None
        self._sums = self._parts = ()

    def _layouts_of(self, state: State) -> State:
        """Returns the layouts of the values of a model without replicas."""
        plan = self._plan
        return tuple(
            Values(layout_of(plan, role, value) for value in values)
            for role, values in zip(ROLES[plan.mode], state, strict=True)
        )

    def _metrics(self, values: Values) -> Values:
        """Divides metrics among replicas: the first goes on from them, the others begin at zero."""
        group = self._plan.group
        if len(values) == len(self._sums) and all(
            value is last for value, last in zip(values, self._sums, strict=True)
        ):
            return Values((*self._parts, *self._sums))
        parts = []
        for value in values:
            spread = np.zeros((group.replicas, *value.shape), value.dtype)
            spread[0] = np.asarray(value)
            parts.append(put_on(spread, group.split(0)))
        return Values((*parts, *(put_on(value, group.whole) for value in values)))


def _is_placed(value: jax.Array, layout: jax.sharding.Sharding) -> bool:
    """Whether a value is on the one device of a layout, in the same memory."""
    current = value.sharding
    return current.device_set == layout.device_set and current.memory_kind == layout.memory_kind
