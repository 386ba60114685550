"""`tf.random`, by `keras.random`: the same seed gives other numbers than TensorFlow's.

Without a seed, operations of a compiled function draw from one generator of the process, and those
in a layer of a model from one of the layer. Their states are variables, so each call of the
function, each iteration of a loop and each step has other numbers.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax.typing import DTypeLike

from millrace.errors import OptionError
from millrace.extend import context_of, current_scope, share_seed
from millrace_ipu._compat.keras_random import generator_of_layer, note_models_of_steps
from millrace_ipu.tensorflow.dispatch import operations, real_name
from millrace_ipu.tensorflow.dtypes import as_dtype
from millrace_ipu.tensorflow.values import ShapeLike, TensorLike, shape_of


def set_seed(seed: int) -> None:
    """Sets the seed of Python, NumPy, Keras and compiled functions."""
    keras.utils.set_random_seed(seed)
    _first_seed[:] = [seed]
    for generator in _generator:
        generator.state.assign([seed, 0])


def seed_or_generator(seed: int | None) -> Any:
    """Returns what `keras.random` takes as a seed: a generator, where functions are compiled.

    Outside of these and of layers None stays None: Keras then draws from a generator of its own.
    """
    if context_of(current_scope()) is None:
        return generator_of_layer(seed) or seed
    return _made_generator() if seed is None else seed


def _made_generator() -> keras.random.SeedGenerator:
    if not _generator:
        _generator.append(keras.random.SeedGenerator(*_first_seed))
    return _generator[0]


_first_seed: list[int] = []  # one, after set_seed()
_generator: list[keras.random.SeedGenerator] = []  # one, after the first draw
share_seed(
    "tensorflow",
    lambda: _generator[0].state if _generator else None,
    lambda: _made_generator().state,
)


def _normal(draw: Callable[..., Any]) -> Callable[..., Any]:
    def numbers(
        shape: ShapeLike,
        mean: float = 0.0,
        stddev: float = 1.0,
        dtype: DTypeLike = "float32",
        seed: int | None = None,
    ) -> Any:
        return draw(shape_of(shape), mean, stddev, as_dtype(dtype).name, seed_or_generator(seed))

    return numbers


def uniform(
    shape: ShapeLike,
    minval: float = 0,
    maxval: float | None = None,
    dtype: DTypeLike = "float32",
    seed: int | None = None,
) -> Any:
    """Returns random numbers between two bounds: integers for an integer dtype."""
    kind = as_dtype(dtype)
    draw: Any = keras.random.randint if kind.kind in "iu" else keras.random.uniform
    maxval = 1.0 if maxval is None and kind.kind not in "iu" else maxval
    return draw(shape_of(shape), minval, maxval, kind.name, seed_or_generator(seed))


def shuffle(value: TensorLike, seed: int | None = None) -> Any:
    """Returns the rows in random order."""
    return keras.random.shuffle(value, 0, seed_or_generator(seed))


def _stateless_normal(draw: Callable[..., jax.Array]) -> Callable[..., Any]:
    """Returns a function of random numbers that are the same for the same two in `seed`."""

    def numbers(
        shape: ShapeLike,
        seed: TensorLike,
        mean: float = 0.0,
        stddev: float = 1.0,
        dtype: DTypeLike = "float32",
    ) -> Any:
        drawn = draw(_key(seed), shape_of(shape), as_dtype(dtype))
        return drawn * jnp.asarray(stddev, drawn.dtype) + jnp.asarray(mean, drawn.dtype)

    return numbers


def stateless_uniform(
    shape: ShapeLike,
    seed: TensorLike,
    minval: float = 0,
    maxval: float | None = None,
    dtype: DTypeLike = "float32",
) -> Any:
    """Returns numbers between two bounds, the same for the same two numbers in `seed`."""
    kind = as_dtype(dtype)
    if kind.kind in "iu":
        if maxval is None:
            raise OptionError(
                f"stateless_uniform() of {kind.name} has no upper bound. Set maxval=, which is "
                "not among the numbers."
            )
        return jax.random.randint(_key(seed), shape_of(shape), minval, maxval, kind)
    highest = 1.0 if maxval is None else maxval
    return jax.random.uniform(_key(seed), shape_of(shape), kind, minval, highest)


def _key(seed: Any) -> jax.Array:
    first, second = jnp.asarray(seed).astype("uint32")
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(0), first), second)


note_models_of_steps()
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "normal": _normal(keras.random.normal),
    "truncated_normal": _normal(keras.random.truncated_normal),
    "uniform": uniform,
    "shuffle": shuffle,
    "stateless_normal": _stateless_normal(jax.random.normal),
    "stateless_truncated_normal": _stateless_normal(
        lambda key, shape, dtype: jax.random.truncated_normal(key, -2, 2, shape, dtype)
    ),
    "stateless_uniform": stateless_uniform,
}
globals().update(operations("random", _FUNCTIONS))


def __getattr__(name: str) -> Any:
    return real_name(f"random.{name}", "Write it with keras.random")
