"""The functions of `tf.image` that change the values of pixels, by `keras.ops`.

Integer images are changed as numbers between 0 and 1, and come back in their own dtype.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from millrace_ipu.tensorflow.random import seed_or_generator
from millrace_ipu.tensorflow.values import TensorLike

ops: Any = keras.ops
_GRAY = (0.2989, 0.5870, 0.1140)  # the shares of red, green and blue in brightness


def _changed(image: TensorLike, change: Callable[[Any], Any]) -> Any:
    """Returns an image whose values, as floats, a function has changed."""
    array = image if isinstance(image, keras.KerasTensor) else ops.convert_to_tensor(image)
    kind = np.dtype(array.dtype)
    if kind.kind not in "iu":
        return change(array)
    largest = int(np.iinfo(kind).max)
    values = change(ops.cast(array, "float32") / largest)
    return ops.cast(ops.clip(values * (largest + 0.5), 0, largest), kind.name)


def _draw(lower: float, upper: float, seed: int | None) -> Any:
    return keras.random.uniform((), lower, upper, seed=seed_or_generator(seed))


def _brightness(image: TensorLike, delta: Any) -> Any:
    return _changed(image, lambda x: x + delta)


def _random_brightness(image: TensorLike, max_delta: float, seed: int | None = None) -> Any:
    return _brightness(image, _draw(-max_delta, max_delta, seed))


def _contrast(images: TensorLike, contrast_factor: Any) -> Any:
    def change(x: Any) -> Any:
        mean = ops.mean(x, axis=(-3, -2), keepdims=True)
        return (x - mean) * contrast_factor + mean

    return _changed(images, change)


def _random_contrast(image: TensorLike, lower: float, upper: float, seed: int | None = None) -> Any:
    return _contrast(image, _draw(lower, upper, seed))


def _in_hsv(image: TensorLike, hue: Any, saturation: Any) -> Any:
    def change(x: Any) -> Any:
        hsv = ops.image.rgb_to_hsv(x, data_format="channels_last")
        colors = [(hsv[..., :1] + hue) % 1.0, ops.clip(hsv[..., 1:2] * saturation, 0.0, 1.0)]
        changed = ops.concatenate([*colors, hsv[..., 2:]], axis=-1)
        return ops.image.hsv_to_rgb(changed, data_format="channels_last")

    return _changed(image, change)


def _grayscale(images: TensorLike) -> Any:
    return _changed(
        images, lambda x: ops.sum(x * ops.convert_to_tensor(_GRAY, x.dtype), -1, keepdims=True)
    )


def _standardized(image: TensorLike) -> Any:
    array = ops.cast(image, "float32")
    axes = (-3, -2, -1)
    mean = ops.mean(array, axes, keepdims=True)
    least = float(np.prod(array.shape[-3:])) ** -0.5
    return (array - mean) / ops.maximum(ops.std(array, axes, keepdims=True), least)


COLORS: dict[str, Callable[..., Any]] = {
    "adjust_brightness": _brightness,
    "adjust_contrast": _contrast,
    "adjust_hue": lambda image, delta: _in_hsv(image, delta, 1.0),
    "adjust_saturation": lambda image, saturation_factor: _in_hsv(image, 0.0, saturation_factor),
    "grayscale_to_rgb": lambda images: ops.repeat(images, 3, axis=-1),
    "per_image_standardization": _standardized,
    "random_brightness": _random_brightness,
    "random_contrast": _random_contrast,
    "random_hue": lambda image, max_delta, seed=None: _in_hsv(
        image, _draw(-max_delta, max_delta, seed), 1.0
    ),
    "random_saturation": lambda image, lower, upper, seed=None: _in_hsv(
        image, 0.0, _draw(lower, upper, seed)
    ),
    "rgb_to_grayscale": _grayscale,
}
