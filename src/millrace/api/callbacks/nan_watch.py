"""Stops training before an update that would make weights NaN, and names the tensor that caused it.

    update       ... 36         37         38: a gradient is NaN
    weights          applied    applied    as they were after 37
    recorder     statistics of the last updates  ->  a directory, with the batches of update 38

The program checks gradients before it applies them, so no weights are lost, and nothing is stored
while training goes well. To find the tensor, the update runs again with statistics of all tensors.
"""

import logging
import os
import pathlib
import re
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import keras
import numpy as np
from rich.console import Console

import millrace.run.fit.controller as controllers
from millrace._compat.keras_loops import sync_state
from millrace.api.callbacks.nan_search import NonFiniteTensor, first_non_finite, is_non_finite
from millrace.api.callbacks.tensor_choice import check_gradients, patterns_of
from millrace.base.options import TapRequest, whole_number
from millrace.base.records.flight import (
    FLIGHTS,
    MODEL_FILE,
    Flight,
    FlightNote,
    FlightRecord,
    make_flight,
    write_flight,
)
from millrace.base.records.tensors import LOSS, STATISTICS, StatisticsBlock, Tensor, non_finite_data
from millrace.compilation.cache.private import make_private
from millrace.errors import ModelError, OptionError
from millrace.run.compiled_loop.protocol import Halted
from millrace.run.pipelines.assignment.assignment import Assignment
from millrace.run.processes.agreement import process_index
from millrace.run.processes.failure import describe

logger = logging.getLogger("millrace")

_NUMBERS = ("_steps", "_updates", "_epoch", "_epoch_begin")  # that are saved

ALL = ("*",)  # the pattern of all gradients


