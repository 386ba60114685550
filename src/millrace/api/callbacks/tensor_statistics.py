"""The callback that watches activations and gradients of any attached model.

programs       reduce each tensor to eight numbers, beside the step       programs/taps/tensors.py
outfeed        delivers them while the device continues                   programs/taps/delivery.py
this callback  numbers them, keeps them, writes them
"""

import os
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from millrace.api.callbacks.tensor_board import EventFile
from millrace.api.callbacks.tensor_choice import check_choice, choose
from millrace.api.callbacks.tensor_history import Entries, Epoch, TensorHistory
from millrace.base.options import Moment, truth, whole_number
from millrace.base.records.tensors import STATISTICS, StatisticsBlock, Tensor, TensorRows
from millrace.errors import ModelError, OptionError
from millrace.programs.plan import Mode
from millrace.run.fit.controller import Controller, controller_of
from millrace.run.processes.agreement import process_index
from millrace.tools.recording.tensors import RecordedTensors

BINS = 64  # of a histogram


_NUMBERS = ("first_step", "first_update", "steps", "updates")  # of an epoch, that are saved


class TensorStatistics(keras.callbacks.Callback):
    """Records mean, std, min, max, norm, share of zeros, NaNs and infinities of tensors.

    It records every micro-batch or every update, in order, for any `steps_per_execution`. The
    model needs no changes, and training computes the same weights. Without the callback, `fit`
    runs the same programs as if it did not exist.

        statistics = TensorStatistics(activations="*", gradients="*/kernel")
        model.fit(x, y, callbacks=[statistics])
        pandas.DataFrame(statistics.history)

    Attributes:
        history: the recorded statistics, as columns.
    """

    def __init__(
        self,
        activations: str | Sequence[str] = (),
        gradients: str | Sequence[str] = (),
        when: str | Moment = "before_apply",
        every: int = 1,
        *,
        max_rows: int = 1_000_000,
        tensorboard: str | os.PathLike[str] | None = None,
        histograms: bool = False,
    ):
        """Chooses the tensors. Patterns are those of a shell; pass one or several.

        Args:
            activations: patterns of layer names. A name begins with the names of the enclosing
                layers, `encoder/dense`; a pattern matches the whole name or its end.
            gradients: patterns of the names of trainable variables, such as `dense/kernel`.
            when: `"before_apply"` looks at the gradients of each update, just before the optimizer
                receives them; `"after_compute"` looks at those of each micro-batch.
            every: looks only at every n-th update and its micro-batches.
            max_rows: maximum number of rows, one for each tensor and micro-batch or update.
            tensorboard: a directory for scalars; needs the package `tensorboard`.
            histograms: also writes a histogram of each tensor there, with 64 bins between its
                smallest and its largest element. It costs several times as much as the
                statistics.

        Raises:
            OptionError: if an option is invalid.
        """
        super().__init__()
        if truth("histograms", histograms) and tensorboard is None:
            raise OptionError(
                "histograms=True needs a directory for the histograms. Set tensorboard= to one."
            )
        bins = BINS if histograms else 0
        self._choice = choose(activations, gradients, when, every, bins)
        self._history = TensorHistory(whole_number("max_rows", max_rows, 1))
        self._board = None if tensorboard is None else EventFile(tensorboard)
        self._controller: Controller | None = None
        # Blocks from the outfeed's thread. Everything else happens on the thread of callbacks.
        self._arrived: deque[StatisticsBlock] = deque()
        self._epoch = Epoch(0, 1)
        self._keras_steps = 0
        self._seen: set[Tensor] = set()
        self._indices: dict[tuple[tuple[Tensor, ...], bool], list[int]] = {}
        self._recorded = RecordedTensors()
        self._has_looked = False  # whether patterns without matches were reported
        self._reports = False  # whether this process writes for TensorBoard

    def statistics(self, block: StatisticsBlock) -> None:
        """Receives a block from the outfeed, which must not wait."""
        self._arrived.append(block)

    @property
    def history(self) -> dict[str, np.ndarray]:
        """Columns of equal length, as `pandas.DataFrame` takes them, with a row for each tensor.

        `epoch` as Keras counts it; `step` and `update` from 0 over all epochs and fits, where the
        step of an update is its last one; `kind`, `name` and `stage` of the tensor; `mean`, `std`,
        `min`, `max`, `norm`, `zeros` (0 to 1), and the numbers of `nans` and `infs`.
        """
        self._process_arrived()
        return self._history.columns()

    def on_train_begin(self, logs: Mapping[str, float] | None = None) -> None:
        """Requests the tensors, before anything is compiled.

        Raises:
            ModelError: if the model belongs to no strategy.
            OptionError: if a pattern matches nothing.
        """
        model: Any = self.model
        controller = controller_of(model)
        if controller is None:
            raise ModelError(
                "TensorStatistics watches the compiled loops of a strategy, and model "
                f"{model.name!r} belongs to no strategy. Call strategy.attach(model), or build it "
                "within strategy.scope()."
            )
        check_choice(model, self._choice)
        self._end_epoch()  # of a fit that failed
        self._controller = controller
        self._reports = not (controller.setup.spans_processes and process_index())
        controller.watch(self, self._choice.taps)

    def get_state(self) -> dict[str, int | None]:
        """Returns the numbers of the next step and update, for a training that continues later."""
        if self._controller is not None:
            self._controller.watchers.outfeed.flush()
        self._process_arrived()
        numbers = {name: getattr(self._epoch, name) for name in _NUMBERS}
        iterations = self._epoch.iterations
        return {**numbers, "keras_steps": self._keras_steps, "iterations": iterations}

    def set_state(self, state: Mapping[str, int]) -> None:
        """Continues with the numbers that `get_state` has returned."""
        epoch = self._epoch
        for name in _NUMBERS:
            setattr(epoch, name, int(state[name]))
        if epoch.iterations is not None:  # counted here when the epoch continued, not at its begin
            before = state["iterations"]
            epoch.iterations = epoch.iterations - epoch.updates if before is None else int(before)
        self._keras_steps = int(state["keras_steps"])

    def on_train_end(self, logs: Mapping[str, float] | None = None) -> None:
        """Stops watching; the history remains."""
        if self._controller is not None:
            self._controller.watchers.unwatch(self)
            self._controller = None

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Begins the numbering of the epoch's steps and updates."""
        if self._controller is None:
            return
        self._epoch = Epoch(
            epoch,
            self._controller.setup.update_steps(Mode.TRAIN),
            self._epoch.first_step,
            self._epoch.first_update,
        )
        if self._controller.watchers.taps.every != self._choice.every:
            optimizer: Any = self._controller.model.optimizer
            self._epoch.iterations = int(np.asarray(optimizer.iterations.value))

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        """Stores the statistics that have arrived."""
        self._keras_steps = batch + 1
        self._process_arrived()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Waits for the statistics of the whole epoch."""
        if self._controller is None:
            return
        self._controller.watchers.outfeed.flush()
        self._end_epoch()
        if (records := self._controller.totals.records) is not None:
            records.add(*self._recorded.series(self._controller.model.name, epoch + 1))
        self._warn_of_unseen(self._controller.model)

    def _end_epoch(self) -> None:
        self._process_arrived()
        epoch = self._epoch
        # Without statistics of micro-batches only Keras counts these.
        epoch.steps = epoch.steps or self._keras_steps
        if self._board is not None:
            self._board.flush()
        first = epoch.first_step + epoch.steps, epoch.first_update + epoch.updates
        self._epoch = Epoch(epoch.number, epoch.update_steps, *first)
        self._keras_steps = 0

    def _warn_of_unseen(self, model: keras.Model) -> None:
        if self._has_looked:
            return
        self._has_looked = True
        if unseen := self._choice.unseen(self._seen):
            warnings.warn(
                f"TensorStatistics has seen no tensors of {unseen} in an epoch of "
                f"{model.name!r}. It does not see layers that run in a loop within a step: name "
                "the enclosing layer, such as the LSTM instead of its cell.",
                stacklevel=2,
            )

    def _process_arrived(self) -> None:
        while self._arrived:
            block = self._arrived.popleft()
            epoch, steps, updates = self._epoch, 0, 0
            begin = epoch.steps, epoch.updates
            if block.of_steps is not None:
                epoch.steps += (steps := block.steps)
            if block.of_steps is not None or block.of_updates is not None:
                epoch.updates += (updates := block.updates)
            self._keep(block.of_steps, False, begin[0] + np.arange(steps))
            self._keep(block.of_updates, True, begin[1] + np.arange(updates))

    def _keep(self, rows: TensorRows | None, of_updates: bool, numbers: np.ndarray) -> None:
        if rows is None or not len(numbers):
            return
        indices = self._indices_of(rows.tensors, of_updates)
        if not indices:
            return
        epoch = self._epoch
        all_values = np.asarray(rows.values)[:, indices]
        values = all_values[..., : len(STATISTICS)]
        histograms = all_values[..., len(STATISTICS) :] if self._choice.bins else None
        updates = numbers if of_updates else numbers // epoch.update_steps
        # A count below zero marks an update that no callback asked for; others may ask for more
        # updates than this one.
        is_chosen = values[:, 0, -1] >= 0
        if epoch.iterations is not None:
            is_chosen &= (epoch.iterations + updates) % self._choice.every == 0
        if not is_chosen.any():
            return
        tensors = tuple(rows.tensors[k] for k in indices)
        entries = Entries(epoch, of_updates, numbers[is_chosen], tensors, values[is_chosen])
        self._history.add(entries)
        if self._controller is not None and self._controller.totals.sinks:
            self._recorded.add(entries.tensors, entries.steps, entries.values)
        if self._board is not None and self._reports:
            drawn = None if histograms is None else histograms[is_chosen]
            self._board.add(replace(entries, histograms=drawn))

    def _indices_of(self, tensors: tuple[Tensor, ...], of_updates: bool) -> list[int]:
        """Returns the indices of the chosen tensors, cached since every block asks for them."""
        key = (tensors, of_updates)
        if key not in self._indices:
            self._seen.update(tensors)
            self._indices[key] = [
                k for k, tensor in enumerate(tensors) if self._choice.has(tensor, of_updates)
            ]
        return self._indices[key]
