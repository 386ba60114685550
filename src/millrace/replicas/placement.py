"""A model's state on its devices, and back in the form in which Keras keeps it.

Keras     weights, state, optimizer, metrics
programs  the same on one device; with replicas each value laid out over them, and metrics
          as [replicas, ...] followed by their sums, which are those that Keras gets back
"""

from typing import Any

import jax
import numpy as np

from millrace.devices import put_on
from millrace.plan import ROLES, Mode, Plan
from millrace.replicas.state import layout_of
from millrace.steps.state import State, Values


def specs_of_programs(plan: Plan, specs: State) -> State:
    """Returns the specs of a state of Keras as programs take it."""
    if plan.replicas == 1 or "metric" not in ROLES[plan.mode]:
        return specs
    *others, metrics = specs
    parts = [jax.ShapeDtypeStruct((plan.replicas, *m.shape), m.dtype) for m in metrics]
    return (*others, Values((*parts, *metrics)))


class Placement:
    """Lays out the state of one mode of one model."""

    def __init__(self, plan: Plan):
        self._plan = plan
        self._outer: State | None = None  # what Keras was given last
        self._inner: State | None = None  # that, as programs take it
        self._sums: tuple[Any, ...] = ()  # of metrics, as Keras was given them
        self._parts: tuple[Any, ...] = ()  # what they are the sums of

    def enter(self, state: State) -> State:
        """Returns a state of Keras as programs take it."""
        plan = self._plan
        if plan.replicas == 1:
            layouts = self._layouts_of(state)
            if all(map(_lies, jax.tree.leaves(state), jax.tree.leaves(layouts))):
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
        """Returns a state of programs as Keras keeps it."""
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
        """Lets go of the state of a loop that has ended."""
        self._outer = self._inner = None
        self._sums = self._parts = ()

    def _layouts_of(self, state: State) -> State:
        """Returns how the values of one replica lie."""
        plan = self._plan
        return tuple(
            Values(layout_of(plan, role, value) for value in values)
            for role, values in zip(ROLES[plan.mode], state, strict=True)
        )

    def _metrics(self, values: Values) -> Values:
        """Gives metrics to the replicas: the first goes on from them, the others begin at zero."""
        group = self._plan.group
        if len(values) == len(self._sums) and all(
            value is known for value, known in zip(values, self._sums, strict=True)
        ):
            return Values((*self._parts, *self._sums))
        parts = []
        for value in values:
            spread = np.zeros((group.replicas, *value.shape), value.dtype)
            spread[0] = np.asarray(value)
            parts.append(put_on(spread, group.split(0)))
        return Values((*parts, *(put_on(value, group.whole) for value in values)))


def _lies(value: Any, layout: jax.sharding.Sharding) -> bool:
    """Whether a value is on the one device of a layout, in the same memory."""
    there = value.sharding
    return there.device_set == layout.device_set and there.memory_kind == layout.memory_kind
