"""Private Keras: the sources from which its loops draw. Checked on keras 3.13.0, 3.14.0 and 3.15.1.

`EpochIterator`   `fit`, `evaluate` and `predict` build one of these per call and draw executions
                  from it; nothing public replaces it.
`DataAdapter`     the source of an epoch iterator's batches; there is no public base class.
`get_data_adapter`, `is_array_adapter`   the adapter that Keras makes of `x`, in its order of rows.
`is_endless`      whether a data set declares that it never ends.
`tracked_source`  the batches of a pass, with the state of what they are drawn from.
`remembers_passes`, `dataset_behind`   what the next pass depends on, too.
`spec_of_data`    tells data sets apart.
`end_workers`     Keras ends the workers of a `PyDataset` at the end of an epoch only, and never
                  where two of their batches fail.
`stacked`         the batches that Keras's own scan of several steps draws.
`let_data_adapt`  Keras knows data sets by a list of types; nothing public adds one to it.
"""

import abc
import contextlib
import pathlib
import queue
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
from keras.src.backend.jax import trainer as _trainer
from keras.src.trainers.data_adapters import array_data_adapter, get_data_adapter
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from millrace._compat.patch_table import DATA_ADAPTER
from millrace._compat.patches import replace, unpatched
from millrace._compat.versions import keras_is
from millrace._compat.versions import private as private_name
from millrace.pytrees import ArrayTree

__all__ = [
    "DataAdapter",
    "EpochIterator",
    "adapter_epoch",
    "dataset_behind",
    "end_workers",
    "epoch_order",
    "get_data_adapter",
    "has_read_ahead",
    "has_state",
    "is_array_adapter",
    "is_endless",
    "let_data_adapt",
    "parts_of_loader",
    "read_ahead_again",
    "remembers_passes",
    "set_adapter_epoch",
    "spec_of_data",
    "stacked",
    "tracked_source",
]

_READ_AHEAD_SECONDS = 1.0  # in which workers fill their queue
_POOLS = "_millrace_pools"  # of an enqueuer: those that it has started
_StockEpochIterator = unpatched(_trainer.JAXEpochIterator)


class EpochIterator(_StockEpochIterator, abc.ABC):
    """Keras's epoch iterator, whose executions a subclass makes.

    Keras goes through `(begin, end, executions' iterator)` once per epoch. With `steps_per_epoch`,
    one pass through the data goes on over several epochs; without, each epoch is a pass. An epoch
    in which the data runs out ends the pass, too: `catch_stop_iteration` drops the iterator.
    """

    @abc.abstractmethod
    def executions(self) -> Iterator[tuple[int, int, Any]]:
        """Yields the first and the last step of each execution of an epoch, and its source."""

    def before_epoch(self) -> None:
        """Is called before the data adapter learns that an epoch begins."""

    def _enumerate_iterator(self) -> Iterator[tuple[int, int, Any]]:  # type: ignore[override]
        if self.begins_pass:
            self.end_pass()
        self.before_epoch()
        self.between_epochs(self.data_adapter.on_epoch_begin)
        yield from self.executions()
        self.between_epochs(self.data_adapter.on_epoch_end)

    @abc.abstractmethod
    def between_epochs(self, tell: Callable[[], None]) -> None:
        """Calls `tell`, which tells the data set of the begin or the end of an epoch."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        _remember_pools(self.data_adapter)

    def host_batches(self) -> Iterator[Any]:
        """Returns the data adapter's batches of this pass, in host memory."""
        if self._current_iterator is None:
            self._current_iterator = iter(self.data_adapter.get_jax_iterator())
        return self._current_iterator

    @property
    def begins_pass(self) -> bool:
        """Whether the next epoch begins with the first batch of the data."""
        return self.steps_per_epoch is None or self._current_iterator is None

    def end_pass(self) -> None:
        """Ends the pass: the next batch is the first of the data again."""
        self._current_iterator = None
        self._steps_seen = 0

    @property
    def steps_in_pass(self) -> int:
        """Steps of this pass so far; `executions` counts them."""
        return self._steps_seen

    @steps_in_pass.setter
    def steps_in_pass(self, steps: int) -> None:
        self._steps_seen = steps

    @property
    def pass_length(self) -> int | None:
        """Batches in one pass through the data; None while the number is not known."""
        return self._num_batches

    @pass_length.setter
    def pass_length(self, batches: int) -> None:
        self._num_batches = batches

    def warn_of_missing_data(self) -> None:
        """Warns, in Keras's words, that the data ran out before the end of an epoch."""
        self._interrupted_warning()


