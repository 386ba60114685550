"""Types of the values that operations of `tf` take."""

from collections.abc import Sequence
from typing import TypeAlias

import jax
import keras
import numpy as np
from jax.typing import ArrayLike

# Computed, or a symbolic tensor of a Keras model that is being built.
TensorValue: TypeAlias = jax.Array | np.ndarray | keras.KerasTensor
# Also Python numbers, and nested sequences of all of these.
TensorLike: TypeAlias = TensorValue | keras.Variable | ArrayLike | Sequence[object]
ShapeLike: TypeAlias = Sequence[int] | np.ndarray | jax.Array
