"""tf.data: a data set whose position can be saved, and what is known of its batches."""

import pathlib
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import jax


class RememberingDataset:
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


def spec_of_batch(dataset: Any) -> tuple[tuple[Any, ...], int | None] | None:
    """Returns the specs of a full batch of a tf.data set, and its batches; None where unknown.

    Nothing is drawn. Where the shapes leave the rows open, they are those of the last `batch()`,
    which only private attributes tell. Checked on tensorflow 2.21.
    """
    tf = sys.modules.get("tensorflow")
    if tf is None or not isinstance(dataset, tf.data.Dataset):
        return None
    rows = _rows(tf, dataset)
    found: list[Any] = []
    spec = dataset.element_spec
    for part in spec if isinstance(spec, tuple) else (spec,):
        leaves, treedef = jax.tree.flatten(part, is_leaf=lambda each: hasattr(each, "dtype"))
        shapes = [leaf.shape for leaf in leaves if isinstance(leaf, tf.TensorSpec)]
        if len(shapes) < len(leaves) or not all(shape.rank for shape in shapes):
            return None
        whole = [(shape[0] or rows, *shape[1:]) for shape in shapes]
        if any(None in shape for shape in whole):
            return None
        types = [leaf.dtype.as_numpy_dtype for leaf in leaves]
        specs = [jax.ShapeDtypeStruct(*each) for each in zip(whole, types, strict=True)]
        found.append(jax.tree.unflatten(treedef, specs))
    steps = int(dataset.cardinality())
    return tuple(found), steps if steps >= 0 else None


def _rows(tf: Any, dataset: Any) -> int | None:
    while dataset is not None:
        if (rows := getattr(dataset, "_batch_size", None)) is not None:
            rows = tf.get_static_value(rows)
            return None if rows is None else int(rows)
        dataset = getattr(dataset, "_input_dataset", None)
    return None


def _tensorflow() -> Any:
    import tensorflow as tf

    return tf
