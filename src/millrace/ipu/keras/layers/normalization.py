"""Normalization over groups of channels, with the groups and the arguments of IPU layers.

GroupNormalization        its own; of neighbours the result is keras.layers.GroupNormalization's
InstanceNormalization     the same, with each channel a group
LayerNormalization        -> keras.layers.LayerNormalization

    6 channels, 2 groups, strided           0 1 0 1 0 1
    6 channels, 2 groups, not strided       0 0 0 1 1 1

The normalization is that of Wu and He 2018, arXiv 1803.08494; a group for each channel is that of
Ulyanov et al. 2016, arXiv 1607.08022.
"""

from typing import Any

import keras

from millrace.errors import OptionError

LayerNormalization = keras.layers.LayerNormalization


@keras.saving.register_keras_serializable(package="millrace.ipu")
class GroupNormalization(keras.layers.Layer):
    """Normalizes each group of channels, over all positions of a row.

    Args:
        groups: how many there are; the channels must be a multiple of it.
        channels_axis: where the channels are.
        center: whether a trained `beta` is added.
        scale: whether a trained `gamma` multiplies.
        epsilon: added to variances.
        beta_initializer: None is zeros.
        gamma_initializer: None is ones.
        strided_channel_grouping: whether neighbours are in different groups.
        **kwargs: of a `keras.layers.Layer`.
    """

    def __init__(
        self,
        groups: int = 2,
        channels_axis: int = -1,
        center: bool = True,
        scale: bool = True,
        epsilon: float = 1e-3,
        beta_initializer: Any = None,
        gamma_initializer: Any = None,
        strided_channel_grouping: bool = True,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.groups, self.channels_axis = groups, channels_axis
        self.center, self.scale, self.epsilon = center, scale, epsilon
        self.beta_initializer = keras.initializers.get(beta_initializer or "zeros")
        self.gamma_initializer = keras.initializers.get(gamma_initializer or "ones")
        self.strided_channel_grouping = strided_channel_grouping

    def build(self, input_shape: Any) -> None:
        """Makes `gamma` and `beta`, of each channel.

        Raises:
            OptionError: if the channels are not a multiple of the groups.
        """
        channels = input_shape[self.channels_axis]
        if self.groups < 1 or channels % self.groups:
            raise OptionError(
                f"{type(self).__name__} {self.name!r}: {channels} channels are not {self.groups} "
                "groups of equal size. Set groups to a divisor of the channels."
            )
        shape = (channels,)
        self.gamma = (
            self.add_weight(shape, self.gamma_initializer, name="gamma") if self.scale else None
        )
        self.beta = (
            self.add_weight(shape, self.beta_initializer, name="beta") if self.center else None
        )

    def call(self, inputs: Any) -> Any:
        """Returns the inputs, normalized."""
        ops = keras.ops
        x: Any = ops.moveaxis(inputs, self.channels_axis, -1)
        x = normalize_groups(x, self.groups, self.strided_channel_grouping, self.epsilon)
        x = x if self.gamma is None else x * self.gamma
        x = x if self.beta is None else x + self.beta
        return ops.moveaxis(x, -1, self.channels_axis)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments."""
        names = ("groups", "channels_axis", "center", "scale", "epsilon")
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in names},
            "strided_channel_grouping": self.strided_channel_grouping,
            "beta_initializer": keras.initializers.serialize(self.beta_initializer),
            "gamma_initializer": keras.initializers.serialize(self.gamma_initializer),
        }


@keras.saving.register_keras_serializable(package="millrace.ipu")
class InstanceNormalization(GroupNormalization):
    """Normalizes each channel, over all positions of a row."""

    def __init__(self, channels_axis: int = -1, **kwargs: Any):
        kwargs = {name: kwargs[name] for name in kwargs if name != "groups"}
        super().__init__(1, channels_axis, **kwargs)

    def build(self, input_shape: Any) -> None:
        """Makes as many groups as there are channels."""
        self.groups = input_shape[self.channels_axis]
        super().build(input_shape)


def normalize_groups(x: Any, groups: int, strided: bool, epsilon: float) -> Any:
    """Returns an array in which each group of a row has mean 0 and variance 1.

    Args:
        x: with rows on the first axis and channels on the last.
        groups: how many there are; a divisor of the channels.
        strided: whether channel `c` is in group `c % groups`, or neighbours are together.
        epsilon: added to variances.
    """
    ops = keras.ops
    shape: tuple[Any, ...] = tuple(x.shape)
    each = shape[-1] // groups
    cut = (each, groups) if strided else (groups, each)
    grouped: Any = ops.reshape(x, (-1, *shape[1:-1], *cut))
    axes = [*range(1, len(shape) - 1), len(shape) - (1 if strided else 0)]
    moments: Any = ops.moments(grouped, axes=axes, keepdims=True)
    mean, variance = moments
    grouped = (grouped - mean) * ops.rsqrt(variance + epsilon)
    return ops.reshape(grouped, (-1, *shape[1:]))