class NaNWatch(keras.callbacks.Callback):
    """Stops `fit` before the first update with a NaN or an infinity in a gradient.

    The model keeps the weights, the optimizer state and the seeds from before that update. A flight
    record is written to a directory: the model, the batches of the update and what was found in it.
    That is in `flights` in the directory of the run (`Strategy(report_dir=...)`), or in a directory
    that is given; without either, nothing is written.

    Args:
        gradients: patterns of variable names, such as `"dense*"`; all variables by default.
        last: number of last updates whose statistics are kept and written.
        directory: parent of the directory that a flight record is written to; None is that of the
            run.

    Attributes:
        found: the `millrace.base.records.flight.FlightRecord` of the update, or None.
        written: the directory of the flight record, or None.

    Raises:
        OptionError: if `last` is below 1 or a pattern is not a string; when training starts, if a
            pattern matches no trainable variable, or the optimizer scales the loss, which makes
            infinities on purpose.
        ModelError: when training starts, if the model belongs to no strategy.
    """

    def __init__(
        self,
        gradients: str | Sequence[str] = ALL,
        *,
        last: int = 10,
        directory: str | os.PathLike[str] | None = None,
    ):
        super().__init__()
        self._gradients = patterns_of("gradients", gradients)
        if not self._gradients:
            raise OptionError(
                f"gradients must be patterns of variable names. Received: {gradients!r}. Set "
                "gradients='*' for all variables."
            )
        self._last = whole_number("last", last, 1)
        if directory is not None and not isinstance(directory, str | os.PathLike):
            raise OptionError(
                f"directory must be a path, or None for that of the run. Received: {directory!r}. "
                'Set directory="flights", for example, or leave it out.'
            )
        self._directory = None if directory is None else pathlib.Path(directory)
        self._rows: deque[tuple[int, np.ndarray]] = deque(maxlen=self._last)
        self._tensors: tuple[Tensor, ...] = ()
        self._steps = self._updates = self._epoch = self._epoch_begin = 0
        self.found: FlightRecord | None = None
        self.written: pathlib.Path | None = None

    def on_train_begin(self, logs: Mapping[str, float] | None = None) -> None:
        """Asks the controller to watch the gradients."""
        controller = controllers.controller_of(self.model)
        if controller is None:
            raise ModelError(
                "NaNWatch watches programs that a strategy runs, and this model belongs to no "
                "strategy. Call strategy.attach(model) before fit."
            )
        if isinstance(self._fitted.optimizer, keras.optimizers.LossScaleOptimizer):
            raise OptionError(
                "NaNWatch cannot distinguish an error from the infinities that a "
                "LossScaleOptimizer makes and skips on purpose. Leave NaNWatch out, or compile "
                "with auto_scale_loss=False."
            )
        if self._gradients != ALL:
            check_gradients(self._fitted, self._gradients)
        self._controller = controller
        self._rows.clear()
        self._steps = self._updates = self._epoch_begin = 0
        self.found = self.written = None
        controller.watch(self, TapRequest(gradients=self._gradients, norms=True, stops=True))

    @property
    def _fitted(self) -> Any:
        return self.model  # Keras sets it while `fit` runs

    def on_train_end(self, logs: Mapping[str, float] | None = None) -> None:
        """Stops watching the gradients."""
        self._controller.watchers.unwatch(self)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Records the epoch, and the number of steps before it."""
        self._epoch, self._epoch_begin = epoch, self._steps

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Waits until the steps of the epoch are counted."""
        self._controller.watchers.outfeed.flush()

    def get_state(self) -> dict[str, int]:
        """Returns the numbers of the next step and update, for a training that continues later."""
        self._controller.watchers.outfeed.flush()
        return {name: getattr(self, name) for name in _NUMBERS}

    def set_state(self, state: Mapping[str, int]) -> None:
        """Continues with the numbers that `get_state` has returned."""
        for name in _NUMBERS:
            setattr(self, name, int(state[name]))

    def statistics(self, block: StatisticsBlock) -> None:
        """Receives the statistics of some updates; called by the outfeed's thread."""
        if block.of_updates is not None:
            self._tensors = block.of_updates.tensors
            for row in block.of_updates.values[..., : len(STATISTICS)]:
                self._rows.append((self._updates, row))
                self._updates += 1
        self._steps += block.steps

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        """Stops training if the execution was halted."""
        function = self._controller.functions.running
        halted = None if function is None else function.halted
        if halted is None or self.found is not None:
            return
        self._controller.watchers.outfeed.flush()
        self._fitted.stop_training = True
        sync_state(self._fitted)
        self.found = self._record(halted, self._first_non_finite(halted))
        self._write(halted)
        self._note()
        self._print()

    def _first_non_finite(self, halted: Halted) -> NonFiniteTensor:
        accumulation = self._controller.setup.accumulation
        device = self._controller.setup.groups[0].devices[0]
        try:
            return first_non_finite(self._fitted, halted.batches, accumulation, device)
        except Exception:  # for example of a model that needs all its devices
            logger.warning("The update could not be run again on one device.", exc_info=True)
            return NonFiniteTensor()

    def _record(self, halted: Halted, first: NonFiniteTensor) -> FlightRecord:
        assignment = self._controller.setup.stages.assignment()
        if (tensor := first.tensor) is not None and assignment is not None:
            last = assignment.num_stages - 1
            stage = last if tensor == LOSS else _stage_of(tensor, assignment)
            tensor = replace(tensor, stage=stage)
        step = self._steps - len(halted.batches)
        return FlightRecord(
            model=self._fitted.name,
            epoch=self._epoch,
            step=step,
            update=self._updates - 1,
            micro_batch=first.micro_batch,
            tensor=tensor,
            nans=first.nans,
            infs=first.infs,
            stages=1 if assignment is None else assignment.num_stages,
            micro_batches=len(halted.batches),
            versions={"jax": jax.__version__, "keras": keras.__version__},
            batch=step - self._epoch_begin + (first.micro_batch or 0),
            data=non_finite_data(halted.batches),
        )

    def _write(self, halted: Halted) -> None:
        run = self._controller.totals.sinks.path
        if (self._directory is None and run is None) or process_index() != 0:
            return
        try:  # whatever fails: training has stopped, and the diagnosis is in `found`
            flight = Flight(
                record=self.found,  # type: ignore[arg-type]
                updates=[number for number, _ in self._rows],
                tensors=self._tensors,
                statistics=np.stack([row for _, row in self._rows]),
                batches=halted.batches,
            )
            directory = make_flight(self._parent(run), self._fitted.name, self._updates - 1)
            self._save_model(directory / MODEL_FILE)
            write_flight(directory, flight)
        except Exception as error:
            of_disk = isinstance(error, OSError)
            advice = " Set NaNWatch(directory=...) to a directory that can be written."
            logger.warning(
                "The flight record cannot be written: %s.%s",
                error if of_disk else describe(error), advice if of_disk else "",
            )  # fmt: skip
            return
        self.written = directory

    def _save_model(self, path: pathlib.Path) -> None:
        try:
            self._fitted.save(path)
        except Exception as error:  # of layers of the user, too
            path.unlink(missing_ok=True)
            logger.warning(
                "The flight record is written without the model, which Keras cannot save: %s.",
                describe(error),
            )

    def _parent(self, run: pathlib.Path | None) -> pathlib.Path:
        """Returns the parent of a flight, which exists.

        Raises:
            OSError: if it cannot be made.
        """
        if self._directory is not None or run is None:
            parent = self._directory or pathlib.Path()
            parent.mkdir(parents=True, exist_ok=True)
            return parent
        make_private(run / FLIGHTS)
        return run / FLIGHTS

    def _note(self) -> None:
        """Leaves a note of the flight in the records of the run."""
        note = FlightNote(
            model=self._fitted.name,
            directory="" if self.written is None else str(self.written.absolute()),
            text=str(self.found),
            time=time.time(),
        )
        self._controller.totals.sinks.add(note)

    def _print(self) -> None:
        non_finite = [
            str(tensor)
            for tensor, row in zip(self._tensors, self._rows[-1][1], strict=True)
            if is_non_finite(row)
        ]
        console = Console(stderr=True, highlight=False, soft_wrap=True)
        console.print(f"\nNaNWatch: {self.found}", style="bold red", markup=False)
        for line in self.found.of_data() if self.found is not None else ():
            console.print(f"  {line}", style="bold red", markup=False)
        console.print(
            f"  {len(non_finite)} of {len(self._tensors)} gradients are not finite. Training "
            "stopped; the model has the weights from before this update.",
            markup=False,
        )
        if self.written is not None:
            console.print(f"  Its batches: {self.written}", markup=False)


def _stage_of(tensor: Tensor, assignment: Assignment) -> int:
    """Returns the stage of the layer call that computes a tensor, found by name."""
    for label, stage in zip(assignment.labels, assignment.stages or (), strict=False):
        name = label if tensor.kind == "activation" else re.sub(r"#\d+", "", label)
        if tensor.name == name or tensor.name.startswith((f"{name}/", f"{name}:")):
            return stage
    return tensor.stage
