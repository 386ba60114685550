"""Callbacks for every step of an execution, delivered while the execution runs.

    device        |chunk 0   |chunk 1   |chunk 2   |
    Keras's loop             |b0 b1 b2 ..|..         |..        |

All chunks are dispatched before the first callback is called.

A step's logs leave the device when its chunk of the execution is done. Chunks are some 20 ms long,
by the speed of the execution before: one dispatch each, so the device does not notice.
"""

import functools
import time
from collections.abc import Mapping
from typing import Any, cast

import jax
import keras
import numpy as np

from millrace.base.pytrees import ArrayTree
from millrace.programs.plan import Mode
from millrace.run.fit.callbacks import (
    EpochCallbackList,
    LoopCallbackList,
    flat_callbacks,
    looks_at_no_batch,
    take_outputs,
)
from millrace.run.fit.controller import Controller
from millrace.run.fit.model_functions import KeptFunction

CHUNK_SECONDS = 0.02

Logs = Mapping[str, object] | None
_for: Any = functools.partialmethod  # a method, to type checkers too


class StepCallbackList(LoopCallbackList):
    """Calls batch callbacks once per step, where Keras calls them once per execution.

    Order: begin(0), end(0), begin(1), ... as with one step per execution. `stop_training` acts
    after the running execution.
    """

    def __init__(
        self,
        callbacks: keras.callbacks.CallbackList | keras.callbacks.Callback | list[object] | None,
        controller: Controller,
        **arguments: Any,
    ):
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks = callbacks.callbacks
        super().__init__(callbacks, **arguments)
        self._controller = controller
        self._begun = dict.fromkeys(Mode, 0)

    def _begin(self, mode: Mode, batch: int, logs: Logs = None) -> None:
        """Begins the first step of an execution."""
        self._begun[mode] = batch
        self._call(mode, "begin", batch, logs)

    def _end(self, mode: Mode, batch: int, logs: Logs = None) -> None:
        """Delivers the steps of an execution as they arrive."""
        function = self._controller.functions.compiled.get(mode)
        if function is None or not function.calls:  # Keras's own loop runs it
            self._call(mode, "end", batch, logs)
            return
        self._deliver(mode, function)

    on_train_batch_begin = _for(_begin, Mode.TRAIN)
    on_test_batch_begin = _for(_begin, Mode.TEST)
    on_predict_batch_begin = _for(_begin, Mode.PREDICT)
    on_train_batch_end = _for(_end, Mode.TRAIN)
    on_test_batch_end = _for(_end, Mode.TEST)
    on_predict_batch_end = _for(_end, Mode.PREDICT)

    def _deliver(self, mode: Mode, function: KeptFunction) -> None:
        step = first = self._begun[mode]
        arrived: list[tuple[float, int]] = []
        for call in function.calls:
            values = jax.tree.map(np.asarray, call.result)  # waits for this call only
            arrived.append((time.perf_counter(), call.steps))
            for index in range(call.first, call.first + call.steps):
                if step > first:
                    self._call(mode, "begin", step, None)
                entry = jax.tree.map(lambda leaf, i=index: leaf[i], values)
                self._call(mode, "end", step, self._entry(mode, entry))
                step += 1
        if steps := sum(count for _, count in arrived[1:]):
            per_step = (arrived[-1][0] - arrived[0][0]) / steps
            function.chunk = max(1, round(CHUNK_SECONDS / max(per_step, 1e-6)))

    def _entry(self, mode: Mode, entry: ArrayTree) -> dict[str, object]:
        if mode is Mode.PREDICT:
            return {"outputs": entry}
        logs = cast(Mapping[str, np.ndarray], entry)
        return {
            name: float(value) if np.ndim(value) == 0 else value for name, value in logs.items()
        }

    def _call(self, mode: Mode, when: str, step: int, logs: Logs) -> None:
        name = f"on_{mode.value}_batch_{when}"
        for callback in self.callbacks:
            getattr(callback, name)(step, logs=logs or {})


def callback_list(
    controller: Controller, mode: Mode, arguments: Mapping[str, Any], takes_list: bool
) -> Any:
    """Returns the `callbacks` argument of a loop, as one of millrace's lists where that is better.

    Args:
        controller: of the model.
        mode: of the loop.
        arguments: of the call, by name.
        takes_list: whether Keras's own loop gets them, and not that of a subclass.
    """
    given, verbose = arguments["callbacks"], arguments.get("verbose", "auto")
    more: dict[str, Any] = {
        "model": controller.model,
        "add_history": mode is Mode.TRAIN,
        "verbose": verbose,
        "epochs": arguments.get("epochs", 1),
        "steps": None,
    }
    if mode is Mode.PREDICT:
        controller.gathers_outputs = not take_outputs(given)
    is_stepwise = mode is Mode.PREDICT and not controller.gathers_outputs
    if controller.setup.options.asynchronous_callbacks or is_stepwise:
        if isinstance(given, StepCallbackList):
            return given
        return StepCallbackList(given, controller, add_progbar=verbose != 0, **more)
    is_list = isinstance(given, keras.callbacks.CallbackList)  # the user's, or of a running fit
    is_outermost = arguments is controller.arguments
    is_quiet = verbose == 0 and takes_list and is_outermost and not is_list
    if is_quiet and looks_at_no_batch(flat_callbacks(given)):
        return EpochCallbackList(given, **more)
    return given