_END_SECONDS = 5.0  # longest wait for the thread that hands out the work


def end_workers(adapter: DataAdapter) -> None:
    """Ends the threads and processes that make the batches of a `PyDataset`, if some are left.

    Batches that they have made are dropped. A process that hangs is killed; a thread that hangs
    can only be left to itself.
    """
    enqueuer = getattr(adapter, "enqueuer", None)
    if enqueuer is None:
        return
    hands_out = enqueuer.run_thread
    enqueuer.running = False
    pools = enqueuer.__dict__.get(_POOLS, [])
    # It may wait for room in the queue, and sees only then that it should end.
    deadline = time.monotonic() + _END_SECONDS
    while hands_out is not None and hands_out.is_alive() and time.monotonic() < deadline:
        _empty_queues(enqueuer)
        hands_out.join(0.005)
    _empty_queues(enqueuer)
    for pool in pools:
        pool.terminate()
        for result in list(pool._cache.values()):  # nobody else ends the wait for one
            result._set(0, (False, RuntimeError("The workers of the data set were ended.")))
    pools.clear()
    enqueuer.run_thread = None


def _empty_queues(enqueuer: Any) -> None:
    for each in (enqueuer.future_queue, enqueuer.ready_queue):
        with contextlib.suppress(queue.Empty):
            while True:
                each.get_nowait()


def _remember_pools(adapter: DataAdapter) -> None:
    """Remembers the pools of workers that Keras starts, which it does not keep."""
    enqueuer = getattr(adapter, "enqueuer", None)
    if enqueuer is None:
        return
    start, pools = enqueuer.executor_fn, []
    enqueuer.__dict__[_POOLS] = pools

    def start_and_remember(sequences: object) -> Any:
        pool = start(sequences)
        pools[:] = [pool]  # the one before has ended with its epoch
        return pool

    enqueuer.executor_fn = start_and_remember


def epoch_order(
    data: array_data_adapter.ArrayDataAdapter, rows: int, shuffle: bool | str
) -> np.ndarray:
    """Returns the row numbers of one epoch in the order in which Keras would feed them.

    Keras shuffles row numbers, so it is given row numbers to feed. One batch of all of them draws
    the same permutation as many batches, and is a hundred times faster. Where only batches are
    shuffled, there are as many batches as in the epoch.

    Args:
        data: the adapter of the arrays that are fed. From Keras 3.16 on, its `_epoch` decides the
            order of its next epoch; before, NumPy's generator does.
        rows: number of rows of the arrays.
        shuffle: as `fit` takes it.
    """
    private: Any = data
    adapter: Any = get_data_adapter(
        x=np.arange(rows, dtype=np.int32),
        batch_size=private.batch_size if shuffle == "batch" else rows,
        shuffle=shuffle,  # type: ignore[arg-type]  # Keras takes "batch", too
    )
    if keras_is("3.16"):
        adapter._epoch = private._epoch
    return np.concatenate(
        [np.asarray(jax.tree.leaves(batch)[0]) for batch in adapter.get_jax_iterator()]
    )


def is_array_adapter(adapter: object) -> bool:
    """Whether Keras slices batches out of arrays in memory."""
    return isinstance(adapter, array_data_adapter.ArrayDataAdapter)


def is_endless(adapter: DataAdapter) -> bool:
    """Whether the data set behind `adapter` declares that it never ends.

    An endless tf.data set has a cardinality of -1, an endless PyDataset no number of batches.
    """
    dataset = getattr(adapter, "_dataset", None)
    cardinality = getattr(dataset, "cardinality", None)
    if callable(cardinality):
        return int(cardinality()) == -1  # type: ignore[call-overload]
    return hasattr(adapter, "py_dataset") and adapter.num_batches is None


