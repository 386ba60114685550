"""The layout of a model's state on the devices of its replicas.

    weights, state       whole on each device
    metrics              one set of values for each replica: [replicas, ...], and their sum
    with sharding        optimizer state, or weights too, in equal parts along one axis

The two kinds of sharding are the first and the third stage of ZeRO (Rajbhandari et al. 2020,
arXiv 1910.02054): weights are gathered when the micro-batches of an update begin, gradients arrive
in parts, and each device updates its own part.

Keras     weights, state, optimizer, metrics
programs  the same on one device; with replicas each value laid out over them, and metrics
          as [replicas, ...] followed by their sums, which go back to Keras
"""

from collections.abc import Iterable, Sequence

import jax
import numpy as np

from millrace.base.devices import put_on
from millrace.programs.plan import ROLES, Mode, Plan
from millrace.programs.steps.offload import Shaped, Tree, host_layout
from millrace.programs.steps.state import State, Values


def own_part(values: Iterable[jax.Array]) -> list[jax.Array]:
    """Returns this replica's values without the axis of replicas, which is `[1, ...]` here."""
    return [value[0] for value in values]


def with_axis(values: Tree) -> Tree:
    """Returns one replica's values with the axis of replicas, `[1, ...]`."""
    return jax.tree.map(lambda value: value[None], values)


def whole_spec(plan: Plan, spec: Shaped) -> jax.ShapeDtypeStruct:
    """Returns the spec of a value that is whole on every replica."""
    return jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=plan.group.whole)


def split_spec(plan: Plan, spec: Shaped) -> jax.ShapeDtypeStruct:
    """Returns the spec of the values of all replicas, `[replicas, ...]`, from that of one."""
    shape = (plan.replicas, *spec.shape)
    return jax.ShapeDtypeStruct(shape, spec.dtype, sharding=plan.group.split(0))


def shared_axis(shape: tuple[int, ...], replicas: int) -> int | None:
    """Returns the first axis that replicas can divide equally; None if there is none."""
    return next((axis for axis, size in enumerate(shape) if size and size % replicas == 0), None)


def axis_of(plan: Plan, role: str, shape: tuple[int, ...]) -> int | None:
    """Returns the axis along which a value of the state is sharded; None if it is whole."""
    replication = plan.replication
    is_sharded = {
        "trainable": replication.shard_weights,
        "optimizer": replication.shard_optimizer_state,
    }
    return shared_axis(shape, plan.replicas) if is_sharded.get(role) else None


def layout_of(plan: Plan, role: str, value: Shaped) -> jax.sharding.Sharding:
    """Returns the layout of a value of the state between updates, on the devices or the host.

    Args:
        plan: describes the programs.
        role: role of the value in the state.
        value: array or spec.
    """
    axis = axis_of(plan, role, tuple(value.shape))
    layout = plan.group.whole if axis is None else plan.group.split(axis)
    return host_layout(plan, role, value, layout) or layout


def layouts(plan: Plan, state: State) -> State:
    """Returns the layout of each value of a state in the form that programs take."""
    state_layouts: list[Values] = []
    for role, values in zip(ROLES[plan.mode], state, strict=True):
        if role == "metric":
            half = len(values) // 2
            state_layouts.append(Values([plan.group.split(0)] * half + [plan.group.whole] * half))
        else:
            state_layouts.append(Values(layout_of(plan, role, value) for value in values))
    return tuple(state_layouts)


def of_one_replica(plan: Plan, state: State) -> State:
    """Returns the specs of the part of a state that one replica's step takes."""
    return tuple(
        Values(list(values)[len(values) // 2 :]) if role == "metric" else values
        for role, values in zip(ROLES[plan.mode], state, strict=True)
    )


def specs_of(plan: Plan, state: State) -> State:
    """Returns the specs of a state, with the layouts of its values."""
    return jax.tree.map(
        lambda value, sharding: jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding),
        state,
        layouts(plan, state),
    )


def merged_metrics(parts: Sequence[jax.Array]) -> list[jax.Array]:
    """Adds up the metric states of the replicas: in Keras these are sums and counts."""
    return [value.sum(axis=0, dtype=value.dtype) for value in parts]


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
        self._resumed: Sequence[np.ndarray] = ()  # likewise, of a checkpoint

    @property
    def parts(self) -> tuple[jax.Array, ...]:
        """The metrics of each replica, `[replicas, ...]`, as they were; none without replicas."""
        return self._parts

    def resume(self, parts: Sequence[np.ndarray]) -> None:
        """Lets the next state that comes from elsewhere continue with these metrics."""
        self._resumed = parts

    def enter(self, state: State) -> State:
        """Returns a state of Keras in the form that programs take."""
        plan = self._plan
        if plan.replicas == 1:
            current = [value.sharding for value in jax.tree.leaves(state)]
            layouts = self._layouts_of(state)
            if all(map(_is_placed, current, jax.tree.leaves(layouts))):
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
        """Divides metrics among replicas: the first gets them, the others begin at zero."""
        group = self._plan.group
        if len(values) == len(self._sums) and all(
            value is last for value, last in zip(values, self._sums, strict=True)
        ):
            return Values((*self._parts, *self._sums))
        resumed, self._resumed = self._resumed, ()
        if [part.shape for part in resumed] == [(group.replicas, *v.shape) for v in values]:
            spreads = [put_on(part, group.split(0)) for part in resumed]
            return Values((*spreads, *(put_on(value, group.whole) for value in values)))
        parts = []
        for value in values:
            spread = np.zeros((group.replicas, *value.shape), value.dtype)
            spread[0] = np.asarray(value)
            parts.append(put_on(spread, group.split(0)))
        return Values((*parts, *(put_on(value, group.whole) for value in values)))


def _is_placed(current: jax.sharding.Sharding, layout: jax.sharding.Sharding) -> bool:
    """Whether a value is on the one device of a layout, in the same memory."""
    return current.device_set == layout.device_set and current.memory_kind == layout.memory_kind
