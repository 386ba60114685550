"""Normalizations without weights; those with weights are layers.

group_norm(x, groups=2, center=False, scale=False)     computed
group_norm(x, groups=2)                                raises the layer with these arguments
"""

from typing import Any

import keras

from millrace.errors import OptionError
from millrace_ipu.ipu.keras.layers.normalization import normalize_groups as _normalize_groups
from millrace_ipu.ipu.replacements import other_name as _other_name
from millrace_ipu.tensorflow.unsupported import refuse as _refuse


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
    arguments = f"channels_axis={channels_axis}, epsilon={epsilon}"
    if center or scale:
        arguments += f", center={center}, scale={scale}"
        _refuse_weights("group_norm", f"GroupNorm(groups={groups}, {arguments})(inputs)")
    return _normalized(inputs, groups, channels_axis, strided_channel_grouping, epsilon)


def instance_norm(
    inputs: Any,
    channels_axis: int = -1,
    reduction_axes: object = None,
    center: bool = True,
    scale: bool = True,
    epsilon: float = 1e-6,
    *_: object,
    **__: object,
) -> Any:
    """Returns arrays in which each channel of a row has mean 0 and variance 1; see `group_norm`."""
    if center or scale:
        _refuse_weights(
            "instance_norm",
            f"InstanceNorm(channels_axis={channels_axis}, epsilon={epsilon}, center={center}, "
            f"scale={scale})(inputs)",
        )
    return _normalized(inputs, inputs.shape[channels_axis], channels_axis, True, epsilon)


def layer_norm(
    inputs: Any,
    channels_axis: int = -1,
    reduction_axes: object = None,
    center: bool = True,
    scale: bool = True,
    epsilon: float = 1e-6,
    *_: object,
    **__: object,
) -> Any:
    """Returns arrays in which all of a row together has mean 0 and variance 1; see `group_norm`."""
    if center or scale:
        _refuse_weights(
            "layer_norm",
            f"GroupNorm(groups=1, channels_axis={channels_axis}, epsilon={epsilon}, "
            f"center={center}, scale={scale})(inputs)",
        )
    return _normalized(inputs, 1, channels_axis, True, epsilon)


def __getattr__(name: str) -> Any:
    return _other_name(__name__, name)


def _normalized(inputs: Any, groups: int, axis: int, strided: bool, epsilon: float) -> Any:
    channels = inputs.shape[axis]
    if groups < 1 or channels % groups:
        raise OptionError(
            f"{channels} channels are not {groups} groups of equal size. Set groups to a divisor "
            "of the channels."
        )
    x: Any = keras.ops.moveaxis(inputs, axis, -1)
    return keras.ops.moveaxis(_normalize_groups(x, groups, strided, epsilon), -1, axis)


def _refuse_weights(name: str, layer: str) -> None:
    """Raises the layer that has the weights: a function has no place for them."""
    _refuse(f"ipu.normalization_ops.{name} with weights", f"ipu.keras.layers.{layer}")
