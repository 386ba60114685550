"""The copies of a variable that replicas have, kept beside it.

    variable.value   [...]      replica 0's
    its copies    [R, ...]      as the last program left them

Copies count as long as the variable holds the very array that was stored with them: whoever assigns
it afterwards, a checkpoint say, gives all replicas that value.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from millrace._compat.keras_scope import stored_value
from millrace.loops.scope import put, value_of

_ATTRIBUTE = "millrace_copies"
_SEED = "seed_generator_state"


class _Copies(NamedTuple):
    stored: Any  # what the variable held then
    stacked: Any  # [R, ...]


def copies_of(variables: Sequence[Any], count: int) -> list[Any]:
    """Returns the values of variables for all replicas, `[R, ...]`; for one replica as they are.

    Random seeds that have no copies yet become different ones.
    """
    if count == 1:
        return list(map(value_of, variables))
    found = [_kept(variable, count) for variable in variables]
    missing = [k for k, copies in enumerate(found) if copies is None]
    if missing:
        made = _spread(
            [value_of(variables[k]) for k in missing],
            tuple(_is_seed(variables[k]) for k in missing),
            count,
        )
        for k, copies in zip(missing, made, strict=True):
            found[k] = copies
    return found


def read_by(variables: Sequence[Any], count: int) -> list[Any]:
    """Returns values that are only read: `[R, ...]` for variables with copies, else one for all."""
    return [
        value_of(variable) if (kept := _kept(variable, count)) is None else kept
        for variable in variables
    ]


def axes_of(variables: Sequence[Any], values: Sequence[Any]) -> list[int | None]:
    """Returns which of the values `read_by` has returned have an axis of replicas: 0, or None."""
    return [
        0 if np.ndim(value) > len(variable.shape) else None
        for variable, value in zip(variables, values, strict=True)
    ]


def put_copies(variables: Sequence[Any], stacked: Sequence[Any]) -> None:
    """Gives variables the values of replica 0, and keeps those of all."""
    put(variables, _first(list(stacked)))
    for variable, copies in zip(variables, stacked, strict=True):
        setattr(variable, _ATTRIBUTE, _Copies(stored_value(variable), copies))


def _kept(variable: Any, count: int) -> Any:
    copies: _Copies | None = getattr(variable, _ATTRIBUTE, None)
    if copies is None or count == 1:
        return None
    is_valid = copies.stored is stored_value(variable) and len(copies.stacked) == count
    return copies.stacked if is_valid else None


def _is_seed(variable: Any) -> bool:
    return variable.name == _SEED and variable.dtype == "uint32"


def _spread_traced(values: list[Any], are_seeds: tuple[bool, ...], count: int) -> list[Any]:
    index = jnp.arange(count, dtype=jnp.uint32)[:, None]
    # What draws from a seed counts in its last number, so the first one is free.
    return [
        value + index * jnp.asarray([0x9E3779B9, 0], jnp.uint32)
        if is_seed
        else jnp.broadcast_to(value, (count, *value.shape))
        for value, is_seed in zip(values, are_seeds, strict=True)
    ]


_spread = jax.jit(_spread_traced, static_argnums=(1, 2))


@jax.jit
def _first(stacked: list[Any]) -> list[Any]:
    return [copies[0] for copies in stacked]
