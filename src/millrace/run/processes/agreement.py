"""The agreement of all processes on model, options, weights and data.

an array that is the same on all devices    own_copy: this process's copy
an array that is split over devices         gathered: by all processes together, then the copy

Processes that disagree do not fail: they wait for each other for ever, or train on meaningless
numbers. So each puts short texts into the store of `jax.distributed` and reads those of the
others. Process 0 serves the store, and no device takes part.
"""

import ctypes
import dataclasses
import itertools
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any, Self, TypeVar

import jax
from jax.sharding import NamedSharding, PartitionSpec

from millrace._compat import jax_processes as compat
from millrace._compat.jax_arrays import uncommitted
from millrace._compat.jax_memory import in_device_memory
from millrace._compat.jax_processes import process_count as process_count
from millrace._compat.jax_processes import process_index as process_index
from millrace.errors import PlanError, ProcessError

Texts = TypeVar("Texts", str, dict[str, str])

_VARIABLE = "MILLRACE_LAUNCH"
_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """One process of the run: its number, and where to find it."""

    index: int
    host: str
    pid: int

    @classmethod
    def this(cls, index: int) -> Self:
        """Returns the description of the calling process."""
        return cls(index, socket.gethostname(), os.getpid())

    def __str__(self) -> str:
        return f"process {self.index} (host {self.host}, pid {self.pid})"


@dataclasses.dataclass(frozen=True, slots=True)
class Launched:
    """Facts from `millrace launch` for one process, in a variable of its environment."""

    coordinator_address: str
    num_processes: int
    process_id: int
    devices: int | None  # virtual CPU devices of each process
    directory: str  # where a process leaves notes for the launcher
    launcher: int  # its pid
    run: str = ""  # by which processes of another run are told apart

    def to_environment(self) -> dict[str, str]:
        """Returns the variable to start the process with."""
        return {_VARIABLE: json.dumps(dataclasses.asdict(self))}

    @staticmethod
    def exists() -> bool:
        """Whether a launcher started this process, and nothing has connected it yet."""
        return _VARIABLE in os.environ

    @classmethod
    def take(cls) -> Self | None:
        """Reads the variable and removes it; returns None if `millrace launch` did not set it.

        It is removed because processes that the script starts, such as data loaders, inherit the
        environment and are not processes of the run.
        """
        text = os.environ.pop(_VARIABLE, None)
        return None if text is None else cls(**json.loads(text))

    def end_with_launcher(self) -> None:
        """Makes the kernel kill this process if the launcher dies, on Linux."""
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
            if os.getppid() != self.launcher:  # it died before
                os._exit(1)

    def note(self, name: str, text: str = "") -> None:
        """Leaves a note for the launcher, unless there is one of this name already."""
        try:
            with open(os.path.join(self.directory, name), "x") as file:
                file.write(text)
        except OSError:
            pass  # it exists, or the launcher has gone; its summary then says less


def own_copy(value: object) -> Any:
    """Returns this process's copy of an array that is the same on all devices, or `value`."""
    if not isinstance(value, jax.Array) or value.is_fully_addressable:
        return value
    return uncommitted(value.addressable_data(0))


def gathered(value: object) -> Any:
    """Returns an array that is split over processes as a whole. All of these processes call it."""
    if not isinstance(value, jax.Array) or value.is_fully_addressable:
        return value
    if not value.is_fully_replicated:
        value = in_device_memory(value)
        whole = NamedSharding(value.sharding.mesh, PartitionSpec())  # type: ignore[attr-defined]
        value = jax.jit(_same, out_shardings=whole)(value)
    return own_copy(value)


def on_one_device(value: jax.Array) -> Any:
    """Returns an array that is split over devices as one on the first of them, uncommitted."""
    value = in_device_memory(value)
    sharding = getattr(value, "sharding", None)
    if sharding is None or len(sharding.device_set) == 1 or sharding.is_fully_replicated:
        return value
    return uncommitted(jax.device_put(value, sharding.mesh.devices.flat[0]))


def _same(value: jax.Array) -> jax.Array:
    return value


@dataclasses.dataclass(slots=True)
class Exchanges:
    """How often all processes have exchanged texts: the same number in all of them."""

    count: int = 0


