"""The feeds of one model: the bounds of its blocks, and the epoch iterators that are open."""

from typing import Protocol

from millrace.feeds.blocks import STEPS_TOGETHER, BlockShape
from millrace.fit.setup import Setup
from millrace.plan import BatchSpec, Mode


class Closable(Protocol):
    """An epoch iterator, of which only its end matters here."""

    def close(self, wait: bool = True) -> None:
        """Ends its threads; `wait` for a batch that the data set is making."""


class Feeds:
    """What is remembered of the blocks of a model, and closed when a loop ends."""

    def __init__(self) -> None:
        self._capacities: dict[tuple[Mode, bool], dict[BatchSpec, int]] = {}
        self._fixed: dict[tuple[Mode, bool], set[BatchSpec]] = {}
        self._iterators: list[Closable] = []  # that the running call has opened
        self.is_built_ahead = False  # of a fit that would have drawn a batch for it

    def block_shape(
        self, setup: Setup, mode: Mode, steps_per_execution: int, on_batch: bool = False
    ) -> BlockShape:
        """Returns the bounds of blocks for one mode.

        Args:
            setup: of the model.
            mode: blocks of the three modes run in different executables.
            steps_per_execution: after truncation to the epoch.
            on_batch: for `train_on_batch` and its kind, whose one step should not be padded.
        """
        return BlockShape(
            max_bytes=setup.options.feed.max_block_bytes,
            multiples=(steps_per_execution, setup.update_steps(mode)),
            capacities=self._capacities.setdefault((mode, on_batch), {}),
            together=1 if on_batch else STEPS_TOGETHER,
            replicas=setup.replicas,
            fixed=self._fixed.get((mode, on_batch), frozenset()),
        )

    def fix_capacity(self, mode: Mode, spec: BatchSpec) -> None:
        """Keeps the capacity of blocks that executables are there for, however long the data is."""
        self._fixed.setdefault((mode, False), set()).add(spec)

    def opened(self, iterator: Closable) -> None:
        """Takes note of an epoch iterator to close when the running call ends."""
        self._iterators.append(iterator)

    def close(self, wait: bool) -> None:
        """Ends the threads of the call that ends; `wait` for a batch that is being made."""
        for iterator in self._iterators:
            iterator.close(wait=wait)
        self._iterators.clear()
