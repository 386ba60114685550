"""A program: a pure function with the specs of its arguments, ready to be compiled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
from jax import lax

from millrace.base.pytrees import SpecTree
from millrace.programs.plan import BatchSpec

# Specs of scalar arguments: a number of steps, or a factor of gradients.
INDEX = jax.ShapeDtypeStruct((), jnp.int32)
FACTOR = jax.ShapeDtypeStruct((), jnp.float32)


@dataclass(frozen=True, slots=True)
class Program:
    """A pure function with the specs of its arguments."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]  # trees of jax.ShapeDtypeStruct
    donated: tuple[int, ...]  # positions of arguments whose memory the results reuse
    results: Any = None  # tree of shardings, where the group has several devices
    source: object = None  # what it was made of, which can name its arguments
    keeps_barriers: bool = False  # whether its barriers hold parts of a batch apart


class FunctionSource(NamedTuple):
    """What the program of a user's function was made of."""

    changed: Sequence[keras.Variable]  # in the order of its first arguments
    fixed: Sequence[keras.Variable]


def batch_specs(batch: BatchSpec, *lead: int) -> SpecTree:
    """Returns the specs of a batch with the axes `lead` in front: `[*lead, rows, ...]`."""
    leaves = [
        jax.ShapeDtypeStruct((*lead, *shape), dtype)
        for shape, dtype in zip(batch.shapes, batch.dtypes, strict=True)
    ]
    return jax.tree.unflatten(batch.treedef, leaves)


def merge_steps(leaf: jax.Array) -> jax.Array:
    """`[records, rows, ...]` -> `[records * rows, ...]`, as Keras concatenates predictions."""
    return lax.collapse(leaf, 0, 2) if leaf.ndim > 1 else leaf
