"""The epoch iterator of Keras's fit loop, with an infeed behind it.

    for begin, end, execution in epoch_iterator:         Keras
        logs, state = train_function(state, execution)   run/fit/functions.py
            execution.take() -> slices                   programs/feeds/infeed.py

Keras takes batches from its data adapter one by one; here they are stacked into blocks ahead of
time.

    data        of an epoch, as blocks                             epoch_feed.py
    position    in the epochs and the passes, to resume there      epoch_place.py
    pace        the executions of an epoch                         here
"""

import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import keras

from millrace._compat.keras_data import EpochIterator, is_array_adapter, spec_of_data
from millrace._compat.keras_workers import end_workers
from millrace.base.error_notes import add_note
from millrace.base.interrupts import at_once, raise_if_interrupted
from millrace.base.pytrees import ArrayTree
from millrace.errors import DataError
from millrace.programs.feeds.block import batch_spec
from millrace.programs.feeds.infeed import Infeed, wait_for_interrupted
from millrace.programs.feeds.iterator_adapter import IteratorAdapter, with_adapter
from millrace.programs.feeds.merged_batches import inner_adapter, merged_adapter
from millrace.programs.feeds.waiting import BatchWait
from millrace.programs.plan import BatchSpec, Mode
from millrace.run.fit.callbacks import LoopCallbackList
from millrace.run.fit.checkpoint_places import EpochPosition, LoopCheckpoints
from millrace.run.fit.checks import shortened_to_stop
from millrace.run.fit.controller import Controller, controller_of
from millrace.run.fit.data_position import batch_name, epoch_name
from millrace.run.fit.epoch_feed import EpochFeed, EpochSteps, wait_of
from millrace.run.fit.epoch_place import DataPasses, EpochPlace
from millrace.run.fit.execution import Execution
from millrace.run.fit.merged_updates import merged_arguments
from millrace.run.fit.multi_process import agree_on_built
from millrace.run.fit.uncompiled import runs_uncompiled
from millrace.run.fit.whole_arrays import describe_arrays

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
        wait = wait_of(controller, mode, epoch=1)
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
        self._builds_from: BatchSpec | None = None  # while Keras builds the model from a batch
        self._sizes: Iterable[int] = ()
        self._feed = EpochFeed(controller, mode, self.data_adapter, arguments)
        self._place = EpochPlace(DataPasses(self.data_adapter))
        if self.num_batches == 0:
            raise _no_batch(arguments.get("x"))
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
        if isinstance(callbacks := controller.arguments.get("callbacks"), LoopCallbackList):
            callbacks.tell_steps(self.num_batches)
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

    @property
    def number(self) -> int:
        """The number of the running epoch, from 1."""
        return self._place.number

    @property
    def open_infeed(self) -> Infeed | None:
        """The epoch's infeed; None before the first step is taken."""
        return self._feed.infeed

    def infeed(self) -> Infeed:
        """Returns the epoch's infeed, which starts when the first step is taken."""
        if self._feed.infeed is not None:
            return self._feed.infeed
        place, checkpoints = self._place, self._checkpoints
        reads_all = self.steps_per_epoch in (None, self.pass_length)
        epoch = EpochSteps(
            place.number,
            place.begun,
            self._sizes,
            self.steps_per_execution,
            trained=0 if checkpoints is None else place.trained,
            reads_all=reads_all,
            has_length=self.num_batches is not None,
        )
        infeed = self._feed.open(epoch, self.host_batches)
        if checkpoints is not None and self._feed.is_resident(reads_all) and place.take_resumed():
            checkpoints.has_drawn_order()
        return infeed

    def first_batch(self) -> ArrayTree:
        """Returns a batch for Keras, which builds an unbuilt model of it.

        Raises:
            DataError: if it cannot go to a device, or does not come.
            Exception: an error of the data set.
        """
        wait = wait_of(self._controller, self._mode, max(self.number, 1))
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
        self._feed.close()
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
        self._place.number = 0
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

    def before_epoch(self) -> None:
        """Lets checkpoints be written, or read, between two epochs."""
        self._place.begin_epoch(self.steps_in_pass)
        if self._checkpoints is not None:
            self._checkpoints.begins_epoch(self)

    def resume(self, position: EpochPosition) -> None:
        """Lets the epoch that begins continue from a position."""
        self._place.resume(position)
        self.steps_in_pass = position.pass_step
        if self.pass_length is None and position.pass_length is not None:
            self.pass_length = position.pass_length

    def position(self, epoch_step: int) -> EpochPosition:
        """Returns the position after a number of steps of the running epoch."""
        return self._place.after(epoch_step, self.pass_length)

    def next_position(self) -> EpochPosition:
        """Returns the position at which another epoch would begin."""
        return self._place.next(0 if self.begins_pass else self.steps_in_pass, self.pass_length)

    def host_batches(self) -> Iterator[ArrayTree]:
        """Returns the batches of this pass, in host memory."""
        if self._checkpoints is None or self._current_iterator is not None:
            of_fit = self._controller.checkpoints if self._mode is Mode.TEST else None
            if of_fit is not None and self._current_iterator is None:
                of_fit.begins_validation(self)
            return super().host_batches()
        position, passes = self._place.take_resumed(), self._place.passes
        if position is None:
            self._current_iterator = passes.begin_pass()
        else:
            source = passes.resume_pass(position, self._checkpoints)
            self._current_iterator = source
            ends = passes.ends_of_epochs(position, self.steps_per_epoch)
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
        self._feed.stop()
        end_workers(self.data_adapter)
        self._feed.close(wait)
        self.end_pass()

    def executions(self) -> Iterator[tuple[int, int, Execution]]:
        """Yields the executions of one epoch, each with its first and its last step."""
        self._feed.close()
        self._place.number += 1
        recorder, checkpoints, begun = (
            self._controller.functions.recorder,
            self._checkpoints,
            self._place.begun,
        )
        if recorder is not None and self._mode is Mode.TRAIN:
            recorder.begins_epoch(self.number)
        if checkpoints is not None and (logs := checkpoints.logs_of_whole_epoch()) is not None:
            yield self._that_has_run(logs).as_keras()
            checkpoints.ends_epoch(self, begun)
            return
        total, step = self.num_batches, begun
        for execution in self._of_unknown_length() if total is None else self._of_length(total):
            step = execution.begin
            if checkpoints is not None and step > begun and not execution.is_end:
                checkpoints.between_executions(self, step)
            raise_if_interrupted()
            yield execution.as_keras()
            step += execution.steps - execution.missing
        self.drawn.append(step - begun)
        if checkpoints is not None:
            checkpoints.ends_epoch(self, step)
        self._feed.close()

    def _that_has_run(self, logs: ArrayTree) -> Execution:
        """Returns an execution for an epoch that has only its validation left."""
        begun = self._place.begun
        execution = Execution(self, 0, begun)
        execution.logs = logs
        total = self.num_batches
        pass_is_over = total is None or begun < total or self.steps_per_epoch is None
        pass_is_over |= self.pass_length is not None and self.steps_in_pass >= self.pass_length
        if self._checkpoints is not None and pass_is_over and is_array_adapter(self.data_adapter):
            self._checkpoints.has_drawn_order()
        else:
            self.host_batches()  # draws them: the state of the data set follows from it
        if total is None:
            self.pass_length = self._place.trained
        else:
            self._end_epoch(begun, total)
        if pass_is_over:
            self.end_pass()
        return execution

    def _of_length(self, total: int) -> Iterator[Execution]:
        begin = self._place.begun
        if 0 < begin == total:  # resumed: a callback had ended the training after the last step
            yield self._that_has_run(self._controller.model.get_metrics_result())
            return
        self._sizes = self._sizes_of(total - begin)
        for count in self._sizes:
            self.steps_in_pass += count
            execution = Execution(self, count, begin)
            yield execution
            begin += count - execution.missing
            if execution.missing:
                yield Execution(self, 1, begin, is_end=True)
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

    def _of_unknown_length(self) -> Iterator[Execution]:
        size, begun = self.steps_per_execution, self._place.begun
        self._sizes = itertools.repeat(size)
        if begun and not self.infeed().has_more():  # likewise
            yield self._that_has_run(self._controller.model.get_metrics_result())
            return
        for begin in itertools.count(begun, size):
            if begin > begun and not self.infeed().has_more():
                break
            yield Execution(self, size, begin)
        # Counted before a resumed epoch skips some of them, and without those.
        self.pass_length = self._place.trained + self.infeed().statistics().steps


_BEFORE_EPOCHS = (
    "raised before epoch 1, when Keras looks at the data: of a generator it draws the first two "
    "batches."
)


def _no_batch(x: object) -> DataError:
    return DataError(
        f"The data set ({type(x).__name__}) has no batch: its length is 0. Check the code that "
        "selects or loads it, and a drop_remainder or drop_last that may drop the only batch."
    )


def make_epoch_iterator(
    model: keras.Model, loop: str, arguments: Mapping[str, Any]
) -> FeedEpochIterator | None:
    """Returns the iterator of an attached model's loop; None where Keras's own loop runs it."""
    controller = controller_of(model)
    if controller is None or runs_uncompiled(controller.setup):
        return None
    return FeedEpochIterator(controller, Mode(loop), **arguments)
