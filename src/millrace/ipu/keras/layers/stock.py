"""Layers that Keras has too, with the arguments of their IPU kin.

[a, b]   -> one whole number for a Keras layer

Dropout(rate=0.5, noise_shape, seed=pair)   -> keras.layers.Dropout
Embedding(..., serialization_factor)        -> keras.layers.Embedding; the factor has no effect
SerialDense(units, serialization_...)       -> keras.layers.Dense; the factor has no effect
AssumeEqualAcrossReplicas(inplace)          -> keras.layers.Identity: replicas run one program
"""

from typing import Any

import keras
import numpy as np

from millrace.ipu.no_effect import warn_no_effect


def one_number(seed: Any) -> int | None:
    """Returns a seed for Keras: a number as it is, a pair as one number, None as None."""
    if seed is None:
        return None
    flat = np.asarray(seed).ravel()
    if flat.size == 1:
        return int(flat[0])
    return int(
        np.random.SeedSequence([int(part) & 0xFFFFFFFF for part in flat]).generate_state(1)[0] >> 1
    )


_WHOLE = "XLA cuts products and look-ups up as the device needs it."


@keras.saving.register_keras_serializable(package="millrace.ipu")
class Dropout(keras.layers.Dropout):
    """`keras.layers.Dropout`, whose rate is 0.5 unless given and whose seed may be a pair."""

    def __init__(self, rate: float = 0.5, noise_shape: Any = None, seed: Any = None, **kwargs: Any):
        super().__init__(rate, noise_shape, one_number(seed), **kwargs)


@keras.saving.register_keras_serializable(package="millrace.ipu")
class Embedding(keras.layers.Embedding):
    """`keras.layers.Embedding`."""

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        serialization_factor: int = 1,
        **kwargs: Any,
    ):
        if serialization_factor != 1:
            warn_no_effect("Embedding(serialization_factor=)", _WHOLE)
        super().__init__(input_dim, output_dim, embeddings_initializer, **kwargs)


@keras.saving.register_keras_serializable(package="millrace.ipu")
class SerialDense(keras.layers.Dense):
    """`keras.layers.Dense`."""

    def __init__(
        self,
        units: int,
        serialization_factor: int | None = None,
        serialization_dimension: str | None = None,
        **kwargs: Any,
    ):
        if serialization_factor is not None or serialization_dimension is not None:
            warn_no_effect("SerialDense(serialization_factor=)", _WHOLE)
        super().__init__(units, **kwargs)


@keras.saving.register_keras_serializable(package="millrace.ipu")
class AssumeEqualAcrossReplicas(keras.layers.Identity):
    """Hands on what it is given: all replicas run one program, and what is equal is known."""

    def __init__(self, inplace: bool = False, **kwargs: Any):
        del inplace
        super().__init__(**kwargs)
