"""The layout of a model's state on the devices of its replicas.

    weights, state       whole on each device
    metrics              one set of values for each replica: [replicas, ...], and their sum
    with sharding        optimizer state, or weights too, in equal parts along one axis

The two kinds of sharding are the first and the third stage of ZeRO (Rajbhandari et al. 2020,
arXiv 1910.02054): weights are gathered when the micro-batches of an update begin, gradients arrive
in parts, and each device updates its own part.

Keras     weights, state, optimizer, metrics
programs  the same on one device; with replicas each value laid out over them, and the metrics of
          each replica, [replicas, ...], beside their sums, which go back to Keras
"""

import operator
from collections.abc import Iterable, Sequence
from functools import partial

import jax
import numpy as np

from millrace.base.devices import DeviceGroup, put_on
from millrace.base.pytrees import Array
from millrace.programs.plan import Plan
from millrace.programs.steps.offload import Shaped, host_layout
from millrace.programs.steps.state import State


def shared_axis(shape: tuple[int, ...], replicas: int) -> int | None:
    """Returns the first axis that replicas can divide equally; None if there is none."""
    # Any axis would do, so the first is a choice. What has none, such as a bias of 10 on eight
    # replicas, stays whole: it is mostly small, and parts with padding would be another program.
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
    if role == "metric_parts":
        return plan.group.split(0)
    # Sharding changes the layout of arguments and results, and nothing in the program: XLA divides
    # the same update, and puts in the exchanges that this takes.
    axis = axis_of(plan, role, tuple(value.shape))
    layout = plan.group.whole if axis is None else plan.group.split(axis)
    return host_layout(plan, role, value, layout) or layout


def layouts(plan: Plan, state: State) -> State:
    """Returns the layout of each value of a state in the form that programs take."""
    return state.map(partial(layout_of, plan))


def specs_of(plan: Plan, state: State) -> State:
    """Returns the specs of a state, with the layouts of its values."""
    return jax.tree.map(
        lambda value, sharding: jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding),
        state,
        layouts(plan, state),
    )


def specs_of_programs(plan: Plan, specs: State) -> State:
    """Returns the specs of a state of Keras in the form that programs take."""
    if plan.replicas == 1:
        return specs
    parts = [jax.ShapeDtypeStruct((plan.replicas, *m.shape), m.dtype) for m in specs.metric]
    return specs.replace(metric_parts=parts)


def spread(
    value: Array, group: DeviceGroup, role: str, resumed: np.ndarray | None = None
) -> jax.Array:
    """Returns a value of each replica, `[replicas, ...]`, that begins with one of Keras.

    Of a metric, whose values are sums and counts, only the first replica gets it, and the others
    begin at zero.

    Args:
        value: of Keras.
        group: a device for each replica.
        role: of the value in the state.
        resumed: values of the replicas in a checkpoint; unused if these were of other replicas.
    """
    shape = (group.replicas, *value.shape)
    # From the sums alone, as a checkpoint had them first, the first replica would continue with
    # those of all: the running means of a resumed epoch were then rounded otherwise, and the last
    # digit of its losses was another one than in a training without a break.
    if resumed is not None and resumed.shape == shape:
        return put_on(resumed, group.split(0))
    values = np.broadcast_to(np.asarray(value), shape).copy()
    if role == "metric":
        values[1:] = 0
    return put_on(values, group.split(0))


class Placement:
    """Converts the states of one mode of one model."""

    def __init__(self, plan: Plan):
        self._plan = plan
        self._outer: State | None = None  # the state that Keras received last
        self._inner: State | None = None  # the same in the form that programs take
        self._resumed: Sequence[np.ndarray] = ()  # metrics of each replica, of a checkpoint
        self._placed: list[jax.sharding.Sharding] = []  # of a state that was in place

    @property
    def parts(self) -> tuple[jax.Array, ...]:
        """The metrics of each replica, `[replicas, ...]`, as they were; none without replicas."""
        return () if self._inner is None else self._inner.metric_parts

    def resume(self, parts: Sequence[np.ndarray]) -> None:
        """Lets the next state that comes from elsewhere continue with these metrics."""
        self._resumed = parts

    def enter(self, state: State) -> State:
        """Returns a state of Keras in the form that programs take."""
        # Keras's loops pass on what they received, so it is known by identity: values would have
        # to be read from the devices for that, at every execution.
        if state is self._outer and self._inner is not None:
            return self._inner
        current = [value.sharding for value in jax.tree.leaves(state)]
        if current == self._placed:  # as in each call of evaluate but the first
            return state
        wanted = layouts(self._plan, state)
        if self._plan.replicas > 1:
            parts = self._metric_parts(state.metric)
            return jax.tree.map(put_on, state, wanted).replace(metric_parts=parts)
        # A call for each array to move what is there already is time that `train_on_batch`, one
        # step of a small model, does not have.
        if not all(map(_is_placed, current, jax.tree.leaves(wanted))):
            return jax.tree.map(put_on, state, wanted)
        self._placed = current
        return state

    def leave(self, inner: State) -> State:
        """Returns a state of programs in the form that Keras keeps."""
        if self._plan.replicas == 1:
            return inner
        self._outer, self._inner = inner._replace(metric_parts=()), inner
        return self._outer

    def release(self) -> None:
        """Releases the state of a loop that has ended."""
        self._outer = self._inner = None

    def _metric_parts(self, values: tuple[jax.Array, ...]) -> Iterable[jax.Array]:
        """Divides metrics among replicas: the first gets them, the others begin at zero."""
        group = self._plan.group
        last = () if self._outer is None else self._outer.metric
        # A callback may have set a weight, so that the state is another one, and the metrics are
        # still ours. Divided anew, they would all be the first replica's from here on.
        if len(values) == len(last) and all(map(operator.is_, values, last)):
            return self.parts
        resumed, self._resumed = self._resumed, ()
        if [part.shape for part in resumed] != [(group.replicas, *v.shape) for v in values]:
            resumed = [None] * len(values)
        pairs = zip(values, resumed, strict=True)
        return [spread(value, group, "metric", part) for value, part in pairs]


def _is_placed(current: jax.sharding.Sharding, layout: jax.sharding.Sharding) -> bool:
    """Whether a value is on the one device of a layout, in the same memory."""
    return current.device_set == layout.device_set and current.memory_kind == layout.memory_kind
