"""One program of a function and the Keras variables that it touches.

a first trace of the function -> variables that it assigns, and those that it only reads
values of both, arrays -> the program -> results, taps, new values -> the variables
"""

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import jax
import numpy as np

from millrace.loops.compiled import Compiled, Subject
from millrace.loops.exchange import Exchange
from millrace.loops.replica_forms import ProgramResults, ReplicaForm, form_of
from millrace.loops.replication import ReplicaLaunch
from millrace.loops.scope import Context, EnclosingLoop, Touched, VariableScope, look_at
from millrace.precompile import compile_only
from millrace.pytrees import Array
from millrace.steps.program import FunctionSource
from millrace.taps.outfeed import OutfeedQueue
from millrace.taps.taps import Tapped, collecting


class LoopProgram:
    """A function of arrays; the values of its variables are further arguments of the program."""

    def __init__(
        self,
        function: Callable[[list[Array]], object],
        arrays: Sequence[Array],
        subject: Callable[[Touched, float], Subject],
        launch: ReplicaLaunch | None = None,
    ):
        """Traces the function once, to find the variables that it touches.

        Args:
            function: takes a list of arrays, and may touch any variables.
            arrays: examples of the arguments, of the same shapes and dtypes.
            subject: returns a description for the compile log, given the variables and the
                seconds that this trace has taken.
            launch: number of replicas, which the trace may change; None for one.
        """
        begin = time.perf_counter()
        specs = [
            jax.ShapeDtypeStruct(array.shape, jax.dtypes.canonicalize_dtype(array.dtype))
            for array in arrays
        ]
        self._function = function
        self._form, self._touched = _traced_once(function, specs, launch)
        self._exchanges: list[Exchange] | None = None  # of its loops; None before the trace
        self._compiled = Compiled(
            self._traced,
            subject(self._touched, time.perf_counter() - begin),
            shares=lambda: not self._touched.tapped and not self._exchanges,
            devices=self._form.devices,
            source=FunctionSource(self._touched.changed, self._touched.fixed),
        )
        self._loops: list[EnclosingLoop] = []  # whose numbers of iterations the program returns
        self._lock = threading.Lock()

    def lower(self, arrays: Sequence[Array]) -> jax.stages.Lowered:
        """Returns the program before XLA compiles it."""
        return self._compiled.lower(*self._arguments(arrays))

    def run(self, arrays: Sequence[Array]) -> Any:
        """Runs the program and assigns the variables their new values.

        Raises:
            Exception: of a data set or a queue of a loop in the program.
        """
        if self._exchanges is None:
            self._compiled.prepare(*self._arguments(arrays))  # finds the loops with exchanges
        if compile_only.is_on_for_functions():
            compile_only.check_cache()
            return self._compiled.zeros(*self._arguments(arrays))[0]
        exchanges = bool(self._touched.tapped or self._exchanges)
        if not exchanges and not self._touched.changed:
            return self._run(arrays)[0]
        # Variables and queues belong to one run at a time. The function was traced before.
        with self._lock:
            return self._run_with_exchanges(arrays) if exchanges else self._run(arrays)[0]

    def _run_with_exchanges(self, arrays: Sequence[Array]) -> Any:
        queues: tuple[OutfeedQueue, ...] = self._touched.tapped.keys  # type: ignore[assignment]
        for queue in queues:
            queue.expect()
        with exchanging(self._exchanges or []):
            try:
                result, tapped = jax.block_until_ready(self._run(arrays))
                jax.effects_barrier()
            except BaseException as error:
                for queue in queues:
                    queue.fail(error)
                raise
            for queue, value in tapped.items():
                queue.receive(jax.tree.map(lambda leaf: np.array(leaf)[None], value), 1)
        return result

    def _arguments(
        self, arrays: Sequence[Array]
    ) -> tuple[list[jax.Array], list[jax.Array], list[Array]]:
        form, touched = self._form, self._touched
        return *form.values(touched.changed, touched.fixed), form.arguments(arrays)

    def _run(self, arrays: Sequence[Array]) -> tuple[Any, Tapped]:
        results: ProgramResults = self._compiled(*self._arguments(arrays))
        self._form.assign(self._touched.changed, results)
        for iterations, loop in zip(results.iterations, self._loops, strict=True):
            loop.check(int(iterations))
        return self._form.result(results.result), results.tapped

    def _traced(
        self, changed: list[jax.Array], fixed: list[jax.Array], arrays: list[Array]
    ) -> ProgramResults:
        return self._form.trace(self._of_one, self._touched.fixed, changed, fixed, arrays)

    def _of_one(
        self, changed: list[jax.Array], fixed: list[jax.Array], arrays: list[Array]
    ) -> ProgramResults:
        touched = self._touched
        values = zip([*touched.changed, *touched.fixed], [*changed, *fixed], strict=True)
        exchanges = self._exchanges = self._exchanges or []
        context = Context(exchanges=exchanges)
        with VariableScope(values, context) as scope:
            result, tapped = collecting(self._function)(arrays)
            context.claim(tapped)
            new = scope.values(touched.changed)
        scope.refuse_others(touched.changed)
        self._loops = [loop for _, loop in context.to_check]
        iterations = [iterations for iterations, _ in context.to_check]
        return ProgramResults(result, tapped, new, iterations)


def _traced_once(
    function: Callable[[list[Array]], object],
    specs: list[jax.ShapeDtypeStruct],
    launch: ReplicaLaunch | None,
) -> tuple[ReplicaForm, Touched]:
    """Traces a function for as many replicas as there are, which are fewer if it uses shards."""
    launch = None if launch is None or launch.devices == 1 else launch
    while True:
        form = form_of(launch)
        with form.looking():
            touched = look_at(function, specs)
        if launch is None or form.count == launch.replicas:
            return form, touched


class exchanging:  # noqa: N801 - used as a function
    """Surrounds a run of a program whose loops exchange values with the host."""

    def __init__(self, exchanges: Sequence[Exchange]):
        self._exchanges = exchanges

    def __enter__(self) -> None:
        for exchange in self._exchanges:
            exchange.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        errors = [exchange.close(error) for exchange in self._exchanges]
        own = next((e for e in errors if e is not None and e is not error), None)
        if own is not None:
            raise own
