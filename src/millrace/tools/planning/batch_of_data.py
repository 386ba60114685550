"""A batch of zeros in the form of the data of `fit`, without drawing from that data.

    arrays        the first rows, as many as a batch has
    PyDataset     its first item
    DataLoader    the first item of its data set, in a batch
    tf.data       its element_spec, and the rows of its last batch()
    others        unknown before they are drawn: None

Items may use random numbers: afterwards the generators of Python, NumPy and torch are as before.
"""

import contextlib
import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import keras
import numpy as np

from millrace._compat.keras_data import BATCH_SIZE
from millrace._compat.tensorflow_dataset import spec_of_batch
from millrace.errors import DataError, OptionError
from millrace.run.precompile.described_batch import batch_of_zeros

_CONTAINERS = (np.ndarray, jax.Array, list, tuple, dict, type(None))


def batch_of_data(arguments: Mapping[str, Any]) -> tuple[Any, int | None] | None:
    """Returns what is known of data before it is drawn; None where nothing is.

    Args:
        arguments: of `fit`, by name.

    Returns:
        Zeros as x, y and sample weights, with the rows of a full batch; and the batches of an
        epoch, if they are known.
    """
    x = arguments.get("x")
    try:
        if isinstance(x, _CONTAINERS):
            found = _of_arrays(arguments)
        else:
            with _same_random_numbers():
                found = _of_data_set(x)
        if found is None:
            return None
        specs, steps = found
        return batch_of_zeros(specs), arguments.get("steps_per_epoch") or steps
    except (OptionError, DataError, ValueError):  # data that Keras refuses, with its own error
        return None


Found = tuple[tuple[Any, ...], int | None]  # trees of specs, and steps of an epoch


def _of_arrays(arguments: Mapping[str, Any]) -> Found | None:
    data = [arguments.get(name) for name in ("x", "y", "sample_weight")]
    leaves = jax.tree.leaves(data) if all(isinstance(each, _CONTAINERS) for each in data) else []
    is_of_arrays = all(isinstance(leaf, np.ndarray | jax.Array) and leaf.ndim for leaf in leaves)
    if not leaves or not is_of_arrays or data[1] is None:
        return None
    split = arguments.get("validation_split") or 0.0
    samples = int(len(leaves[0]) * (1.0 - split))
    rows = min(arguments.get("batch_size") or BATCH_SIZE, samples)
    if rows < 1:
        return None  # Keras's own error is clearer
    return with_rows([each for each in data if each is not None], rows), -(-samples // rows)


def _of_data_set(x: Any) -> Found | None:
    if isinstance(x, keras.utils.PyDataset):
        item = _first(x)
        return None if item is None else (with_rows(item), x.num_batches)
    if type(x).__module__.startswith("torch."):
        return _of_loader(x)
    return spec_of_batch(x)


def _of_loader(loader: Any) -> Found | None:
    """Returns a batch of a `DataLoader` of torch whose data set has items by number."""
    data: Any = getattr(loader, "dataset", None)
    rows: int | None = getattr(loader, "batch_size", None)
    item = _first(data)
    if item is None or rows is None:
        return None
    batch = loader.collate_fn([item])
    if not isinstance(batch, list | tuple):
        return None
    return with_rows(batch, min(rows, len(data))), len(loader)


def _first(data: Any) -> Any:
    """Returns the first item of a data set; None without one."""
    try:
        return data[0]
    except Exception:  # fit draws it, too, and then the error is the user's to see
        return None


def with_rows(batch: Any, rows: int | None = None) -> tuple[Any, ...]:
    """Returns the specs of x, y and sample weights, with as many rows."""

    def spec(leaf: Any) -> jax.ShapeDtypeStruct:
        array = np.asarray(leaf)
        shape = array.shape if rows is None else (rows, *array.shape[1:])
        return jax.ShapeDtypeStruct(shape, array.dtype)

    parts = batch if isinstance(batch, list | tuple) else (batch,)
    return tuple(jax.tree.map(spec, part) for part in parts if part is not None)


@contextlib.contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Sets the global generators of random numbers back afterwards."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    torch = sys.modules.get("torch")
    of_torch = torch.get_rng_state() if torch is not None else None
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        if torch is not None:
            torch.set_rng_state(of_torch)
