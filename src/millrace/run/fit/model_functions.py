"""The functions of one model that Keras's fit loop calls, with their executables."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import jax
import keras
import numpy as np

from millrace._compat.jax_memory import is_out_of_memory
from millrace._compat.keras_build import compilation_of
from millrace.base.pytrees import ArrayTree
from millrace.compilation.executables.wanted import MODEL_OBJECT
from millrace.compilation.explain.key import ObjectNumbers
from millrace.programs.plan import BatchSpec, Mode
from millrace.programs.taps.entries import CallResult
from millrace.run.compiled_loop.protocol import BlockSpan, Halted, Runner
from millrace.run.fit.totals import next_number
from millrace.run.recording.loop_recorder import LoopWriter


@dataclass(slots=True)
class LastExecution:
    """The arguments of the last execution of a function, for the error if it failed."""

    steps: int = 0
    batch: BatchSpec | None = None  # None before the first one
    out_of_memory: BaseException | None = None  # raised by JAX, if a device had no memory left
    spans: list[BlockSpan] = field(default_factory=list[BlockSpan])  # while JAX looks for NaN

    def begin(self, steps: int) -> None:
        """Begins another execution."""
        self.steps, self.out_of_memory = steps, None
        self.spans.clear()


def out_of_memory(error: BaseException) -> BaseException | None:
    """Returns the error that JAX raised, if `error` is or follows from a lack of memory."""
    cause: BaseException | None = error
    while cause is not None and not is_out_of_memory(cause):
        cause = cause.__cause__
    return cause


class KeptFunction(Protocol):
    """A train, test or predict function, apart from calling it."""

    mode: Mode
    last: LastExecution

    calls: list[CallResult]  # of the last execution, where the results of every step are wanted
    logs: ArrayTree  # of the last execution
    chunk: int  # steps that a call may run before it returns some
    halted: Halted | None  # the update before which the last execution was halted

    @property
    def offloads(self) -> bool:
        """Whether some values are kept in host memory."""
        ...

    @property
    def shortened(self) -> Mapping[BatchSpec, int]:
        """Steps of blocks that a budget makes shorter than their options."""
        ...

    def runner(self) -> Runner:
        """Returns the runner for the options in force."""
        ...

    def gather(self, role: str, values: Iterable[jax.Array]) -> Iterable[jax.Array]:
        """Returns values of the state in the form that variables of the model hold."""
        ...

    def ended_with(self, logs: object) -> bool:
        """Whether these logs are what the metrics say now, which have not changed since."""
        ...

    def metric_parts(self) -> list[jax.Array]:
        """Returns the metrics of each replica; see `Runner.metric_parts`."""
        ...

    def resume_metric_parts(self, parts: Sequence[np.ndarray]) -> None:
        """Lets the next execution continue with metrics of each replica."""
        ...

    def release(self) -> None:
        """Frees the data of a loop that has ended."""


class UncompiledFunction(NamedTuple):
    """A train, test or predict function of Keras, step by step."""

    function: Callable[..., Any]
    settings: tuple[object, str | None]  # of the model when it was made


class LoopFunctions:
    """The functions of one model, and which of them has the state of the running loop."""

    def __init__(self, model: keras.Model, strategy_number: int) -> None:
        self._model = model
        self._strategy_number = strategy_number
        self._number = next_number()
        self._compiled_as: tuple[object, ...] = ()  # made by the newest compile() of the model
        self._compile_calls = 0
        self.compiled: dict[Mode, KeptFunction] = {}
        self.uncompiled: dict[Mode, UncompiledFunction] = {}
        self.running: KeptFunction | None = None  # whose state Keras keeps
        self.recorder: LoopWriter | None = None  # of the running loop, if it is recorded

    @property
    def identity(self) -> ObjectNumbers:
        """The strategy and the model of programs, for their keys."""
        compilation = compilation_of(self._model)
        if list(map(id, compilation)) != list(map(id, self._compiled_as)):
            self._compiled_as = compilation
            self._compile_calls += 1
        return (
            ("strategy", f"number {self._strategy_number}"),
            (MODEL_OBJECT, f"number {self._number}"),
            ("compile() calls", str(self._compile_calls)),
        )

    @property
    def training(self) -> KeptFunction | None:
        """The train function, if there is one."""
        return self.compiled.get(Mode.TRAIN)

    @property
    def offload(self) -> bool:
        """Whether some values of the model are kept in host memory."""
        return any(function.offloads for function in self.compiled.values())

    def gather(self, role: str, values: Iterable[jax.Array]) -> Iterable[jax.Array]:
        """Returns values of a running loop in the form that variables of the model hold."""
        return values if self.running is None else self.running.gather(role, values)

    def clear(self) -> None:
        """Forgets the compiled functions: the next loop makes others."""
        self.compiled.clear()
        self._model.train_function = None

    def release(self) -> None:
        """Frees the data of a loop that has ended."""
        for function in self.compiled.values():
            function.release()
