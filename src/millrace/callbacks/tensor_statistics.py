"""The callback that watches activations and gradients of any attached model.

programs       reduce each tensor to eight numbers, next to the step      taps/tensors.py
outfeed        brings them while the device goes on                       taps/delivery.py
this callback  numbers them, keeps them, prints them, writes them
"""

import warnings
from collections import deque
from dataclasses import replace
from typing import Any

import keras
import numpy as np
from rich.console import Console

from millrace.arguments import checked
from millrace.callbacks.tensor_board import EventFile
from millrace.callbacks.tensor_choice import check_choice, choose
from millrace.callbacks.tensor_history import (
    Entries,
    Epoch,
    EpochTable,
    TensorHistory,
    make_console,
)
from millrace.errors import ModelError, OptionError
from millrace.fit.controller import Controller, controller_of
from millrace.options import truth, whole_number
from millrace.plan import Mode
from millrace.processes.facts import process_index
from millrace.records.tensors import STATISTICS, StatisticsBlock, Tensor, TensorRows

BINS = 64  # of a histogram


class TensorStatistics(keras.callbacks.Callback):
    """Keeps mean, std, min, max, norm, share of zeros, NaNs and infinities of tensors.

    Of every micro-batch or every update, in order, whatever `steps_per_execution` is. Nothing in
    the model is written for it, and training computes the same weights. Fits without the callback
    run the programs that they would run if it did not exist.

        statistics = TensorStatistics(activations="*", gradients="*/kernel")
        model.fit(x, y, callbacks=[statistics])
        pandas.DataFrame(statistics.history)

    Attributes:
        history: what was seen, as columns.
    """

    @checked
    def __init__(
        self,
        activations: Any = (),
        gradients: Any = (),
        when: Any = "before_apply",
        every: int = 1,
        *,
        print_every: int = 1,
        max_rows: int = 1_000_000,
        tensorboard: Any = None,
        histograms: bool = False,
        console: Console | None = None,
    ):
        """Chooses tensors. Patterns are as in a shell, one or several.

        Args:
            activations: of names of layers. A name has those of the layers around it in front,
                `encoder/dense`; a pattern matches all of it or its end.
            gradients: of names of trainable variables, such as `dense/kernel`.
            when: `"before_apply"` looks at the gradients of each update, as the optimizer is about
                to get them; `"after_compute"` at those of each micro-batch.
            every: looks at each n-th update only, and at its micro-batches.
            print_every: prints a table at the end of each n-th epoch; 0 prints none.
            max_rows: how many rows are kept, one for each tensor and micro-batch or update.
            tensorboard: a directory for scalars; needs the package `tensorboard`.
            histograms: writes a histogram of each tensor there too, of 64 parts between its
                smallest and its largest element. Counting them costs several times what the
                statistics cost.
            console: prints the tables; None is standard output.

        Raises:
            OptionError: if an option is none of these.
        """
        super().__init__()
        if console is not None and not hasattr(console, "print"):
            raise OptionError(
                f"console must be a rich.console.Console, or None. Received: {console!r}. Set "
                "print_every=0 to print nothing."
            )
        if truth("histograms", histograms) and tensorboard is None:
            raise OptionError(
                "histograms=True has nowhere to write them. Set tensorboard= to a directory."
            )
        bins = BINS if histograms else 0
        self._choice = choose(activations, gradients, when, every, bins)
        self._print_every = whole_number("print_every", print_every, 0)
        self._history = TensorHistory(whole_number("max_rows", max_rows, 1))
        self._board = None if tensorboard is None else EventFile(tensorboard)
        self._console = console
        self._controller: Controller | None = None
        # Blocks that the outfeed's thread has brought. All else happens on the thread of callbacks.
        self._arrived: deque[StatisticsBlock] = deque()
        self._epoch = Epoch(0, 1)
        self._keras_steps = 0
        self._table = EpochTable()
        self._seen: set[Tensor] = set()
        self._places: dict[tuple[tuple[Tensor, ...], bool], list[int]] = {}
        self._has_looked = False  # whether all patterns have shown something
        self._tells = False  # whether this process prints and writes

    def statistics(self, block: StatisticsBlock) -> None:
        """Takes in a block. For the outfeed, which must not wait."""
        self._arrived.append(block)

    @property
    def history(self) -> dict[str, np.ndarray]:
        """Columns of equal length, as `pandas.DataFrame` takes them; a row for each tensor.

        `epoch` as Keras counts; `step` and `update` from 0 over all epochs and fits, where that of
        an update is its last step; `kind`, `name` and `stage` of the tensor; `mean`, `std`,
        `min`, `max`, `norm`, `zeros` (0 to 1), and the numbers of `nans` and `infs`.
        """
        self._take_in()
        return self._history.columns()

    def on_train_begin(self, logs: Any = None) -> None:
        """Asks for the tensors, before anything is compiled.

        Raises:
            ModelError: if the model is under no strategy, or has a `train_step` of its own.
            OptionError: if a pattern matches nothing.
        """
        model: Any = self.model
        controller = controller_of(model)
        if controller is None:
            raise ModelError(
                "TensorStatistics watches the compiled loops of a strategy, and model "
                f"{model.name!r} belongs to none. Call strategy.attach(model), or build it "
                "within strategy.scope()."
            )
        check_choice(model, self._choice)
        self._end_epoch()  # of a fit that failed
        self._controller = controller
        self._tells = not (controller.setup.spans_processes and process_index())
        controller.watch(self, self._choice.taps)

    def on_train_end(self, logs: Any = None) -> None:
        """Ends the watch. What is kept stays."""
        if self._controller is not None:
            self._controller.watchers.unwatch(self)
            self._controller = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Numbers what comes from here on."""
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
        self._table = EpochTable()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keeps what has come by now."""
        self._keras_steps = batch + 1
        self._take_in()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Waits for the rest of the epoch, and prints its table."""
        if self._controller is None:
            return
        self._controller.watchers.outfeed.flush()
        self._end_epoch()
        self._warn_of_unseen(self._controller.model)
        if self._tells and self._print_every and (epoch + 1) % self._print_every == 0:
            self._console = self._console or make_console()
            self._table.print(self._console, epoch)

    def _end_epoch(self) -> None:
        self._take_in()
        epoch = self._epoch
        # Where micro-batches have nothing to show only Keras counts them.
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
                f"TensorStatistics has seen nothing of {unseen} in an epoch of "
                f"{model.name!r}. Layers are seen where they run as part of a step, not in a "
                "loop within it: name the layer around, such as the LSTM instead of its cell.",
                stacklevel=2,
            )

    def _take_in(self) -> None:
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
        places = self._places_of(rows.tensors, of_updates)
        if not places:
            return
        epoch = self._epoch
        all_values = np.asarray(rows.values)[:, places]
        values = all_values[..., : len(STATISTICS)]
        histograms = all_values[..., len(STATISTICS) :] if self._choice.bins else None
        updates = numbers if of_updates else numbers // epoch.update_steps
        # Counts below zero: of an update that nobody asked for. Others may ask for more of them.
        wanted = values[:, 0, -1] >= 0
        if epoch.iterations is not None:
            wanted &= (epoch.iterations + updates) % self._choice.every == 0
        if not wanted.any():
            return
        tensors = tuple(rows.tensors[k] for k in places)
        entries = Entries(epoch, of_updates, numbers[wanted], tensors, values[wanted])
        self._history.add(entries)
        self._table.add(entries)
        if self._board is not None and self._tells:
            drawn = None if histograms is None else histograms[wanted]
            self._board.add(replace(entries, histograms=drawn))

    def _places_of(self, tensors: tuple[Tensor, ...], of_updates: bool) -> list[int]:
        """Returns where those of the choice are among these, as every block asks anew."""
        key = (tensors, of_updates)
        if key not in self._places:
            self._seen.update(tensors)
            self._places[key] = [
                k for k, tensor in enumerate(tensors) if self._choice.has(tensor, of_updates)
            ]
        return self._places[key]
