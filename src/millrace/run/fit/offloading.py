"""Offloading to host memory: the defaults, and whether the devices have such memory.

    option                                   "auto"
    offload_weight_update_variables          where an update takes several micro-batches
    offload_activations                      where stages take several micro-batches at a time
    offload_gradient_accumulation_buffers    there, too
    offload_weights                          nowhere

Without such memory "auto" is False, and True an error. Where every step updates the weights, each
would wait for the optimizer's values: they rest in host memory only if True was set.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

import jax
import keras

from millrace._compat.jax_memory import host_memory, in_device_memory, is_on_host
from millrace._compat.jax_targets import is_described
from millrace.base.devices import device_name, home
from millrace.base.options import NO_OFFLOAD, TABLE, Accumulation, Offload, Replication
from millrace.errors import OptionError

logger = logging.getLogger("millrace")

_NAMES = {entry.field: entry.option.name for entry in TABLE if entry.record == "offload"}


def check_offload(
    offload: Offload, replication: Replication, devices: Sequence[jax.Device]
) -> None:
    """Refuses offloading that the devices do not have.

    Raises:
        OptionError: if an option is True and the devices have no such memory, or if weights are to
            be offloaded that replicas do not share out.
    """
    asked = [name for field, name in _NAMES.items() if getattr(offload, field)]
    device = home(devices)
    if asked and host_memory(device) is None:
        why = (
            "JAX knows the memory spaces of a GPU only where there is one, and the strategy's "
            f"{device_name(device)} is described"
            if is_described(device)
            else f"the backend {device.platform!r} ({device.device_kind}) has no other memory than "
            "the one its programs compute in"
        )
        raise OptionError(
            f"{asked[0]}=True keeps values in host memory, and {why}. Set {asked[0]}=False, or "
            "'auto', which never fails."
        )
    if offload.weights and not replication.shard_weights:
        raise OptionError(
            "offload_weights=True is for weights that replicas share out, and "
            "replicated_weight_sharding=False. Set replicated_weight_sharding=True, too, or "
            "offload_weights=False."
        )


def offload_in_force(
    offload: Offload,
    accumulation: Accumulation,
    is_pipelined: bool,
    devices: Sequence[jax.Device],
) -> Offload:
    """Returns the offloading of training, each option True or False.

    Args:
        offload: as the user set it.
        accumulation: of an update.
        is_pipelined: whether the model has stages.
        devices: of the strategy.
    """
    if host_memory(home(devices)) is None:
        return NO_OFFLOAD
    return Offload(**_with_defaults(offload, accumulation, is_pipelined))


def log_not_offloaded(
    offload: Offload,
    accumulation: Accumulation,
    is_pipelined: bool,
    devices: Sequence[jax.Device],
    is_new: Callable[[str], bool],
) -> None:
    """Logs once which values stay on devices without host memory.

    Args:
        offload: as the user set it.
        accumulation: of an update.
        is_pipelined: whether the model has stages.
        devices: of the strategy.
        is_new: whether a note has not been logged before.
    """
    device = home(devices)
    resolved = _with_defaults(offload, accumulation, is_pipelined)
    names = [_NAMES[field] for field, rests in resolved.items() if rests]
    if names and host_memory(device) is None and is_new(f"{device.platform}: {names}"):
        logger.info(
            "%s stays off: the backend %r has no other memory than the one its programs "
            "compute in.",
            " and ".join(names),
            device.platform,
        )


def _with_defaults(
    offload: Offload, accumulation: Accumulation, is_pipelined: bool
) -> dict[str, bool]:
    """Returns the offloading where there is host memory, with defaults for None."""
    batch_serialized = is_pipelined and accumulation.batch_serialization > 1
    several = accumulation.steps > 1
    return {
        "optimizer_state": _or(offload.optimizer_state, several or is_pipelined),
        "activations": _or(offload.activations, batch_serialized) and is_pipelined,
        "accumulators": _or(offload.accumulators, batch_serialized) and several,
        "weights": _or(offload.weights, False),
    }


def bring_back(variables: Iterable[keras.Variable]) -> None:
    """Moves the values of Keras variables out of host memory, so that any code can use them.

    An optimizer that averages weights assigns the averages, with their memory, to the weights.
    """
    for variable in variables:
        if is_on_host(getattr(variable.value, "sharding", None)):
            variable.assign(in_device_memory(variable.value))


def _or(option: bool | None, default: bool) -> bool:
    return default if option is None else option
