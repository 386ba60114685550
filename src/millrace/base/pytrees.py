"""Types of arrays, and of the nested structures that Keras and JAX pass around.

A function that takes any structure of arrays says `ArrayTree`, one that returns the structure of
its argument uses a type variable. The types are for reading and for the type checker: JAX takes
more kinds of nodes (dataclasses that are registered, for one) than can be written down here.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

Array: TypeAlias = jax.Array | np.ndarray
Spec: TypeAlias = jax.ShapeDtypeStruct
ArrayTree: TypeAlias = "Array | Sequence[ArrayTree] | Mapping[Any, ArrayTree] | None"
SpecTree: TypeAlias = "Spec | Sequence[SpecTree] | Mapping[Any, SpecTree] | None"
Layout: TypeAlias = jax.sharding.Sharding
LayoutTree: TypeAlias = "Layout | Sequence[LayoutTree] | Mapping[Any, LayoutTree] | None"
