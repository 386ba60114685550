"""Types of arrays, and of the nested structures that Keras and JAX pass around."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

Array: TypeAlias = jax.Array | np.ndarray
Spec: TypeAlias = jax.ShapeDtypeStruct
ArrayTree: TypeAlias = "Array | Sequence[ArrayTree] | Mapping[Any, ArrayTree] | None"
Gradient: TypeAlias = jax.Array | None  # None for a variable that the loss does not depend on
