"""One execution as Keras draws it: the steps of one call of a train, test or predict function."""

from collections.abc import Iterator
from typing import Protocol

import keras

from millrace._compat.keras_loops import asks_for_nothing
from millrace.base.pytrees import ArrayTree
from millrace.errors import VersionError
from millrace.programs.feeds.block import BlockSlice
from millrace.programs.feeds.infeed import Infeed
from millrace.programs.plan import Mode


class FedEpoch(Protocol):
    """The epoch that an execution belongs to."""

    number: int
    steps_per_execution: int

    @property
    def mode(self) -> Mode:
        """The loop that the batches are for."""
        ...

    @property
    def open_infeed(self) -> Infeed | None:
        """The epoch's infeed; None before the first step is taken."""
        ...

    def infeed(self) -> Infeed:
        """Returns the epoch's infeed, which starts when the first step is taken."""
        ...

    def first_batch(self) -> ArrayTree:
        """Returns a batch for Keras, which builds an unbuilt model of it."""
        ...


class Execution:
    """The steps of one call of a train, test or predict function."""

    def __init__(self, epoch: FedEpoch, steps: int, begin: int, *, is_end: bool = False):
        self._epoch = epoch
        self.steps = steps
        self.is_end = is_end  # whether the data has run out before it
        self.begin = begin  # index of its first step in the epoch
        # Logs of the last execution of an epoch that had run all of its steps before it was resumed
        self.logs: ArrayTree = None
        self.missing = 0  # steps without a batch, once the data has run out

    def as_keras(self) -> tuple[int, int, "Execution"]:
        """Returns what Keras's loop draws: the first and the last step, and their source."""
        return self.begin, max(self.begin + self.steps - 1, 0), self

    def take(self) -> Iterator[BlockSlice]:
        """Yields the execution's slices as they become ready."""
        left = self.steps
        for block_slice in self._epoch.infeed().take(left):
            left -= block_slice.count
            yield block_slice
        self.missing = left

    def at_hand(self) -> BlockSlice | None:
        """Takes the step where executions have one, if nothing has to be waited for."""
        infeed = self._epoch.open_infeed if self.steps == self.longest == 1 else None
        return None if infeed is None else infeed.at_hand()

    def check_mode(self, mode: Mode) -> None:
        """Refuses batches that were made for another loop.

        Raises:
            VersionError: if Keras mixes up the batches of training and validation.
        """
        if self._epoch.mode is not mode:
            raise unknown_loops(f"batches for '{self._epoch.mode.value}' came to '{mode.value}'")

    @property
    def epoch(self) -> int:
        """The number of the epoch, from 1."""
        return self._epoch.number

    @property
    def longest(self) -> int:
        """Steps of a full execution of the same epoch."""
        return self._epoch.steps_per_execution

    def __iter__(self) -> Iterator[ArrayTree]:
        return self

    def __next__(self) -> ArrayTree:
        # Keras builds an unbuilt model from one batch and then starts over. The infeed stays
        # shut: it would draw batches ahead that a generator cannot give twice.
        return self._epoch.first_batch()


def check_iterator(model: keras.Model, mode: Mode) -> None:
    """Refuses batches of fit, evaluate or predict that come from no iterator of millrace.

    Raises:
        VersionError: if Keras has made its iterator in an unknown way.
    """
    if asks_for_nothing(model, mode.value):
        raise unknown_loops("the loop asked for no iterator where millrace gives it one")


def unknown_loops(what: str) -> VersionError:
    """Returns the error for loops of Keras that draw in another way than millrace knows."""
    return VersionError(
        f"The loops of keras {keras.__version__} draw batches in a way that millrace does not "
        f"know: {what}. Install a version of Keras that millrace is tested with."
    )
