"""Keras layers with the arguments of the IPU's.

Dropout(rate=0.5, noise_shape, seed=pair)   -> keras.layers.Dropout, with a whole number for a pair
Embedding(..., serialization_factor)        -> keras.layers.Embedding; the factor has no effect
SerialDense(units, serialization_...)       -> keras.layers.Dense; the factor has no effect
AssumeEqualAcrossReplicas(inplace)          -> keras.layers.Identity: replicas run one program
"""

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import keras
import numpy as np

from millrace_ipu.pytrees import Array
from millrace_ipu.tensorflow.no_operation import warn_no_effect

Seed: TypeAlias = int | Sequence[int] | Array | None
InputShape: TypeAlias = tuple[int, ...]


def one_number(seed: Seed) -> int | None:
    """Returns a seed for Keras: a number unchanged, a pair as one number, None as None."""
    if seed is None:
        return None
    flat = np.asarray(seed).ravel()
    if flat.size == 1:
        return int(flat[0])
    words = [int(number) & 0xFFFFFFFF for number in flat]
    return int(np.random.SeedSequence(words).generate_state(1)[0] >> 1)


_SPLITTING = "XLA splits products and look-ups as the device needs it."


@keras.saving.register_keras_serializable(package="millrace_ipu.ipu")
class Dropout(keras.layers.Dropout):
    """`keras.layers.Dropout`, with a default rate of 0.5 and seeds that may be pairs."""

    def __init__(
        self,
        rate: float = 0.5,
        noise_shape: Sequence[int | None] | None = None,
        seed: Seed = None,
        **kwargs: Any,
    ):
        super().__init__(rate, noise_shape, one_number(seed), **kwargs)


@keras.saving.register_keras_serializable(package="millrace_ipu.ipu")
class Embedding(keras.layers.Embedding):
    """`keras.layers.Embedding`, with a `serialization_factor` that has no effect."""

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: keras.initializers.Initializer | str = "uniform",
        serialization_factor: int = 1,
        **kwargs: Any,
    ):
        if serialization_factor != 1:
            warn_no_effect("Embedding(serialization_factor=)", _SPLITTING)
        super().__init__(input_dim, output_dim, cast(Any, embeddings_initializer), **kwargs)


@keras.saving.register_keras_serializable(package="millrace_ipu.ipu")
class SerialDense(keras.layers.Dense):
    """`keras.layers.Dense`, with a `serialization_factor` that has no effect."""

    def __init__(
        self,
        units: int,
        serialization_factor: int | None = None,
        serialization_dimension: str | None = None,
        **kwargs: Any,
    ):
        if serialization_factor is not None or serialization_dimension is not None:
            warn_no_effect("SerialDense(serialization_factor=)", _SPLITTING)
        super().__init__(units, **kwargs)


@keras.saving.register_keras_serializable(package="millrace_ipu.ipu")
class AssumeEqualAcrossReplicas(keras.layers.Identity):
    """Returns its inputs unchanged, since all replicas run one program anyway."""

    def __init__(self, inplace: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
