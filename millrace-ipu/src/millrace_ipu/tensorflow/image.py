"""`tf.image`: images `[..., height, width, channels]`, by `keras.ops.image`.

resize(images, (224, 224))            as TensorFlow 2: centres of pixels, float32 results
random_flip_left_right(image)         one draw for each image
central_crop(images, 0.5)             also of a symbolic tensor, in a U-net

Images may be arrays, those of a data set that `map()` changes, or symbolic tensors of a Keras
model. Names that are missing here raise an error that says what to write.
"""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.typing import DTypeLike

from millrace.errors import OptionError
from millrace_ipu.tensorflow.dispatch import operations, real_name
from millrace_ipu.tensorflow.dtypes import as_dtype
from millrace_ipu.tensorflow.random import seed_or_generator
from millrace_ipu.tensorflow.values import TensorLike

ops: Any = keras.ops

ResizeMethod = SimpleNamespace(
    BICUBIC="bicubic",
    BILINEAR="bilinear",
    LANCZOS3="lanczos3",
    LANCZOS5="lanczos5",
    NEAREST_NEIGHBOR="nearest",
)


def _array(image: TensorLike) -> Any:
    return image if isinstance(image, keras.KerasTensor) else ops.convert_to_tensor(image)


def _sizes(image: Any) -> tuple[int, int]:
    if len(image.shape) < 3:
        raise OptionError(
            f"An image has the shape (..., height, width, channels), and this one {image.shape}. "
            "Add the missing axes with tf.expand_dims."
        )
    return image.shape[-3], image.shape[-2]


def _resize(
    images: TensorLike,
    size: Sequence[int],
    method: str = "bilinear",
    antialias: bool = False,
) -> Any:
    array, sizes = _array(images), tuple(int(n) for n in size)
    floats = array if method == "nearest" else ops.cast(array, "float32")
    resized = ops.image.resize(
        floats, sizes, method, antialias=antialias, data_format="channels_last"
    )
    return ops.cast(resized, array.dtype) if method == "nearest" else resized


def _crop_or_pad(image: TensorLike, target_height: int, target_width: int) -> Any:
    array = _array(image)
    height, width = _sizes(array)
    rows, columns = min(height, target_height), min(width, target_width)
    array = _middle(array, rows, columns)
    below, right = target_height - rows, target_width - columns
    before = [(0, 0)] * (len(array.shape) - 3)
    sides = [(below // 2, below - below // 2), (right // 2, right - right // 2)]
    return ops.pad(array, [*before, *sides, (0, 0)])


def _middle(array: Any, rows: int, columns: int) -> Any:
    height, width = _sizes(array)
    top, left = (height - rows) // 2, (width - columns) // 2
    return array[..., top : top + rows, left : left + columns, :]


def _central_crop(image: TensorLike, central_fraction: float) -> Any:
    if not 0 < central_fraction <= 1:
        raise OptionError(
            f"central_fraction={central_fraction} must be more than 0, and at most 1."
        )
    array = _array(image)
    rows, columns = (n - 2 * int((n - n * central_fraction) / 2) for n in _sizes(array))
    return _middle(array, rows, columns)


def _flipped(axis: int) -> Callable[[TensorLike], Any]:
    return lambda image: ops.flip(_array(image), axis)


def _randomly_flipped(axis: int) -> Callable[..., Any]:
    def flip(image: TensorLike, seed: int | None = None) -> Any:
        array = _array(image)
        # One draw for each image of a batch.
        draws = (*array.shape[:-3], 1, 1, 1) if len(array.shape) > 3 else ()
        is_flipped = keras.random.uniform(draws, seed=seed_or_generator(seed)) < 0.5
        return ops.where(is_flipped, ops.flip(array, axis), array)

    return flip


def _random_crop(value: TensorLike, size: Sequence[int], seed: int | None = None) -> Any:
    array, size = _array(value), tuple(int(n) for n in size)
    if len(size) != len(array.shape) or any(n > m for n, m in zip(size, array.shape, strict=True)):
        raise OptionError(f"size={size} must fit into the shape {tuple(array.shape)}.")
    shares: Any = keras.random.uniform((len(size),), seed=seed_or_generator(seed))
    room = jnp.asarray(array.shape) - jnp.asarray(size)
    starts = jnp.floor(shares * (room + 1)).astype("int32")
    return jax.lax.dynamic_slice(array, tuple(jnp.minimum(starts, room)), size)


def _converted(image: TensorLike, dtype: DTypeLike, saturate: bool = False) -> Any:
    array, target = _array(image), as_dtype(dtype)
    source = np.dtype(array.dtype)
    if source == target or (source.kind not in "iu" and target.kind not in "iu"):
        return ops.cast(array, target.name)
    # Whole numbers stand for 0 to 1.
    shares = array
    if source.kind in "iu":
        shares = ops.cast(array, "float32") / float(np.iinfo(source).max)
    if target.kind not in "iu":
        return ops.cast(shares, target.name)
    limits = np.iinfo(target)
    scaled = shares * (limits.max + 0.5)
    return ops.cast(ops.clip(scaled, limits.min, limits.max) if saturate else scaled, target.name)


def _standardized(image: TensorLike) -> Any:
    array = ops.cast(image, "float32")
    axes = (-3, -2, -1)
    mean = ops.mean(array, axes, keepdims=True)
    least = float(np.prod(array.shape[-3:])) ** -0.5
    return (array - mean) / ops.maximum(ops.std(array, axes, keepdims=True), least)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "central_crop": _central_crop,
    "convert_image_dtype": _converted,
    "flip_left_right": _flipped(-2),
    "flip_up_down": _flipped(-3),
    "per_image_standardization": _standardized,
    "random_crop": _random_crop,
    "random_flip_left_right": _randomly_flipped(-2),
    "random_flip_up_down": _randomly_flipped(-3),
    "resize": _resize,
    "resize_with_crop_or_pad": _crop_or_pad,
}
globals().update(operations("image", _FUNCTIONS))


def __getattr__(name: str) -> Any:
    return real_name(f"image.{name}")
