"""How the values of a model lie on the devices of its replicas.

    weights, state       whole on each device
    metrics              one set of values for each replica: [replicas, ...], and their sum
    with sharding        optimizer state, or weights too, in equal parts along one axis

The last are the first and the third stage of ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054):
weights are gathered where an update's micro-batches begin, gradients arrive in parts, and each
device updates its part.
"""

from typing import Any

import jax

from millrace.plan import ROLES, Plan
from millrace.steps.offload import host_layout
from millrace.steps.state import State, Values


def own_part(values: Any) -> list[Any]:
    """Returns what one replica has of values `[1, ...]`."""
    return [value[0] for value in values]


def with_axis(values: Any) -> Any:
    """Gives one replica's values the axis of replicas."""
    return jax.tree.map(lambda value: value[None], values)


def whole_spec(plan: Plan, spec: Any) -> jax.ShapeDtypeStruct:
    """Returns the spec of a value that every replica has."""
    return jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=plan.group.whole)


def split_spec(plan: Plan, spec: Any) -> jax.ShapeDtypeStruct:
    """Returns the spec of one replica's value as that of all of them, `[replicas, ...]`."""
    shape = (plan.replicas, *spec.shape)
    return jax.ShapeDtypeStruct(shape, spec.dtype, sharding=plan.group.split(0))


def shared_axis(shape: tuple[int, ...], replicas: int) -> int | None:
    """Returns the first axis that the replicas can share out equally; None if there is none."""
    return next((axis for axis, size in enumerate(shape) if size and size % replicas == 0), None)


def axis_of(plan: Plan, role: str, shape: tuple[int, ...]) -> int | None:
    """Returns the axis along which the replicas share a value of the state out; None: whole."""
    replication = plan.replication
    shared = {
        "trainable": replication.shard_weights,
        "optimizer": replication.shard_optimizer_state,
    }
    return shared_axis(shape, plan.replicas) if shared.get(role) else None


def layout_of(plan: Plan, role: str, value: Any) -> jax.sharding.Sharding:
    """Returns how a value of the state lies on the devices between updates, or in host memory.

    Args:
        plan: of the programs.
        role: of the value.
        value: with a shape and a dtype.
    """
    axis = axis_of(plan, role, tuple(value.shape))
    layout = plan.group.whole if axis is None else plan.group.split(axis)
    return host_layout(plan, role, value, layout) or layout


def layouts(plan: Plan, state: State) -> State:
    """Returns how each value of a state lies, metrics in the form that programs take them."""
    found = []
    for role, values in zip(ROLES[plan.mode], state, strict=True):
        if role == "metric":
            half = len(values) // 2
            found.append(Values([plan.group.split(0)] * half + [plan.group.whole] * half))
        else:
            found.append(Values(layout_of(plan, role, value) for value in values))
    return tuple(found)


def of_one_replica(plan: Plan, state: State) -> State:
    """Returns the specs of what one replica's step is given of a state."""
    return tuple(
        Values(list(values)[len(values) // 2 :]) if role == "metric" else values
        for role, values in zip(ROLES[plan.mode], state, strict=True)
    )


def specs_of(plan: Plan, state: State) -> State:
    """Returns the specs of a state with the shardings that its values have."""
    return jax.tree.map(
        lambda value, sharding: jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding),
        state,
        layouts(plan, state),
    )


def merged_metrics(parts: Any) -> list[jax.Array]:
    """Adds up the metric states of the replicas: those of Keras are sums and counts."""
    return [value.sum(axis=0, dtype=value.dtype) for value in parts]
