"""The replicas' copies of a variable, kept as an attribute of it.

    variable.value   [...]      replica 0's
    its copies    [R, ...]      as the last program left them, a part on each device

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
from millrace.api.own_loops.scope import put, value_of
from millrace.base.devices import DeviceGroup, put_on
from millrace.run.processes.agreement import gathered, own_copy

_ATTRIBUTE = "millrace_copies"
_SEED = "seed_generator_state"
_SPREAD = 0x9E3779B9  # between the seeds of neighbours


class _ReplicaCopies(NamedTuple):
    stored: jax.Array  # the value of the variable at that time
    stacked: jax.Array  # [R, ...]; [...] if one value serves all replicas
    is_whole: bool = False  # whether it does


def copies_of(variables: Sequence[keras.Variable], group: DeviceGroup) -> list[jax.Array]:
    """Returns the values of variables, `[R, ...]`, the part of each replica on its device.

    A random seed without copies becomes a different seed on each replica.
    """
    layout = group.split(0)
    return [
        _spread_on(variable, group) if copies is None else put_on(copies, layout)
        for variable, copies in ((v, _valid_copies(v, group.replicas)) for v in variables)
    ]


def values_to_read(variables: Sequence[keras.Variable], group: DeviceGroup) -> list[jax.Array]:
    """Returns values of variables that a program only reads, on the devices of the replicas.

    They are copies `[R, ...]` if the variable has them. Otherwise one value serves all replicas,
    and is kept there until the variable changes.
    """
    values = []
    for variable in variables:
        copies = _valid_copies(variable, group.replicas)
        if copies is not None:
            values.append(put_on(copies, group.split(0)))
            continue
        kept: _ReplicaCopies | None = getattr(variable, _ATTRIBUTE, None)
        stored = stored_value(variable)
        if kept is None or kept.stored is not stored or kept.stacked.sharding != group.whole:
            kept = _ReplicaCopies(stored, put_on(value_of(variable), group.whole), is_whole=True)
            setattr(variable, _ATTRIBUTE, kept)
        values.append(kept.stacked)
    return values


def put_copies(
    variables: Sequence[keras.Variable],
    stacked: Sequence[jax.Array],
    first: Sequence[jax.Array] | None,
) -> None:
    """Assigns the values of replica 0 to variables, and keeps those of all replicas.

    Args:
        variables: to be assigned.
        stacked: values of all replicas.
        first: those of replica 0, whole on each device; None if its device is of this process.
    """
    if first is None:
        put(variables, _first([value.addressable_data(0) for value in stacked]))
    else:
        put(variables, [value.addressable_data(0) for value in first])
    _keep(variables, stacked)


def copies_to_save(variable: keras.Variable) -> np.ndarray | None:
    """Returns the copies of all replicas, `[R, ...]`; None if they follow from the value.

    With several processes all of them call this.
    """
    kept: _ReplicaCopies | None = getattr(variable, _ATTRIBUTE, None)
    if kept is None or kept.is_whole or kept.stored is not stored_value(variable):
        return None
    copies = np.array(gathered(kept.stacked))
    value = np.asarray(own_copy(value_of(variable)))
    is_equal = all(copy.tobytes() == value.tobytes() for copy in copies)
    return None if is_equal and not _is_seed(variable) else copies


def put_saved(variable: keras.Variable, value: np.ndarray, copies: np.ndarray | None) -> None:
    """Assigns a variable a value, and the copies that `copies_to_save` has returned."""
    variable.assign(value)
    setattr(variable, _ATTRIBUTE, None)
    if copies is not None:
        _keep([variable], [jnp.asarray(copies)])


def _keep(variables: Sequence[keras.Variable], stacked: Sequence[jax.Array]) -> None:
    for variable, copies in zip(variables, stacked, strict=True):
        setattr(variable, _ATTRIBUTE, _ReplicaCopies(stored_value(variable), copies))


def _valid_copies(variable: keras.Variable, count: int) -> jax.Array | None:
    copies: _ReplicaCopies | None = getattr(variable, _ATTRIBUTE, None)
    if copies is None or copies.is_whole:
        return None
    is_valid = copies.stored is stored_value(variable) and len(copies.stacked) == count
    return copies.stacked if is_valid else None


def _is_seed(variable: keras.Variable) -> bool:
    return variable.name == _SEED and variable.dtype == "uint32"


def _spread_on(variable: keras.Variable, group: DeviceGroup) -> jax.Array:
    """Returns a value's copies without holding all of them on one device."""
    value, local = value_of(variable), group.local
    if _is_seed(variable):
        # Keras counts draws in the last number of a seed, so the first one is free.
        indices = np.arange(group.replicas, dtype=np.uint32)[:, None]
        seeds = np.asarray(value) + indices * np.asarray([_SPREAD, 0], np.uint32)
        values = [seeds[index] for index in local]
    else:
        values = [value] * len(local)
    parts = [
        jax.device_put(value, group.devices[index])[None]
        for index, value in zip(local, values, strict=True)
    ]
    shape = (group.replicas, *variable.shape)
    return jax.make_array_from_single_device_arrays(shape, group.split(0), parts)


@jax.jit
def _first(stacked: list[jax.Array]) -> list[jax.Array]:
    return [copies[0] for copies in stacked]
