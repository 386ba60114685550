"""Data of which each process has its own part, as programs of PopDist give it to `fit`.

    dataset = dataset.shard(num_shards=popdist.getNumInstances(), index=popdist.getInstanceIndex())

Elsewhere all processes draw the same batches, and each keeps those of its replicas. So the part of
a process is spread out to the order of all replicas. Two processes of two replicas each:

    process 0 draws   a b c d        ->  a b _ _ c d _ _
    process 1 draws   e f g h        ->  _ _ e f _ _ g h       `_` is any batch: nobody computes it

    predict           a b e f c d g h are the outputs of all  ->  a b c d in process 0
"""

import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import jax
import keras
import numpy as np
from jax.experimental import multihost_utils

from millrace.errors import PlanError, UnsupportedError
from millrace.extend import (
    DataAdapter,
    Setup,
    get_data_adapter,
    process_index,
    stacked,
    texts_of_all,
)
from millrace_ipu.ipu.config import current_system
from millrace_ipu.ipu.config.devices import processes_of
from millrace_ipu.pytrees import ArrayTree

_SECONDS = 600.0  # from the first process to the last
ONE_BATCH = ("train_on_batch", "test_on_batch", "predict_on_batch")
_DATA = ("x", "y", "sample_weight", "class_weight")


class Instances:
    """The processes of a run, each with its part of the data, for one model."""

    def __init__(self, count: int):
        """Takes the number of processes."""
        self.count, self.index = count, process_index()
        self.rows: int | None = None  # of a batch of the running loop
        self._has_shared = False

    def arguments(self, setup: Setup, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the arguments of Keras's epoch iterator, with the data spread out."""
        x = _OwnPart(self, setup, arguments)
        return {**arguments, **dict.fromkeys(_DATA), "x": x}

    def replicas(self, setup: Setup) -> int:
        """Returns the number of replicas of one process.

        Raises:
            PlanError: if a replica spans processes.
        """
        if setup.replicas % self.count:
            raise PlanError(
                f"{setup.model.name!r} runs as {setup.replicas} replicas on {self.count} processes,"
                " of which each feeds its own replicas. Give each process the devices of whole "
                "replicas: `millrace poprun --ipus-per-replica` with the number of stages."
            )
        return setup.replicas // self.count

    def spread(self, batches: Iterator[ArrayTree], setup: Setup) -> Iterator[ArrayTree]:
        """Yields the batches of this process where they stand among those of all replicas."""
        replicas = self.replicas(setup)
        first, total = self.index * replicas, self.count * replicas
        while own := [batch for _, batch in zip(range(replicas), batches, strict=False)]:
            self.rows = len(jax.tree.leaves(own[0])[0])
            for replica in range(total * len(own) // replicas):
                mine = replica - first if len(own) == replicas else 0
                yield own[mine if 0 <= mine < len(own) else 0]

    def own_rows(self, setup: Setup, outputs: ArrayTree) -> ArrayTree:
        """Returns the rows of this process among the outputs of all replicas."""
        rows = self.replicas(setup) * (self.rows or 0)

        def own(output: Any) -> Any:
            parts = np.asarray(output).reshape(-1, self.count, rows, *np.shape(output)[1:])
            return parts[:, self.index].reshape(-1, *np.shape(output)[1:])

        return jax.tree.map(own, outputs)

    def check_parts(self, adapter: DataAdapter) -> None:
        """Refuses parts of different sizes.

        Raises:
            PlanError: in all processes, with the sizes of each.
        """
        own = adapter.num_batches
        part = f"{own if own is None else own // self.count} batches of {adapter.batch_size} rows"
        parts = texts_of_all(part, _SECONDS)
        if len(set(parts)) > 1:
            shown = "; ".join(f"process {index}: {each}" for index, each in enumerate(parts))
            raise PlanError(
                f"The processes have parts of different sizes. {shown}. Drop what is left over "
                "before dataset.shard(), such as dataset.take(len(dataset) // n * n) for n "
                "processes, and batch with drop_remainder=True."
            )

    def refuse_one_batch(self, *_: object, **__: object) -> NoReturn:
        """Stands for `train_on_batch` and its like, which do not know the batches of the others.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            f"{', '.join(ONE_BATCH)} are not supported on {self.count} processes, of which each "
            "has its part of the data. Call fit(), evaluate() or predict() with a data set."
        )

    def share_weights(self, model: keras.Model) -> None:
        """Gives all processes the weights of the first, before the first step of a loop."""
        if self._has_shared or not model.built:
            return
        self._has_shared = True
        values = [np.asarray(variable) for variable in model.variables]
        total = 0
        for value in values:
            total = zlib.crc32(np.ascontiguousarray(value).data.cast("B"), total)
        if len(set(texts_of_all(f"weights {total:08x}", _SECONDS))) > 1:
            for variable, value in zip(model.variables, values, strict=True):
                variable.assign(_of_first_process(value))


def instances_of(setup: Setup) -> Instances | None:
    """Returns the processes of a model's devices; None where all of them draw the same data."""
    count = processes_of(current_system().config) if setup.spans_processes else 1
    return None if count == 1 else Instances(count)


def _of_first_process(value: np.ndarray) -> np.ndarray:
    # As bytes: JAX would make float64 and int64 arrays of 32 bits.
    raw = np.frombuffer(np.ascontiguousarray(value).tobytes(), "uint8")
    first = np.asarray(multihost_utils.process_allgather(raw))[0]
    return np.frombuffer(first.tobytes(), value.dtype).reshape(value.shape)


class _OwnPart:
    """The data of this process, of which Keras makes an adapter."""

    def __init__(self, instances: Instances, setup: Setup, arguments: Mapping[str, Any]):
        self._instances, self._setup, self._arguments = instances, setup, arguments

    def as_data_adapter(self, **_: object) -> "_OwnPartAdapter":
        x = self._arguments.get("x")
        adapt, names = getattr(x, "as_data_adapter", None), _DATA[1:]
        if adapt is None:
            adapt, names = get_data_adapter, (*_DATA, "batch_size", "steps_per_epoch", "shuffle")
        own = adapt(**{name: self._arguments[name] for name in names if name in self._arguments})
        return _OwnPartAdapter(own, self._instances, self._setup)

    def cardinality(self) -> int:
        cardinality = getattr(self._arguments.get("x"), "cardinality", None)
        return int(cardinality()) if callable(cardinality) else -2  # type: ignore[call-overload]


class _OwnPartAdapter(DataAdapter):
    """Spreads out the batches of another adapter."""

    def __init__(self, own: DataAdapter, instances: Instances, setup: Setup):
        self._own, self._instances, self._setup = own, instances, setup
        self._dataset = getattr(own, "_dataset", None)  # says whether it ends

    def get_numpy_iterator(self) -> Iterator[Any]:
        return self._instances.spread(iter(self._own.get_numpy_iterator()), self._setup)

    def get_jax_iterator(self, super_batch: int | None = None) -> Iterator[Any]:
        batches = self._instances.spread(iter(self._own.get_jax_iterator()), self._setup)
        return stacked(batches, super_batch)

    @property
    def num_batches(self) -> int | None:
        own = self._own.num_batches
        return None if own is None else own * self._instances.count

    batch_size = property(lambda self: self._own.batch_size)  # type: ignore[override]
    has_partial_batch = property(lambda self: self._own.has_partial_batch)  # type: ignore[override]
    partial_batch_size = property(lambda self: self._own.partial_batch_size)  # type: ignore[override]

    def on_epoch_begin(self) -> None:
        self._own.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._own.on_epoch_end()
