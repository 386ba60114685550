"""`tf.random`, by `keras.random`: the same seed gives other numbers than TensorFlow's."""

from typing import Any

import keras
from jax.typing import DTypeLike

from millrace.tensorflow.dispatch import op, real_name
from millrace.tensorflow.dtypes import as_dtype
from millrace.tensorflow.values import ShapeLike, TensorLike


def set_seed(seed: int) -> None:
    """Sets the seed of Python, NumPy and Keras."""
    keras.utils.set_random_seed(seed)


def normal(
    shape: ShapeLike,
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: DTypeLike = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Any:
    """Returns random numbers of a normal distribution."""
    del name
    return keras.random.normal(shape, mean, stddev, as_dtype(dtype).name, seed)


def truncated_normal(
    shape: ShapeLike,
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: DTypeLike = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Any:
    """Returns normally distributed numbers, all within two standard deviations of the mean."""
    del name
    return keras.random.truncated_normal(shape, mean, stddev, as_dtype(dtype).name, seed)


def uniform(
    shape: ShapeLike,
    minval: float = 0,
    maxval: float | None = None,
    dtype: DTypeLike = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Any:
    """Returns random numbers between two bounds: integers for an integer dtype."""
    del name
    kind, dtype = as_dtype(dtype).kind, as_dtype(dtype).name
    if kind in "iu":
        return keras.random.randint(shape, minval, maxval, dtype, seed)
    maxval = 1.0 if maxval is None else maxval
    return keras.random.uniform(shape, minval, maxval, dtype, seed)


def shuffle(value: TensorLike, seed: int | None = None, name: str | None = None) -> Any:
    """Returns the rows in random order."""
    del name
    return keras.random.shuffle(value, 0, seed)


normal, truncated_normal, uniform, shuffle = (
    op(f"random.{function.__name__}", function, keeps_names=True)
    for function in (normal, truncated_normal, uniform, shuffle)
)


def __getattr__(name: str) -> Any:
    return real_name(f"random.{name}", "Write it with keras.random")
