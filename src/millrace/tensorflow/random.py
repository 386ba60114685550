"""`tf.random`, by `keras.random`: seeds are those of Keras, so its numbers are others."""

from typing import Any

import keras

from millrace.tensorflow.dispatch import op, real_name
from millrace.tensorflow.dtypes import as_dtype


def set_seed(seed: int) -> None:
    """Sets the seed of Python, NumPy and Keras."""
    keras.utils.set_random_seed(seed)


def normal(
    shape: Any, mean: float = 0.0, stddev: float = 1.0, dtype: Any = "float32", seed: Any = None,
    name: str | None = None,
) -> Any:  # fmt: skip
    """Returns numbers of a normal distribution."""
    del name
    return keras.random.normal(shape, mean, stddev, as_dtype(dtype).name, seed)


def truncated_normal(
    shape: Any, mean: float = 0.0, stddev: float = 1.0, dtype: Any = "float32", seed: Any = None,
    name: str | None = None,
) -> Any:  # fmt: skip
    """Returns numbers of a normal distribution, none more than two deviations from the mean."""
    del name
    return keras.random.truncated_normal(shape, mean, stddev, as_dtype(dtype).name, seed)


def uniform(
    shape: Any, minval: Any = 0, maxval: Any = None, dtype: Any = "float32", seed: Any = None,
    name: str | None = None,
) -> Any:  # fmt: skip
    """Returns numbers between two bounds; whole ones for a dtype of such."""
    del name
    dtype = as_dtype(dtype)
    if dtype.kind in "iu":
        return keras.random.randint(shape, minval, maxval, dtype.name, seed)
    maxval = 1.0 if maxval is None else maxval
    return keras.random.uniform(shape, minval, maxval, dtype.name, seed)


def shuffle(value: Any, seed: Any = None, name: str | None = None) -> Any:
    """Returns rows in another order."""
    del name
    return keras.random.shuffle(value, 0, seed)


normal, truncated_normal, uniform, shuffle = (
    op(f"random.{function.__name__}", function, keeps_names=True)
    for function in (normal, truncated_normal, uniform, shuffle)
)


def __getattr__(name: str) -> Any:
    return real_name(f"random.{name}", "Write it with keras.random")
