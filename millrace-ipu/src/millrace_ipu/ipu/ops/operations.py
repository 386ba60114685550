"""Small operations of IPU programs, and the modules that have them: `MODULES`.

control_flow_ops    barrier                    keeps XLA from moving operations across it
cross_replica_ops   sums and means of replicas -> millrace.extend
embedding_ops       embedding_lookup           keras.ops.take
functional_ops      outlined_function          the function itself: XLA shares equal code
math_ops            segment_sum                keras.ops.segment_sum
nn_ops              gelu, swish                keras.ops; hard_sigmoid has the slope of Keras 2
                    multi_conv                 the function itself: XLA orders convolutions alone
normalization_ops   without weights            those with weights are layers, which errors name
rand_ops            dropout                    by keras.random.dropout, or by a seed of two numbers
replication_ops     replication_index          of the replica that computes

The argument `name` is ignored everywhere.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar

import jax
import keras
import numpy as np

from millrace.errors import OptionError
from millrace.extend import cross_replica_mean as _native_mean
from millrace.extend import cross_replica_sum as _native_sum
from millrace.extend import replication_index as _native_index
from millrace_ipu.ipu.keras.layers.normalization import normalize_groups
from millrace_ipu.ipu.replacements import other_name
from millrace_ipu.pytrees import ArrayTree
from millrace_ipu.tensorflow.random import seed_or_generator
from millrace_ipu.tensorflow.unsupported import refuse

_Tensors = TypeVar("_Tensors", bound=ArrayTree)


def barrier(
    tensors: Any, insert_barrier_for_gradients: bool = False, name: str | None = None
) -> Any:
    """Returns the values, all of which are computed before any of them is used.

    Args:
        tensors: a tree of arrays.
        insert_barrier_for_gradients: ignored: gradients have a barrier in any case.
        name: ignored.
    """
    return jax.lax.optimization_barrier(tensors)


def cross_replica_sum(
    x: _Tensors, replica_group_size: int | None = None, name: str | None = None
) -> _Tensors:
    """Returns the sum over replicas. Its gradient is the sum of the replicas' gradients.

    Args:
        x: an array, or a tree of them.
        replica_group_size: number of neighbouring replicas in a sum; None sums over all.
        name: ignored.

    Raises:
        OptionError: if the replicas are not a whole number of such groups.
    """
    return _native_sum(x, replica_group_size)


def cross_replica_mean(
    x: _Tensors, replica_group_size: int | None = None, name: str | None = None
) -> _Tensors:
    """Returns the mean over replicas, otherwise as `cross_replica_sum`."""
    return _native_mean(x, replica_group_size)


def assume_equal_across_replicas(tensors: _Tensors, inplace: bool = False) -> _Tensors:
    """Returns the tensors; whether the replicas have equal ones is not checked."""
    return tensors


def replication_index(name: str | None = None) -> jax.Array:
    """Returns the number of this replica, from 0, as an int32."""
    return _native_index()


def embedding_lookup(
    params: Any,
    ids: Any,
    name: str | None = None,
    serialization_factor: int = 1,
    indices_are_sorted: bool = False,
    **_: object,
) -> Any:
    """Returns rows of a table; XLA splits look-ups itself."""
    return keras.ops.take(params, ids, axis=0)


def _itself(func: Callable[..., Any] | None = None, *_: object, **__: object) -> Any:
    """Returns the function itself, as a decorator with or without arguments."""
    return (lambda inner: inner) if func is None else func


outlined_function = _itself


def segment_sum(data: Any, segment_ids: Any, num_segments: int, name: str | None = None) -> Any:
    """Returns the sum of the rows of each segment, `[num_segments, ...]`; ids must ascend."""
    return keras.ops.segment_sum(data, segment_ids, num_segments, sorted=True)


def gelu(x: Any, approximate: bool = True, name: str | None = None) -> Any:
    """Returns the Gaussian error linear unit; `approximate` computes it with tanh."""
    return keras.ops.gelu(x, approximate=approximate)


def swish(x: Any, name: str | None = None) -> Any:
    """Returns `x * sigmoid(x)`."""
    return keras.ops.silu(x)


def hard_sigmoid(x: Any, name: str | None = None) -> Any:
    """Returns `0.2 * x + 0.5`, at least 0 and at most 1, as Keras 2 had it."""
    return keras.ops.clip(0.2 * x + 0.5, 0.0, 1.0)


def group_norm(
    inputs: Any,
    groups: int = 2,
    channels_axis: int = -1,
    reduction_axes: object = None,
    center: bool = True,
    scale: bool = True,
    epsilon: float = 1e-6,
    *_: object,
    strided_channel_grouping: bool = True,
    **__: object,
) -> Any:
    """Returns arrays in which each group of channels of a row has mean 0 and variance 1.

    Args:
        inputs: `[rows, ..., channels]`, or with the channels at another axis.
        groups: number of groups, a divisor of the channels.
        channels_axis: axis of the channels.
        reduction_axes: ignored, as on the IPU.
        center: whether to add a trained `beta`, which a layer has to have.
        scale: whether to multiply by a trained `gamma`, which a layer has to have.
        epsilon: added to variances.
        strided_channel_grouping: whether neighbouring channels are in different groups.

    Raises:
        UnsupportedNameError: with `center` or `scale`.
        OptionError: if the groups do not divide the channels.
    """
    layer = f"GroupNorm(groups={groups}"
    _refuse_weights("group_norm", layer, channels_axis, epsilon, center, scale)
    channels = inputs.shape[channels_axis]
    if groups < 1 or channels % groups:
        raise OptionError(
            f"{channels} channels are not {groups} groups of equal size. Set groups to a divisor "
            "of the channels."
        )
    x: Any = keras.ops.moveaxis(inputs, channels_axis, -1)
    normalized = normalize_groups(x, groups, strided_channel_grouping, epsilon)
    return keras.ops.moveaxis(normalized, -1, channels_axis)


def _one_kind(name: str, layer: str, groups_of: Callable[[int], int]) -> Callable[..., Any]:
    """Returns a normalization whose number of groups follows from that of channels."""

    def norm(
        inputs: Any,
        channels_axis: int = -1,
        reduction_axes: object = None,
        center: bool = True,
        scale: bool = True,
        epsilon: float = 1e-6,
        *_: object,
        **__: object,
    ) -> Any:
        """Gives each channel of a row, or all of a row together, mean 0 and variance 1."""
        _refuse_weights(name, layer, channels_axis, epsilon, center, scale)
        groups = groups_of(inputs.shape[channels_axis])
        return group_norm(inputs, groups, channels_axis, None, False, False, epsilon)

    norm.__name__ = norm.__qualname__ = name
    return norm


instance_norm = _one_kind("instance_norm", "InstanceNorm(", lambda channels: channels)
layer_norm = _one_kind("layer_norm", "GroupNorm(groups=1", lambda channels: 1)


def _refuse_weights(
    name: str, layer: str, axis: int, epsilon: float, center: bool, scale: bool
) -> None:
    """Raises the layer that has the weights, if there are any: a function has no place for them."""
    if center or scale:
        arguments = f"channels_axis={axis}, epsilon={epsilon}, center={center}, scale={scale}"
        between = "" if layer.endswith("(") else ", "
        instead = f"ipu.keras.layers.{layer}{between}{arguments})(inputs)"
        refuse(f"ipu.normalization_ops.{name} with weights", instead)


def dropout(
    x: Any,
    seed: Any = None,
    rate: float = 0.5,
    noise_shape: Sequence[int] | None = None,
    name: str | None = None,
    seed_modifier: int = 1,
) -> Any:
    """Returns `x` with some elements set to 0, and the others divided by `1 - rate`.

    Args:
        x: an array.
        seed: two whole numbers; None draws from a generator of the process.
        rate: the share of elements that are dropped, from 0 to below 1.
        noise_shape: the shape of the decisions, which broadcasts to that of `x`.
        name: ignored.
        seed_modifier: another whole number, which makes another seed.

    Raises:
        OptionError: for a rate or a seed that is none.
    """
    if not 0 <= rate < 1:
        raise OptionError(f"rate must be at least 0 and below 1. Received: {rate!r}.")
    if seed is None:
        return keras.random.dropout(x, rate, noise_shape, seed_or_generator(None))
    if np.shape(seed) != (2,):
        raise OptionError(
            f"seed takes two whole numbers. Received: {seed!r}. Set seed=[1, 2], for example."
        )
    key = jax.random.key(seed_modifier)
    for part in (seed[0], seed[1]):
        key = jax.random.fold_in(key, part)
    kept = jax.random.bernoulli(key, 1 - rate, tuple(noise_shape or x.shape))
    return keras.ops.where(kept, x / (1 - rate), keras.ops.zeros_like(x))


MODULES: dict[str, dict[str, Callable[..., Any]]] = {
    "control_flow_ops": {"barrier": barrier},
    "cross_replica_ops": {
        "assume_equal_across_replicas": assume_equal_across_replicas,
        "cross_replica_mean": cross_replica_mean,
        "cross_replica_sum": cross_replica_sum,
    },
    "embedding_ops": {"embedding_lookup": embedding_lookup},
    "functional_ops": {"function": outlined_function, "outlined_function": outlined_function},
    "math_ops": {"segment_sum": segment_sum},
    "nn_ops": {
        "gelu": gelu,
        "hard_sigmoid": hard_sigmoid,
        "multi_conv": _itself,
        "swish": swish,
    },
    "normalization_ops": {
        "group_norm": group_norm,
        "instance_norm": instance_norm,
        "layer_norm": layer_norm,
    },
    "rand_ops": {"dropout": dropout},
    "replication_ops": {"replication_index": replication_index},
}


class _OperationsModule(ModuleType):
    """A module of some of these operations; its other names raise what to write."""

    def __getattr__(self, name: str) -> Any:
        return other_name(self.__name__, name)


def make_modules(package: str) -> None:
    """Makes the modules of `MODULES` in a package."""
    for name, functions in MODULES.items():
        full = f"{package}.{name}"
        module = sys.modules[full] = _OperationsModule(full, f"`ipu.{name}`: see `operations.py`.")
        module.__spec__ = ModuleSpec(full, None)
        vars(module).update(functions)
        vars(sys.modules[package])[name] = module