def tracked_source(
    adapter: DataAdapter,
) -> tuple[Iterator[ArrayTree], tuple[Callable[[], Any], Callable[[Any], None]] | None]:
    """Returns the batches of a new pass, and functions that get and set the state of their source.

    States come from the iterators of Grain and of tf.data, from torch's loaders with a
    `state_dict`, and from data sets with `get_state` and `set_state`. None is for all others.
    """
    private: Any = adapter
    if is_array_adapter(adapter):
        return _ArrayBatches(private), None
    if (dataset := _tensorflow_dataset(adapter)) is not None:
        if not isinstance(dataset, _RememberingDataset):
            private._dataset = dataset = _RememberingDataset(dataset)
        dataset.begin()
        return iter(private.get_jax_iterator()), (dataset.get_state, dataset.set_state)
    own = getattr(private, "py_dataset", None)
    if own is not None and has_state(own) and getattr(private, "enqueuer", None) is None:
        if not isinstance(own, _GatedDataset):  # workers read ahead of what they hand over
            private.py_dataset = own = _GatedDataset(own)
        return _DatasetBatches(private, own), (own.get_state, own.set_state)
    batches = iter(private.get_jax_iterator())
    loader: Any = getattr(private, "_dataloader", None)
    if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
        own_batches = _LoaderBatches(batches, loader)
        return own_batches, (own_batches.read_state, own_batches.write_state)
    for each in (private, batches):
        if has_state(each):
            return batches, (each.get_state, each.set_state)
    return batches, None


def has_state(owner: object) -> bool:
    """Whether an object has methods that get and set its state."""
    return hasattr(owner, "get_state") and hasattr(owner, "set_state")


def remembers_passes(adapter: DataAdapter) -> bool:
    """Whether the batches of a pass depend on the passes before it, in a way that nothing shows.

    A generator does not begin again, and a tf.data set counts its iterators to shuffle anew. Data
    sets of `millrace.tensorflow` do, too.
    """
    kind = type(adapter).__name__
    return (
        kind in ("GeneratorDataAdapter", "DatasetAdapter")
        or _tensorflow_dataset(adapter) is not None
    )


def dataset_behind(adapter: DataAdapter) -> Any:
    """Returns the PyDataset or the loader of torch from which an adapter draws, if it is one."""
    for name in ("py_dataset", "_dataloader"):
        if (dataset := getattr(adapter, name, None)) is not None:
            return dataset
    return None


def adapter_epoch(adapter: DataAdapter) -> int | None:
    """Returns the epoch by which an adapter shuffles, from Keras 3.16 on; None if it has none."""
    return getattr(adapter, "_epoch", None)


def set_adapter_epoch(adapter: DataAdapter, epoch: int | None) -> None:
    """Sets the epoch by which an adapter shuffles, if it has one."""
    if epoch is not None and hasattr(adapter, "_epoch"):
        private: Any = adapter
        private._epoch = epoch


def spec_of_data(adapter: DataAdapter) -> dict[str, str]:
    """Returns the class of a data set and what it says of its batches, where that is cheap."""
    private: Any = adapter
    facts = {}
    dataset = dataset_behind(adapter)
    for name in ("_dataset", "generator", "source"):
        dataset = getattr(private, name, None) if dataset is None else dataset
    if dataset is not None and not callable(dataset):
        facts["class of the data set"] = type(dataset).__qualname__
    spec = getattr(private, "_output_signature", None)
    if first := getattr(private, "_first_batches", None):
        spec = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), _dtype(leaf)), first[0]
        )
    elif (tf_dataset := _tensorflow_dataset(adapter)) is not None:
        spec = tf_dataset.element_spec
    if spec is not None:
        facts["batches"] = ", ".join(
            f"{np.dtype(_dtype(leaf)).name}{list(leaf.shape)}" for leaf in jax.tree.leaves(spec)
        )
    return facts


def _dtype(leaf: Any) -> Any:
    dtype = getattr(leaf, "dtype", None) or np.asarray(leaf).dtype
    return getattr(dtype, "as_numpy_dtype", dtype)


