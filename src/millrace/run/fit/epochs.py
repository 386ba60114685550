"""The epoch iterator of Keras's fit loop, with an infeed behind it.

    for begin, end, execution in epoch_iterator:             Keras
        logs, state = train_function(state, execution)       run/fit/functions.py
            execution.take() -> slices                     programs/feeds/infeed.py

Keras takes batches from its data adapter one by one; here they are stacked into blocks ahead of
time.
"""

import functools
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import keras

from millrace._compat.keras_data import EpochIterator, EpochOrder, is_array_adapter, spec_of_data
from millrace._compat.keras_workers import end_workers
from millrace.base.interrupts import at_once, raise_if_interrupted
from millrace.base.pytrees import ArrayTree
from millrace.errors import DataError, add_note
from millrace.programs.feeds.block import Block, batch_spec
from millrace.programs.feeds.blocks import stacked_blocks
from millrace.programs.feeds.infeed import Infeed, wait_for_interrupted
from millrace.programs.feeds.iterator_adapter import IteratorAdapter, with_adapter
from millrace.programs.feeds.merged_batches import inner_adapter, merged_adapter
from millrace.programs.feeds.waiting import BatchWait
from millrace.programs.plan import BatchSpec, Mode
from millrace.run.fit.checkpoint_places import EpochPosition, LoopCheckpoints
from millrace.run.fit.checks import shortened_to_stop
from millrace.run.fit.controller import Controller, controller_of
from millrace.run.fit.data_passes import DataPasses
from millrace.run.fit.data_position import batch_name, epoch_name
from millrace.run.fit.execution import Execution
from millrace.run.fit.merged_updates import merged_arguments
from millrace.run.fit.multi_process import agree_on_built, agree_on_order
from millrace.run.fit.uncompiled import runs_uncompiled
from millrace.run.fit.whole_arrays import ResidentData, describe_arrays

logger = logging.getLogger("millrace")

T = TypeVar("T")


