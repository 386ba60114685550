"""The feeds of one model: the bounds of its blocks, and the epoch iterators that are open."""

from collections.abc import Mapping

from millrace.programs.feeds.blocks import STEPS_TOGETHER, BlockShape
from millrace.programs.plan import BatchSpec, Mode
from millrace.run.fit.checkpoint_places import ResumableEpochs
from millrace.run.fit.setup import Setup


class Feeds:
    """The capacities of the blocks of one model, and its open iterators."""

    def __init__(self) -> None:
        self._capacities: dict[tuple[Mode, bool], dict[BatchSpec, int]] = {}
        self._fixed: dict[tuple[Mode, bool], set[BatchSpec]] = {}
        self._iterators: list[ResumableEpochs] = []  # opened by the running call
        self.training: ResumableEpochs | None = None  # the epochs of the running fit
        self.is_built_ahead = False  # where fit would have drawn a batch to build the model

    def block_shape(
        self,
        setup: Setup,
        mode: Mode,
        steps_per_execution: int,
        on_batch: bool = False,
        shortened: Mapping[BatchSpec, int] | None = None,
    ) -> BlockShape:
        """Returns the bounds of blocks for one mode.

        Args:
            setup: of the model.
            mode: blocks of the three modes run in different executables.
            steps_per_execution: after truncation to the epoch.
            on_batch: for `train_on_batch` and the like, whose one step is not padded.
            shortened: steps of blocks that a budget makes shorter; it grows while a loop runs.
        """
        return BlockShape(
            max_bytes=setup.options.feed.max_block_bytes,
            multiples=(steps_per_execution, setup.update_steps(mode)),
            capacities=self._capacities.setdefault((mode, on_batch), {}),
            together=1 if on_batch else STEPS_TOGETHER,
            replicas=setup.replicas,
            fixed=self._fixed.get((mode, on_batch), frozenset()),
            stays_on_host=setup.destination.stays_on_host,
            shortened=shortened,
        )

    def forget_capacities(self) -> None:
        """Lets blocks be as short as the options in force make them, whatever ran before."""
        self._capacities.clear()
        self._fixed.clear()

    def fix_capacity(self, mode: Mode, spec: BatchSpec) -> None:
        """Keeps the capacity of blocks with compiled executables, however long the data is."""
        self._fixed.setdefault((mode, False), set()).add(spec)

    def opened(self, iterator: ResumableEpochs) -> None:
        """Remembers an epoch iterator, to close it when the running call ends."""
        self._iterators.append(iterator)

    def add_note(self, error: Exception) -> None:
        """Says in an error that Keras was building the model from the first batch, if it was."""
        for iterator in self._iterators:
            iterator.add_note(error)

    def close(self, wait: bool) -> None:
        """Ends the iterators of the call that ends; `wait` is as of `ResumableEpochs.end`."""
        iterators, self._iterators = self._iterators, []
        for iterator in iterators:
            iterator.end(wait=wait)
        self.training = None