def _tensorflow_dataset(adapter: DataAdapter) -> Any:
    """Returns the data set behind Keras's own adapter of tf.data."""
    dataset = getattr(adapter, "_dataset", None)
    is_keras = type(adapter).__module__.startswith("keras.")
    if isinstance(dataset, _RememberingDataset):
        return dataset
    return dataset if is_keras and type(dataset).__module__.startswith("tensorflow.") else None


class _ArrayBatches:
    """The batches of arrays, which are sliced when they are drawn and not when they are skipped."""

    def __init__(self, adapter: Any):
        draw = adapter._get_iterator
        # Slices nothing yet: each leaf of a batch is a function that does.
        adapter._get_iterator = lambda slice_, inputs: draw(partial(partial, slice_), inputs)
        try:
            self._batches = adapter.get_jax_iterator()
        finally:
            del adapter._get_iterator

    def __iter__(self) -> Iterator[ArrayTree]:
        return self

    def __next__(self) -> ArrayTree:
        return jax.tree.map(lambda slice_: slice_(), next(self._batches))

    def skip(self) -> None:
        next(self._batches)


class _DatasetBatches:
    """The batches of a PyDataset with a state, in the order in which Keras asks for them."""

    def __init__(self, adapter: Any, dataset: "_GatedDataset"):
        self._batches, self._dataset = iter(adapter.get_jax_iterator()), dataset

    def __iter__(self) -> Iterator[ArrayTree]:
        return self

    def __next__(self) -> ArrayTree:
        return next(self._batches)

    def skip(self) -> None:
        self._dataset.is_read = False
        try:
            next(self._batches)
        finally:
            self._dataset.is_read = True


def parts_of_loader(loader: Any) -> tuple[list[Any], list[Any]]:
    """Returns the generators and the samplers of a loader of torch; none for any other data."""
    if not hasattr(loader, "batch_sampler"):
        return [], []
    batches = loader.batch_sampler
    samplers = [loader.sampler, batches, getattr(batches, "sampler", None)]
    samplers = list({id(each): each for each in samplers if each is not None}.values())
    owners = (getattr(each, "generator", None) for each in (loader, *samplers))
    generators = {id(each): each for each in owners if has_state(each)}
    return list(generators.values()), samplers


class _LoaderBatches:
    """The batches of a loader of torch with a state, which is that of its newest iterator.

    A pass makes one when its first batch is drawn: until then the state is that of another pass.
    """

    def __init__(self, batches: Iterator[ArrayTree], loader: Any):
        self._batches, self._loader, self._is_begun = batches, loader, False
        self._generators = parts_of_loader(loader)[0]
        self._saved: list[Any] | None = None  # states of generators, which a new iterator changes

    def __iter__(self) -> Iterator[ArrayTree]:
        return self

    def __next__(self) -> ArrayTree:
        batch = next(self._batches)
        self._is_begun = True
        saved, self._saved = self._saved, None
        for generator, state in zip(self._generators, saved or [], strict=False):
            generator.set_state(state)
        return batch

    def read_state(self) -> Any:
        if not self._is_begun:
            return None
        generators = [each.get_state() for each in self._generators]
        return _without_tensors({"loader": self._loader.state_dict(), "generators": generators})

    def write_state(self, state: Any) -> None:
        state = _with_tensors(state)
        self._loader.load_state_dict(state["loader"])
        self._saved = state["generators"]


class _GatedDataset:
    """A PyDataset that makes no batch where one is skipped."""

    def __init__(self, dataset: Any):
        self.dataset, self.is_read = dataset, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dataset, name)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index] if self.is_read else np.zeros(0)


_TENSOR = "millrace tensor"