class FeedEpochIterator(EpochIterator):
    """Keras's epoch iterator for a model attached to a strategy.

    It yields the same batches in the same order. Executions end with the epoch and report the
    numbers of the steps that they run, where Keras counts the last one as a full one. So does this
    iterator while the number of batches is unknown: in the first epoch of a generator.

    If the data runs out before the epoch is over, the last execution has no step, as Keras expects
    with one step per execution. It warns, and the next epoch begins another pass.
    """

    def __init__(self, controller: Controller, mode: Mode, **arguments: Any):
        rules = controller.setup.rules
        arguments = dict(rules.arguments(controller.setup, with_adapter(arguments)))
        is_merged = mode is Mode.TRAIN and controller.setup.shares_statistics
        if is_merged:
            arguments = merged_arguments(controller.setup, arguments)
        wait = _wait_of(controller, mode, epoch=1)
        with at_once():
            wait_for_interrupted()  # Keras draws two batches of a generator now
            try:
                wait.within_limit(functools.partial(super().__init__, **arguments))
            except Exception as error:
                add_note(error, _BEFORE_EPOCHS)
                raise
        rules.check_data(controller.setup, mode, self.data_adapter, arguments)
        if is_merged:
            merges, replicas = controller.setup.merges(mode), controller.setup.replicas
            self.data_adapter = merged_adapter(self.data_adapter, merges, replicas)
            self._num_batches = self.data_adapter.num_batches
        self._controller = controller
        self._mode = mode
        self._arguments = arguments
        self._was_built = controller.setup.model.built
        self._infeed: Infeed | None = None
        self._wait = wait
        self._builds_from: BatchSpec | None = None  # while Keras builds the model from a batch
        self._is_closed = threading.Event()
        self._sizes: Iterable[int] = ()
        self._order: EpochOrder | None = None  # of resident arrays
        self._resident = ResidentData(controller.setup, self.data_adapter, arguments)
        self.number = 0  # of the running epoch, from 1
        if self.num_batches == 0:
            raise _no_batch(arguments.get("x"))
        self._resumed: EpochPosition | None = None  # with which the next epoch continues
        self._data = DataPasses(self.data_adapter)
        self._pass_begin = 0  # steps of the pass before the running epoch
        self._begun = 0  # steps of the running epoch before it was resumed
        self._epochs_over = 0  # before the running one
        self.drawn: list[int] = []  # batches of each epoch so far
        self._leave_out()
        rows = getattr(self.data_adapter, "batch_size", None)
        self.steps_per_execution = rules.steps_of_execution(
            controller.setup, mode, self.steps_per_execution, self.num_batches, rows
        )
        if mode is Mode.TRAIN:
            self.steps_per_execution = shortened_to_stop(
                self.steps_per_execution,
                controller.setup.stop_within,
                controller.setup.update_steps(mode),
            )
        is_array = is_array_adapter(self.data_adapter)
        last = self.data_adapter.partial_batch_size if is_array else None
        controller.agreement.compare(controller.setup, self.num_batches, rows, last)
        controller.feeds.opened(self)
        if mode is Mode.TRAIN:
            controller.feeds.training = self

    @property
    def mode(self) -> Mode:
        """The loop that the batches are for."""
        return self._mode

    @property
    def _checkpoints(self) -> LoopCheckpoints | None:
        """The checkpoints of a fit; a callback begins them after the iterator is made."""
        return self._controller.checkpoints if self._mode is Mode.TRAIN else None

    def infeed(self) -> Infeed:
        """Returns the epoch's infeed, which starts when the first step is taken."""
        if self._infeed is None:
            self._is_closed = threading.Event()
            self._wait = _wait_of(self._controller, self._mode, self.number, self._begun)
            depth = self._controller.setup.options.feed.prefetch_depth
            source, activities = self._block_source(), self._controller.activities
            # Slicing arrays runs no code of the user.
            is_known = is_array_adapter(self.data_adapter) and self.num_batches is not None
            steps = sum(self._sizes) if is_known else None
            self._infeed = Infeed(source, depth, activities, self._wait, steps)
            if (recorder := self._controller.functions.recorder) is not None:
                recorder.opens(self._infeed, self._mode)
        return self._infeed

    def first_batch(self) -> ArrayTree:
        """Returns a batch for Keras, which builds an unbuilt model of it.

        Raises:
            DataError: if it cannot go to a device, or does not come.
            Exception: an error of the data set.
        """
        wait = _wait_of(self._controller, self._mode, max(self.number, 1))
        try:
            with at_once():
                batch = wait.within_limit(lambda: next(self.host_batches()))
            self._builds_from = batch_spec(batch)  # says why Keras would fail to convert
        except StopIteration:
            raise
        except Exception as error:
            wait.add_note(error, 0)
            raise
        return batch

    def add_note(self, error: Exception) -> None:
        """Says in an error that Keras was building the model from the first batch, if it was."""
        if (spec := self._builds_from) is not None:
            name = batch_name(self._mode, max(self.number, 1), 0)
            add_note(error, f"raised while Keras built the model from {name} ({spec}).")

    def reset(self) -> None:
        """Starts over, as Keras does when it has built the model from the first batch."""
        self._builds_from = None
        self.close()
        self._controller.setup.rules.check_built(self._controller.setup)
        if not self._was_built:
            agree_on_built(self._controller.setup)
            self._was_built = True
        if self._controller.feeds.is_built_ahead and self._mode is not Mode.PREDICT:
            # The first batch of shuffled arrays draws the order of all. Keras would have drawn one
            # to build the model; without it, later epochs would come in another order.
            self._controller.feeds.is_built_ahead = False
            with at_once():
                next(self.host_batches(), None)
        self.number = 0
        inner = inner_adapter(self.data_adapter)
        if isinstance(inner, IteratorAdapter):
            inner.give_back()
        self.between_epochs(super().reset)  # it ends the workers of the data set
        self._leave_out()

    def _leave_out(self) -> None:
        """Ends epochs before the steps that the rules do not run."""
        total = self.num_batches
        if total is None:
            return
        setup = self._controller.setup
        steps = setup.rules.steps_of_epoch(setup, self._mode, total)
        if steps < total:
            if self.pass_length == total:
                self.pass_length = steps  # the data starts again after them
            if self.steps_per_epoch is not None:
                self.steps_per_epoch = steps

    def facts(self) -> dict[str, str]:
        """Returns what identifies the data, by name."""
        total, rows = self.num_batches, getattr(self.data_adapter, "batch_size", None)
        facts = {
            "kind of data": type(inner_adapter(self.data_adapter)).__name__.removesuffix("Adapter"),
            "batches of an epoch": "unknown" if total is None else str(total),
            "rows of a batch": "unknown" if rows is None else str(rows),
        }
        facts |= spec_of_data(self.data_adapter)
        if is_array_adapter(self.data_adapter):
            facts["arrays"] = describe_arrays(self._arguments)
        return facts

    def close(self, wait: bool = True) -> None:
        """Ends the infeed, if there is one, and adds its counts to the totals.

        Args:
            wait: whether to wait for the batch that the data set is making.
        """
        if self._infeed is not None:
            self._is_closed.set()
            self._infeed.close(wait)
            self._controller.totals.add_infeed(self._infeed.statistics())
            if (recorder := self._controller.functions.recorder) is not None:
                recorder.closes(self._infeed)
            self._infeed = None

    def before_epoch(self) -> None:
        """Lets checkpoints be written, or read, between two epochs."""
        self._begun, self._pass_begin, self._epochs_over = 0, self.steps_in_pass, self.number
        self._resumed = None
        if self._checkpoints is not None:
            self._checkpoints.begins_epoch(self)

    def resume(self, position: EpochPosition) -> None:
        """Lets the epoch that begins continue from a position."""
        self._resumed = position
        self._begun = position.epoch_step
        self._pass_begin = position.pass_step - position.epoch_step
        self.steps_in_pass = position.pass_step
        if self.pass_length is None and position.pass_length is not None:
            self.pass_length = position.pass_length
        self.number = self._epochs_over = position.epochs

    def position(self, epoch_step: int) -> EpochPosition:
        """Returns the position after a number of steps of the running epoch."""
        pass_step = self._pass_begin + epoch_step
        return self._data.position(epoch_step, pass_step, self.pass_length, self._epochs_over)

    def next_position(self) -> EpochPosition:
        """Returns the position at which another epoch would begin."""
        pass_step = 0 if self.begins_pass else self.steps_in_pass
        return self._data.position(0, pass_step, self.pass_length, self.number)

    def host_batches(self) -> Iterator[ArrayTree]:
        """Returns the batches of this pass, in host memory."""
        if self._checkpoints is None or self._current_iterator is not None:
            of_fit = self._controller.checkpoints if self._mode is Mode.TEST else None
            if of_fit is not None and self._current_iterator is None:
                of_fit.begins_validation(self)
            return super().host_batches()
        position, self._resumed = self._resumed, None
        if position is None:
            self._current_iterator = self._data.begin_pass()
        else:
            source = self._data.resume_pass(position, self._checkpoints)
            self._current_iterator = source
            ends = self._data.ends_of_epochs(position, self.steps_per_epoch)
            self._checkpoints.skips(source, position.pass_step, ends)
        return self._current_iterator

    def between_epochs(self, tell: Callable[[], None]) -> None:
        """Calls `tell`, which tells the data set of the begin or the end of an epoch.

        Raises:
            DataError: if it does not return within the limit of a wait for a batch.
            Exception: an error of the data set, or of its workers.
        """
        limit = self._controller.setup.options.feed.max_wait_seconds
        try:
            if limit is None:
                tell()
            else:
                BatchWait(lambda _: f"from {self._border()}", limit).within_limit(tell)
        except Exception as error:
            add_note(error, f"raised by the data set at {self._border()}.")
            raise

    def _border(self) -> str:
        return f"the begin or the end of {epoch_name(self._mode, max(self.number, 1))}"

    def end(self, wait: bool = True) -> None:
        """Ends the infeed, and the workers of the data set, with the call that draws from them.

        Args:
            wait: whether to wait for the batch that the data set is making.
        """
        self._is_closed.set()
        end_workers(self.data_adapter)
        self.close(wait)
        self.end_pass()

    def executions(self) -> Iterator[tuple[int, int, Execution]]:
        """Yields the executions of one epoch, and ends its infeed."""
        self.close()
        self.number += 1
        recorder, checkpoints = self._controller.functions.recorder, self._checkpoints
        if recorder is not None and self._mode is Mode.TRAIN:
            recorder.begins_epoch(self.number)
        total = self.num_batches
        if checkpoints is not None and (logs := checkpoints.logs_of_whole_epoch()) is not None:
            yield self._execution_that_has_run(logs)
            checkpoints.ends_epoch(self, self._begun)
            return
        begin = self._begun
        for each in self._of_unknown_length() if total is None else self._of_length(total):
            begin = each[0]
            if checkpoints is not None and begin > self._begun and not each[2].is_end:
                checkpoints.between_executions(self, begin)
            raise_if_interrupted()
            yield each
            begin += each[2].steps - each[2].missing
        self.drawn.append(begin - self._begun)
        if checkpoints is not None:
            checkpoints.ends_epoch(self, begin)
        self.close()

    def _execution_that_has_run(self, logs: ArrayTree) -> tuple[int, int, Execution]:
        """Returns an execution for an epoch that has only its validation left."""
        execution = Execution(self, 0, self._begun)
        execution.logs = logs
        total = self.num_batches
        pass_is_over = total is None or self._begun < total or self.steps_per_epoch is None
        pass_is_over |= self.pass_length is not None and self.steps_in_pass >= self.pass_length
        if self._checkpoints is not None and pass_is_over and is_array_adapter(self.data_adapter):
            self._checkpoints.has_drawn_order()
        else:
            self.host_batches()  # draws them: the state of the data set follows from it
        if total is None:
            self.pass_length = self._pass_begin + self._begun
        else:
            self._end_epoch(self._begun, total)
        if pass_is_over:
            self.end_pass()
        return self._begun, max(self._begun - 1, 0), execution

    def _of_length(self, total: int) -> Iterator[tuple[int, int, Execution]]:
        begin = self._begun
        if 0 < begin == total:  # resumed: a callback had ended the training after the last step
            yield self._execution_that_has_run(self._controller.model.get_metrics_result())
            return
        self._sizes = self._sizes_of(total - begin)
        for count in self._sizes:
            self.steps_in_pass += count
            execution = Execution(self, count, begin)
            yield begin, begin + count - 1, execution
            begin += count - execution.missing
            if execution.missing:
                yield begin, begin, Execution(self, 1, begin, is_end=True)
        self._end_epoch(begin, total)

    def _sizes_of(self, total: int) -> list[int]:
        """Returns the steps of each execution in an epoch that has `total` steps left."""
        left = total if self.pass_length is None else self.pass_length - self.steps_in_pass
        steps, size = min(total, left), self.steps_per_execution
        return [min(size, steps - begin) for begin in range(0, steps, size)]

    def _end_epoch(self, steps: int, total: int) -> None:
        """Ends an epoch that should have had `total` steps, after `steps`."""
        if steps < total:
            self.warn_of_missing_data()
        if self.pass_length is not None and self.steps_in_pass >= self.pass_length:
            self.end_pass()

    def _of_unknown_length(self) -> Iterator[tuple[int, int, Execution]]:
        size = self.steps_per_execution
        self._sizes = itertools.repeat(size)
        if self._begun and not self.infeed().has_more():  # likewise
            yield self._execution_that_has_run(self._controller.model.get_metrics_result())
            return
        for begin in itertools.count(self._begun, size):
            if begin > self._begun and not self.infeed().has_more():
                break
            yield begin, begin + size - 1, Execution(self, size, begin)
        # Counted before a resumed epoch skips some of them, and without those.
        self.pass_length = self._pass_begin + self._begun + self.infeed().statistics().steps

    def _block_source(self) -> Callable[[Callable[[], bool]], Iterator[Block]]:
        controller = self._controller
        function = controller.functions.compiled.get(self._mode)
        shape = controller.feeds.block_shape(
            controller.setup,
            self._mode,
            self.steps_per_execution,
            shortened=None if function is None else function.shortened,
        )
        resident = self._resident.arrays(self._reads_all)
        if resident is not None:
            # Drawn on the thread on which Keras would draw it, since it uses NumPy's generator.
            batch_size: int = self.data_adapter.batch_size
            shuffle = self._arguments.get("shuffle", False)
            if self._order is None:
                adapter: Any = self.data_adapter
                self._order = EpochOrder(adapter, resident.rows, shuffle)
            order = self._order.draw()
            if shuffle:
                agree_on_order(controller.setup, order)
            if self._checkpoints is not None:
                order = order[(self._pass_begin + self._begun) * batch_size :]
                if self._resumed is not None:
                    self._resumed = None
                    self._checkpoints.has_drawn_order()
            return lambda is_awaited: resident.blocks(order, batch_size, shape)
        batches = _until(self._is_closed, self.host_batches(), self._wait)
        return functools.partial(
            stacked_blocks, batches, self._sizes, shape, controller.setup.destination
        )

    @property
    def _reads_all(self) -> bool:
        """Whether the data is read from start to end."""
        return self.steps_per_epoch in (None, self.pass_length)


