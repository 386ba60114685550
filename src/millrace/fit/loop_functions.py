"""The functions of one model that Keras's loops call, with their executables."""

from typing import Any, NamedTuple, Protocol

import keras

from millrace._compat.jax_memory import is_out_of_memory
from millrace._compat.keras_build import compilation_of
from millrace.compiled_loop.protocol import Runner
from millrace.compiled_loop.result import CallResult, Halted
from millrace.compiling.lowering import MODEL_OBJECT
from millrace.explain.key import ObjectNumbers
from millrace.fit.totals import next_number
from millrace.plan import BatchSpec, Mode


class LastExecution(NamedTuple):
    """What the last execution of a function was given, for what is said if it failed."""

    number: int = 0  # of steps
    batch: BatchSpec | None = None  # None if no batch was taken
    out_of_memory: BaseException | None = None  # what JAX raised, if a device had none left


def out_of_memory(error: BaseException) -> BaseException | None:
    """Returns what JAX raised, if `error` is or follows from a lack of memory."""
    found: BaseException | None = error
    while found is not None and not is_out_of_memory(found):
        found = found.__cause__
    return found


class KeptFunction(Protocol):
    """A train, test or predict function, as those see it who do not call it."""

    mode: Mode
    last: LastExecution

    parts: list[CallResult]  # of the last execution, where the results of every step are wanted
    chunk: int  # steps that a call may run before it gives some of them
    halted: Halted | None  # the update before which the last execution was halted

    @property
    def offloads(self) -> bool:
        """Whether something rests in host memory."""
        ...

    def runner(self) -> Runner:
        """Returns what runs an execution."""
        ...

    def gather(self, role: str, values: Any) -> Any:
        """Returns values of the state as variables of the model can hold them."""

    def release(self) -> None:
        """Lets go of the data of a loop that has ended."""


class LoopFunctions:
    """The functions that are there, and which of them has the state of the running loop."""

    def __init__(self, model: keras.Model, strategy_number: int) -> None:
        self._model = model
        self._strategy_number = strategy_number
        self._number = next_number()
        self._compiled_as: tuple[Any, ...] = ()  # what the newest compile() of the model has made
        self._compile_calls = 0
        self.compiled: dict[Mode, KeptFunction] = {}
        self.uncompiled: dict[Mode, tuple[Any, Any]] = {}  # functions of Keras, and made for what
        self.running: KeptFunction | None = None  # whose state Keras keeps

    @property
    def identity(self) -> ObjectNumbers:
        """Which strategy and which model programs belong to, for their keys."""
        made = compilation_of(self._model)
        if list(map(id, made)) != list(map(id, self._compiled_as)):
            self._compiled_as = made
            self._compile_calls += 1
        return (
            ("strategy", f"number {self._strategy_number}"),
            (MODEL_OBJECT, f"number {self._number}"),
            ("compile() calls", str(self._compile_calls)),
        )

    @property
    def offload(self) -> bool:
        """Whether something of the model rests in host memory."""
        return any(function.offloads for function in self.compiled.values())

    def gather(self, role: str, values: Any) -> Any:
        """Returns values of a running loop as variables of the model can hold them."""
        return values if self.running is None else self.running.gather(role, values)

    def clear(self) -> None:
        """Forgets the compiled functions: the next loop makes others."""
        self.compiled.clear()
        self._model.train_function = None

    def release(self) -> None:
        """Lets go of the data of a loop that has ended."""
        for function in self.compiled.values():
            function.release()
