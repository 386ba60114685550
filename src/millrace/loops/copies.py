"""The replicas' copies of a variable, kept as an attribute of it.

    variable.value   [...]      replica 0's
    its copies    [R, ...]      as the last program left them

Copies are valid as long as the variable holds the very array that was stored with them. Any later
assignment, such as loading a checkpoint, gives all replicas the new value.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import keras
import numpy as np

from millrace._compat.keras_steps import stored_value
from millrace.loops.scope import put, value_of

_ATTRIBUTE = "millrace_copies"
_SEED = "seed_generator_state"


class _ReplicaCopies(NamedTuple):
    stored: jax.Array  # the value of the variable at that time
    stacked: jax.Array  # [R, ...]


def copies_of(variables: Sequence[keras.Variable], count: int) -> list[jax.Array]:
    """Returns the values of variables for all replicas, `[R, ...]`; for one replica as they are.

    A random seed without copies becomes a different seed on each replica.
    """
    if count == 1:
        return list(map(value_of, variables))
    values = [_valid_copies(variable, count) for variable in variables]
    missing = [k for k, copies in enumerate(values) if copies is None]
    if missing:
        new = _spread(
            [value_of(variables[k]) for k in missing],
            tuple(_is_seed(variables[k]) for k in missing),
            count,
        )
        for k, copies in zip(missing, new, strict=True):
            values[k] = copies
    return values  # type: ignore[return-value] - none is missing any more


def values_to_read(variables: Sequence[keras.Variable], count: int) -> list[jax.Array]:
    """Returns values of variables that a program only reads, with copies `[R, ...]` if they have.

    Variables without copies have one value for all replicas.
    """
    return [
        value_of(variable) if (copies := _valid_copies(variable, count)) is None else copies
        for variable in variables
    ]


def replica_axes(
    variables: Sequence[keras.Variable], values: Sequence[jax.Array]
) -> list[int | None]:
    """Returns 0 for each value of `values_to_read` that has an axis of replicas, else None."""
    return [
        0 if np.ndim(value) > len(variable.shape) else None
        for variable, value in zip(variables, values, strict=True)
    ]


def put_copies(variables: Sequence[keras.Variable], stacked: Sequence[jax.Array]) -> None:
    """Assigns the values of replica 0 to variables, and keeps those of all replicas."""
    put(variables, _first(list(stacked)))
    for variable, copies in zip(variables, stacked, strict=True):
        setattr(variable, _ATTRIBUTE, _ReplicaCopies(stored_value(variable), copies))


def _valid_copies(variable: keras.Variable, count: int) -> jax.Array | None:
    copies: _ReplicaCopies | None = getattr(variable, _ATTRIBUTE, None)
    if copies is None or count == 1:
        return None
    is_valid = copies.stored is stored_value(variable) and len(copies.stacked) == count
    return copies.stacked if is_valid else None


def _is_seed(variable: keras.Variable) -> bool:
    return variable.name == _SEED and variable.dtype == "uint32"


def _spread_traced(
    values: list[jax.Array], are_seeds: tuple[bool, ...], count: int
) -> list[jax.Array]:
    index = jnp.arange(count, dtype=jnp.uint32)[:, None]
    # Keras counts draws in the last number of a seed, so the first one is free.
    return [
        value + index * jnp.asarray([0x9E3779B9, 0], jnp.uint32)
        if is_seed
        else jnp.broadcast_to(value, (count, *value.shape))
        for value, is_seed in zip(values, are_seeds, strict=True)
    ]


_spread = jax.jit(_spread_traced, static_argnums=(1, 2))


@jax.jit
def _first(stacked: list[jax.Array]) -> list[jax.Array]:
    return [copies[0] for copies in stacked]