EXCHANGES = Exchanges()
_FIRST_SECONDS = 60  # it is there already; a store that does not answer is an error
_SHOWN = 60  # characters of a value, around the first difference
_SEEDS = (
    "Call keras.utils.set_random_seed(1) with one seed in every process, before the model and the "
    "data are made, and load the same files in all."
)
_SCRIPT = "Run the same script with the same arguments in every process."
REMEDIES = {
    "weights": _SEEDS,
    "data order": _SEEDS,
    "seed": _SEEDS,
    "data": _SEEDS,
    "last batch": _SEEDS,
}


def text_of_first(key: str, text: str) -> str:
    """Returns the text of the process of the run that called this first; nobody waits for others.

    Args:
        key: of what the processes agree on, such as "report_dir".
        text: of this process, which counts if it is the first.
    """
    store = compat.key_value_store()
    if compat.process_count() == 1 or store is None:
        return text
    name = f"millrace/first/{key}"
    try:
        store.key_value_set(name, text)  # an error where there is one already
    except Exception as error:  # the public base of JAX's errors
        if "ALREADY_EXISTS" not in str(error):
            raise
    return store.blocking_key_value_get(name, 1000 * _FIRST_SECONDS)


def check_same(facts: Mapping[str, str], timeout: float = 60.0) -> None:
    """Compares facts between processes; every process calls this at the same point.

    Args:
        facts: short texts or hashes, by name, such as "options" or "weights".
        timeout: seconds to wait for the others.

    Raises:
        PlanError: in every process, if a fact is not the same in all.
        ProcessError: if not all processes call this in time.
    """
    raise_difference(texts_of_all(dict(facts), timeout))


def raise_difference(facts: list[dict[str, str]]) -> None:
    """Refuses facts that differ between processes.

    Args:
        facts: of all processes, in order.

    Raises:
        PlanError: if a fact is not the same in all.
    """
    for name, values in _differences(facts).items():
        raise PlanError(_message(name, values))


def texts_of_all(text: Texts, timeout: float) -> list[Texts]:
    """Returns the short texts of all processes, in order; every process calls this.

    Args:
        text: of this process: one, or several by name.
        timeout: seconds to wait for the others.

    Raises:
        ProcessError: if not all processes call this in time.
    """
    store, index, count = compat.key_value_store(), compat.process_index(), compat.process_count()
    if count == 1:
        return [text]
    number, EXCHANGES.count = EXCHANGES.count, EXCHANGES.count + 1
    prefix = f"millrace/same/{number}"
    if number >= 2:
        # All processes have begun the previous comparison, so all have read the one before it.
        store.key_value_delete(f"millrace/same/{number - 2}/{index}")
    store.key_value_set(f"{prefix}/{index}", json.dumps(text))
    deadline = time.monotonic() + timeout
    texts = []
    for other in range(count):
        left = max(int(1000 * (deadline - time.monotonic())), 1)
        try:
            texts.append(store.blocking_key_value_get(f"{prefix}/{other}", left))
        except Exception as error:  # the public base of JAX's errors; a timeout has no class
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            here = {key.rpartition("/")[2] for key, _ in store.key_value_dir_get(f"{prefix}/")}
            missing = ", ".join(str(i) for i in range(count) if str(i) not in here)
            raise ProcessError(
                f"Processes compare their programs before they run. In {timeout:g} seconds, "
                f"these did not come to comparison {number + 1}: {missing}. {_SCRIPT} All of them "
                "must make each call of fit, evaluate and predict."
            ) from error
    return [json.loads(text) for text in texts]


def _differences(facts: list[dict[str, str]]) -> dict[str, list[str]]:
    """Returns the texts of all processes for each fact that differs between them."""
    names = dict.fromkeys(name for own in facts for name in own)
    values = {name: [own.get(name, "nothing") for own in facts] for name in names}
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
    return next(index for index, column in enumerate(columns) if len(set(column)) > 1)


def _shorten(text: str, difference: int) -> str:
    start = max(difference - _SHOWN // 3, 0) if len(text) > _SHOWN else 0
    end = start + _SHOWN
    return "..." * (start > 0) + text[start:end] + "..." * (end < len(text))
