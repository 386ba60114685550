"""Normalization over groups of channels, with the groups and the arguments of IPU layers.

GroupNormalization        -> millrace.layers.channel_groups, and a trained scale and offset
InstanceNormalization     -> the same, with each channel a group
LayerNormalization        -> keras.layers.LayerNormalization
"""

from typing import Any

import keras

from millrace.errors import OptionError
from millrace.layers.channel_groups import normalize_groups

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
