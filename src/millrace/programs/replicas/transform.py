"""One function of all replicas, made of the function of one.

    kind of a value    one replica    all replicas
    WHOLE              [...]          [...]        the same on every device
    OWN                [...]          [R, ...]     a value for each replica, on its device
    another spec       its part       [...]        divided along one of its axes

    on_replicas(f, group, (WHOLE, OWN), OWN):    f(x, y) -> z    becomes    F(x, ys) -> zs

Models in one piece, stages of pipelines and compiled functions are all made in this way. Only the
axis of replicas is manual within `f`, where `lax.psum(z, REPLICA)` adds up the values of the
replicas; the compiler divides the work over any other axis of a mesh.

Within `f` all shapes are those of one replica, so its kernels, and the order in which they add up,
are those of a model on one device.
"""

import enum
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from millrace.base.devices import PARTS, REPLICA, WHOLE, DeviceGroup
from millrace.base.pytrees import ArrayTree, SpecTree

Results = TypeVar("Results")


class _Kind(enum.Enum):
    OWN = "own"


OWN = _Kind.OWN
# Of the arguments or results of a function: kinds in a tree, each for all values below it.
Kinds: TypeAlias = Any


def on_replicas(
    function: Callable[..., Results], group: DeviceGroup, arguments: Kinds, results: Kinds
) -> Callable[..., Results]:
    """Returns the function of all replicas, each of which runs `function` on its device.

    Args:
        function: of one replica.
        group: a device for each replica.
        arguments: the kinds of its arguments, a tuple.
        results: those of its results.
    """

    def one(*values: ArrayTree) -> Any:
        own = jax.tree.map(_of_one, arguments, values)
        return jax.tree.map(_of_all, results, function(*own))

    specs, out_specs = jax.tree.map(partition_of, (arguments, results))
    # Replicas may hold different values in what counts as equal, which `check_vma` would refuse.
    return jax.shard_map(
        one,
        mesh=group.mesh,
        in_specs=specs,
        out_specs=out_specs,
        axis_names={REPLICA},
        check_vma=False,
    )


def partition_of(kind: PartitionSpec | _Kind) -> PartitionSpec:
    """Returns the layout of the values of all replicas, as `jax.shard_map` takes it."""
    return PARTS if kind is OWN else kind  # type: ignore[return-value]


def specs_on(group: DeviceGroup, kinds: Kinds, specs: SpecTree) -> Any:
    """Returns the specs of the values of all replicas, given those of one replica.

    Args:
        group: a device for each replica; of one alone, the specs stay as they are.
        kinds: `WHOLE` or `OWN`, as for `on_replicas`.
        specs: of one replica's values. Those with a layout are of all replicas already.
    """
    if group.replicas == 1:
        return specs

    def on_all(kind: PartitionSpec | _Kind, specs: SpecTree) -> Any:
        lead, layout = ((), group.whole) if kind == WHOLE else ((group.replicas,), group.split(0))
        return jax.tree.map(
            lambda spec: (
                spec
                if spec.sharding is not None
                else jax.ShapeDtypeStruct((*lead, *spec.shape), spec.dtype, sharding=layout)
            ),
            specs,
        )

    return jax.tree.map(on_all, kinds, specs)


def _of_one(kind: PartitionSpec | _Kind, values: ArrayTree) -> Any:
    return jax.tree.map(lambda value: value[0], values) if kind is OWN else values


def _of_all(kind: PartitionSpec | _Kind, values: ArrayTree) -> Any:
    if kind is OWN:
        return jax.tree.map(lambda value: jnp.asarray(value)[None], values)
    return jax.tree.map(jnp.asarray, values)
