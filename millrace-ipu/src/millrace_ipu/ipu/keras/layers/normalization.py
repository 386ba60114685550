"""Normalization over groups of channels, with the groups and the arguments of IPU layers.

GroupNormalization        keras.layers.GroupNormalization, whose groups may be strided
InstanceNormalization     the same, with each channel a group
LayerNormalization        -> keras.layers.LayerNormalization

    6 channels, 2 groups, strided           0 1 0 1 0 1
    6 channels, 2 groups, not strided       0 0 0 1 1 1

The normalization is that of Wu and He 2018, arXiv 1803.08494; a group for each channel is that of
Ulyanov et al. 2016, arXiv 1607.08022.
"""

from typing import Any, TypeAlias, cast

import jax
import keras

from millrace.errors import OptionError
from millrace_ipu.ipu.keras.layers.stock import InputShape

LayerNormalization = keras.layers.LayerNormalization

Initializer: TypeAlias = keras.initializers.Initializer | str | dict[str, object] | None


@keras.saving.register_keras_serializable(package="millrace_ipu.ipu")
class GroupNormalization(keras.layers.GroupNormalization):
    """Normalizes each group of channels, over all positions of a row.

    Args:
        groups: number of groups; the channels must be a multiple of it.
        channels_axis: axis of the channels.
        center: whether to add a trained `beta`.
        scale: whether to multiply by a trained `gamma`.
        epsilon: added to variances.
        beta_initializer: None is zeros.
        gamma_initializer: None is ones.
        strided_channel_grouping: whether neighbouring channels are in different groups.
        **kwargs: of a `keras.layers.GroupNormalization`.
    """

    def __init__(
        self,
        groups: int = 2,
        channels_axis: int = -1,
        center: bool = True,
        scale: bool = True,
        epsilon: float = 1e-3,
        beta_initializer: Initializer = None,
        gamma_initializer: Initializer = None,
        strided_channel_grouping: bool = True,
        **kwargs: object,
    ):
        super().__init__(
            groups,
            channels_axis,
            epsilon,
            center,
            scale,
            cast(Any, beta_initializer or "zeros"),
            cast(Any, gamma_initializer or "ones"),
            **cast(dict[str, Any], kwargs),
        )
        self.strided_channel_grouping = strided_channel_grouping

    def build(self, input_shape: InputShape) -> None:
        """Makes `gamma` and `beta`, with one number for each channel.

        Raises:
            OptionError: if the channels are not a multiple of the groups.
        """
        channels = input_shape[self.axis]
        if channels % self.groups:
            raise OptionError(
                f"{type(self).__name__} {self.name!r}: {channels} channels are not {self.groups} "
                "groups of equal size. Set groups to a divisor of the channels."
            )
        super().build(input_shape)

    def call(self, inputs: jax.Array) -> Any:
        """Returns the normalized inputs."""
        ops = keras.ops
        x: Any = ops.moveaxis(inputs, self.axis, -1)
        x = normalize_groups(x, self.groups, self.strided_channel_grouping, self.epsilon)
        x = x if self.gamma is None else x * self.gamma
        x = x if self.beta is None else x + self.beta
        return ops.cast(ops.moveaxis(x, -1, self.axis), self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the layer."""
        config = super().get_config()
        config["channels_axis"] = config.pop("axis")
        return {**config, "strided_channel_grouping": self.strided_channel_grouping}


@keras.saving.register_keras_serializable(package="millrace_ipu.ipu")
class InstanceNormalization(GroupNormalization):
    """Normalizes each channel, over all positions of a row."""

    def __init__(self, channels_axis: int = -1, **kwargs: object):
        options = {name: value for name, value in kwargs.items() if name != "groups"}
        super().__init__(-1, channels_axis, **cast(dict[str, Any], options))  # as many as channels


def normalize_groups(x: jax.Array, groups: int, strided: bool, epsilon: float) -> Any:
    """Returns an array in which each group of a row has mean 0 and variance 1.

    Args:
        x: `[rows, ..., channels]`.
        groups: number of groups, a divisor of the channels.
        strided: True puts channel `c` into group `c % groups`, False keeps neighbours together.
        epsilon: added to variances.
    """
    ops = keras.ops
    shape = tuple(x.shape)
    each = shape[-1] // groups
    cut = (each, groups) if strided else (groups, each)
    grouped: Any = ops.reshape(x, (-1, *shape[1:-1], *cut))
    axes = [*range(1, len(shape) - 1), len(shape) - (1 if strided else 0)]
    moments: Any = ops.moments(grouped, axes=axes, keepdims=True)
    mean, variance = moments
    grouped = (grouped - mean) * ops.rsqrt(variance + epsilon)
    return ops.reshape(grouped, (-1, *shape[1:]))