_BEFORE_EPOCHS = (
    "raised before epoch 1, when Keras looks at the data: of a generator it draws the first two "
    "batches."
)


def _wait_of(controller: Controller, mode: Mode, epoch: int, begun: int = 0) -> BatchWait:
    """Returns the wait for the batches of an epoch, of which the first `begun` have run."""
    limit = controller.setup.options.feed.max_wait_seconds
    return BatchWait(lambda number: batch_name(mode, epoch, begun + number), limit)


def _no_batch(x: object) -> DataError:
    return DataError(
        f"The data set ({type(x).__name__}) has no batch: its length is 0. Check the code that "
        "selects or loads it, and a drop_remainder or drop_last that may drop the only batch."
    )


def _until(is_closed: threading.Event, batches: Iterator[T], wait: BatchWait) -> Iterator[T]:
    """Yields batches and counts them, and draws none once their infeed is closed."""
    while not is_closed.is_set():
        try:
            batch = next(batches)
        except StopIteration:
            return
        wait.add_drawn()
        yield batch


def make_epoch_iterator(
    model: keras.Model, loop: str, arguments: Mapping[str, Any]
) -> FeedEpochIterator | None:
    """Returns the iterator of an attached model's loop; None where Keras's own loop runs it."""
    controller = controller_of(model)
    if controller is None or runs_uncompiled(controller.setup):
        return None
    return FeedEpochIterator(controller, Mode(loop), **arguments)
