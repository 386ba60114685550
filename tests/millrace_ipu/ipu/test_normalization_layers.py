"""Normalization over groups of channels, against NumPy and Keras."""

import keras
import numpy as np
import pytest

from millrace.errors import OptionError
from millrace_ipu import ipu
from millrace_ipu.ipu.keras.layers.normalization import normalize_groups

X = np.random.default_rng(0).normal(2, 3, (4, 5, 3, 6)).astype("float32")


@pytest.mark.parametrize(
    ("strided", "groups"), [(True, [0, 1, 0, 1, 0, 1]), (False, [0, 0, 0, 1, 1, 1])]
)
def test_each_group_is_normalized_over_all_positions_of_a_row(strided, groups):
    expected = np.empty_like(X)
    for group in (0, 1):
        part = X[..., np.array(groups) == group].astype("float64")
        mean, variance = (f(part, axis=(1, 2, 3), keepdims=True) for f in (np.mean, np.var))
        expected[..., np.array(groups) == group] = (part - mean) / np.sqrt(variance + 1e-3)
    np.testing.assert_allclose(normalize_groups(X, 2, strided, 1e-3), expected, atol=1e-5)


def test_neighbours_in_a_group_are_keras_own_group_normalization():
    own = keras.layers.GroupNormalization(3, epsilon=1e-3)
    layer = ipu.keras.layers.GroupNormalization(3, strided_channel_grouping=False)
    np.testing.assert_allclose(layer(X), own(X), atol=1e-5)


def test_an_instance_is_one_channel_of_a_row_on_any_axis():
    x = np.moveaxis(X, -1, 1)
    mean, variance = (f(x, axis=(2, 3), keepdims=True) for f in (np.mean, np.var))
    actual = ipu.keras.layers.InstanceNormalization(channels_axis=1)(x)
    np.testing.assert_allclose(actual, (x - mean) / np.sqrt(variance + 1e-3), atol=1e-5)


def test_a_layer_comes_back_from_its_config_with_scale_and_offset_as_given():
    layer = ipu.keras.layers.GroupNormalization(
        2, center=False, gamma_initializer="zeros", name="half"
    )
    again = ipu.keras.layers.GroupNormalization.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert not np.any(again(X))
    assert [weight.name for weight in again.weights] == ["gamma"]


def test_channels_that_are_no_multiple_of_the_groups_are_refused():
    layer = ipu.keras.layers.GroupNormalization(4, name="uneven")
    with pytest.raises(OptionError, match=r"'uneven': 6 channels are not 4 .*divisor of the chan"):
        layer(X)
