"""tf.data: a data set whose position can be saved."""

import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any


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


def _tensorflow() -> Any:
    import tensorflow as tf

    return tf