def _without_tensors(state: Any) -> Any:
    """Returns a state of torch with arrays for tensors."""
    if isinstance(state, dict):
        return {key: _without_tensors(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(_without_tensors(value) for value in state)
    return {_TENSOR: state.numpy()} if type(state).__name__ == "Tensor" else state


def _with_tensors(state: Any) -> Any:
    """Returns a state that `_without_tensors` has returned as it was."""
    if isinstance(state, dict):
        if _TENSOR in state:
            import torch  # type: ignore[import-not-found]

            return torch.from_numpy(np.array(state[_TENSOR]))
        return {key: _with_tensors(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(_with_tensors(value) for value in state)
    return state


def has_read_ahead(adapter: DataAdapter) -> bool:
    """Whether workers of a PyDataset have read batches before the first epoch, to build the model.

    Keras begins every epoch with the batches that were read in the one before.
    """
    enqueuer = getattr(adapter, "enqueuer", None)
    return enqueuer is not None and not enqueuer.ready_queue.empty()


def read_ahead_again(adapter: DataAdapter) -> None:
    """Lets workers read the batches once more with which the next epoch begins.

    How many they read of a larger data set than their queue holds depends on time, in Keras, too.
    """
    enqueuer: Any = getattr(adapter, "enqueuer", None)
    ready: queue.Queue[Any] = enqueuer.ready_queue
    number = ready.qsize()
    while not ready.empty():
        ready.get_nowait()
    epochs = adapter_epoch(adapter)
    enqueuer.start(*([] if epochs is None else [epochs]))
    enqueuer.run_thread.join(_READ_AHEAD_SECONDS)
    enqueuer.stop()
    while ready.qsize() > number:  # the others were drawn in the epoch before
        ready.get_nowait()


class _RememberingDataset:
    """A tf.data set that knows its newest iterator."""

    def __init__(self, dataset: Any):
        self._dataset = dataset
        self._iterator: Any = None
        self._is_begun = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def begin(self) -> None:
        """Makes the iterator of a new pass."""
        self._iterator, self._is_begun = iter(self._dataset), False

    def __iter__(self) -> Iterator[Any]:
        if self._is_begun:
            self.begin()
        self._is_begun = True
        return self._iterator

    def get_state(self) -> dict[str, bytes]:
        """Returns the files in which tf.data saves the position of the iterator.

        Raises:
            NotImplementedError: if a part of the data set cannot be saved.
        """
        with tempfile.TemporaryDirectory(prefix="millrace-") as directory:
            try:
                self._checkpoint().write(f"{directory}/state")
            except _tensorflow().errors.OpError as error:
                raise NotImplementedError(f"no state: {error.message.splitlines()[0]}") from error
            return {path.name: path.read_bytes() for path in pathlib.Path(directory).iterdir()}

    def set_state(self, state: dict[str, bytes]) -> None:
        """Sets the position of the iterator, before it is used."""
        with tempfile.TemporaryDirectory(prefix="millrace-") as directory:
            for name, content in state.items():
                (pathlib.Path(directory) / pathlib.Path(name).name).write_bytes(content)
            self._checkpoint().read(f"{directory}/state").assert_consumed()

    def _checkpoint(self) -> Any:
        return _tensorflow().train.Checkpoint(iterator=self._iterator)


def _tensorflow() -> Any:
    import tensorflow as tf

    return tf


def stacked(batches: Iterator[ArrayTree], steps: int | None) -> Iterator[ArrayTree]:
    """Returns batches as Keras asks its adapters for them, from 3.16 on several at a time.

    Args:
        batches: of one pass.
        steps: number of batches that are stacked to one; None returns them as they are.
    """
    return private_name("super_batch_iterator")(batches, steps) if steps else batches


def let_data_adapt() -> None:
    """Lets data with a method `as_data_adapter` provide its own data adapter.

    The method is given the arguments of `fit`: `y`, `sample_weight` and `class_weight`.
    """

    def wrapper(original: Callable[..., DataAdapter]) -> Callable[..., DataAdapter]:
        def get_data_adapter(x: object, *args: object, **kwargs: object) -> DataAdapter:
            adapt = getattr(x, "as_data_adapter", None)
            if adapt is None:
                return original(x, *args, **kwargs)
            return adapt(
                y=kwargs.get("y"),
                sample_weight=kwargs.get("sample_weight"),
                class_weight=kwargs.get("class_weight"),
            )

        return get_data_adapter

    replace(DATA_ADAPTER, wrapper)
