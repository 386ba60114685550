"""`tf.image`: images `[..., height, width, channels]`, by `keras.ops.image`.

resize(images, (224, 224))            as TensorFlow 2: centres of pixels, float32 results

Names that are missing here raise an error that says what to write.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import keras

from millrace_ipu.tensorflow.dispatch import operations, real_name
from millrace_ipu.tensorflow.values import TensorLike

ops: Any = keras.ops

ResizeMethod = SimpleNamespace(
    BICUBIC="bicubic",
    BILINEAR="bilinear",
    LANCZOS3="lanczos3",
    LANCZOS5="lanczos5",
    NEAREST_NEIGHBOR="nearest",
)


def _resize(
    images: TensorLike,
    size: Sequence[int],
    method: str = "bilinear",
    antialias: bool = False,
) -> Any:
    is_array = not isinstance(images, keras.KerasTensor)
    array, sizes = ops.convert_to_tensor(images) if is_array else images, tuple(map(int, size))
    floats = array if method == "nearest" else ops.cast(array, "float32")
    resized = ops.image.resize(
        floats, sizes, method, antialias=antialias, data_format="channels_last"
    )
    return ops.cast(resized, array.dtype) if method == "nearest" else resized


globals().update(operations("image", {"resize": _resize}))


def __getattr__(name: str) -> Any:
    return real_name(f"image.{name}")
