"""What all processes must have in common, compared before they compute together.

the same on all devices    this process's copy
shared out over devices    gathered to each of them first, by all processes together

Processes that differ in it do not fail: they wait for each other for ever, or train on numbers
that mean nothing. So each puts short texts into the store of `jax.distributed`, and reads those
of the others. The store is served by process 0, and no device takes part.
"""

import itertools
import json
import time
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from millrace._compat import jax_processes as compat
from millrace._compat.jax_arrays import uncommitted
from millrace._compat.jax_memory import in_device_memory
from millrace.errors import PlanError, ProcessError


def own_copy(value: Any) -> Any:
    """Returns what this process has of a value that is the same on all devices of all processes."""
    if not isinstance(value, jax.Array) or value.is_fully_addressable:
        return value
    return uncommitted(value.addressable_data(0))


def gathered(value: Any) -> Any:
    """Returns a value of which every process that has a part calls this, whole and in this one."""
    if not isinstance(value, jax.Array) or value.is_fully_addressable:
        return value
    if not value.is_fully_replicated:
        value = in_device_memory(value)
        whole = NamedSharding(value.sharding.mesh, PartitionSpec())  # type: ignore[attr-defined]
        value = jax.jit(_same, out_shardings=whole)(value)
    return own_copy(value)


def on_one_device(value: Any) -> Any:
    """Returns an array that several devices share out as one on the first of them, uncommitted."""
    value = in_device_memory(value)
    sharding = getattr(value, "sharding", None)
    if sharding is None or len(sharding.device_set) == 1 or sharding.is_fully_replicated:
        return value
    return uncommitted(jax.device_put(value, sharding.mesh.devices.flat[0]))


def _same(value: Any) -> Any:
    return value


_COUNTER = itertools.count()
_SHOWN = 60  # characters of a value, around the first difference
_SEEDS = (
    "Call keras.utils.set_random_seed(1) with one seed in every process, before the model and the "
    "data are made, and load the same files in all."
)
_SCRIPT = "Run the same script with the same arguments in every process."
REMEDIES = {"weights": _SEEDS, "data order": _SEEDS, "seed": _SEEDS, "data": _SEEDS}


def check_same(parts: Mapping[str, str], timeout: float = 60.0) -> None:
    """Compares what the processes have; every process calls this at the same point.

    Args:
        parts: names of what is compared, such as "options" or "weights", each with a short text
            or a hash.
        timeout: seconds to wait for the others.

    Raises:
        PlanError: in every process, if a part is not the same in all.
        ProcessError: if not all processes came here in time.
    """
    if compat.process_count() == 1:
        return
    for name, values in _differences(_exchange(json.dumps(dict(parts)), timeout)).items():
        raise PlanError(_message(name, values))


def _exchange(text: str, timeout: float) -> list[dict[str, str]]:
    """Gives this process's text to all; returns what each of them gave, in order."""
    store, index, count = compat.key_value_store(), compat.process_index(), compat.process_count()
    number = next(_COUNTER)
    place = f"millrace/same/{number}"
    if number >= 2:
        # All have come to the comparison before this one, so all have read the one before that.
        store.key_value_delete(f"millrace/same/{number - 2}/{index}")
    store.key_value_set(f"{place}/{index}", text)
    deadline = time.monotonic() + timeout
    texts = []
    for other in range(count):
        left = max(int(1000 * (deadline - time.monotonic())), 1)
        try:
            texts.append(store.blocking_key_value_get(f"{place}/{other}", left))
        except Exception as error:  # the public base of JAX's errors; a timeout has no class
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            here = {key.rpartition("/")[2] for key, _ in store.key_value_dir_get(f"{place}/")}
            missing = ", ".join(str(i) for i in range(count) if str(i) not in here)
            raise ProcessError(
                f"Processes compare what they run before they start. In {timeout:g} seconds, "
                f"these did not come to comparison {number + 1}: {missing}. {_SCRIPT} Each call "
                "of fit, evaluate and predict must be made by all of them."
            ) from error
    return [json.loads(text) for text in texts]


def _differences(given: list[dict[str, str]]) -> dict[str, list[str]]:
    """For each part that is not the same in all, what every process has."""
    names = dict.fromkeys(name for parts in given for name in parts)
    values = {name: [parts.get(name, "nothing") for parts in given] for name in names}
    return {name: texts for name, texts in values.items() if len(set(texts)) > 1}


def _message(name: str, values: list[str]) -> str:
    owners: dict[str, list[str]] = {}
    for index, value in enumerate(values):
        owners.setdefault(value, []).append(str(index))
    start = _first_difference(list(owners))
    shown = "; ".join(
        f"process{'es' if len(who) > 1 else ''} {', '.join(who)}: {_shorten(value, start)}"
        for value, who in owners.items()
    )
    return (
        f"The processes of this run do not have the same {name}. {shown}. "
        f"{REMEDIES.get(name, _SCRIPT)}"
    )


def _first_difference(texts: list[str]) -> int:
    columns = itertools.zip_longest(*texts)
    return next(place for place, column in enumerate(columns) if len(set(column)) > 1)


def _shorten(text: str, difference: int) -> str:
    start = max(difference - _SHOWN // 3, 0) if len(text) > _SHOWN else 0
    end = start + _SHOWN
    return "..." * (start > 0) + text[start:end] + "..." * (end < len(text))
