"""Values of several replicas: whole on each device, or with an axis of replicas in front."""

from typing import Any

import jax

from millrace.plan import Plan


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
