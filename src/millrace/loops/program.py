"""A function with the Keras variables that it touches, as one program.

look at the function -> variables that it assigns, and those that it only reads
values of both, arrays -> the program -> results, what is tapped, new values -> the variables
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from millrace.loops.compiled import Compiled, Subject
from millrace.loops.copies import axes_of, copies_of, put_copies, read_by
from millrace.loops.replication import Launch, as_replicas, in_replica
from millrace.loops.scope import Context, LoopAround, Touched, VariableScope, look_at, put
from millrace.precompile import compile_only
from millrace.taps.taps import Tapped, collecting


class Program:
    """A function of arrays, traced once; the variables' values are arguments of the program."""

    def __init__(
        self,
        function: Callable[[list[Any]], Any],
        arrays: list[Any],
        subject: Callable[[Touched, float], Subject],
        launch: Launch | None = None,
    ):
        """Looks at the function.

        Args:
            function: takes a list of arrays, and may touch any variables.
            arrays: of the shapes and dtypes that the program is for.
            subject: says what it is, by what it touches and the seconds that the look has taken.
            launch: how many replicas there are, once the function has been looked at; None is one.
        """
        begin = time.perf_counter()
        specs = [
            jax.ShapeDtypeStruct(array.shape, jax.dtypes.canonicalize_dtype(array.dtype))
            for array in arrays
        ]
        self._function = function
        if launch is None or launch.devices == 1:
            self._replicas = 1
            self._touched = look_at(function, specs)
        else:
            self._replicas = 0
            while self._replicas != launch.replicas:  # fewer, once the function has used shards
                self._replicas = launch.replicas
                with in_replica(None, self._replicas):
                    self._touched = look_at(function, specs)
        self._exchanges: list[Any] | None = None  # of the loops in it; None before it is traced
        self._compiled = Compiled(
            self._traced,
            subject(self._touched, time.perf_counter() - begin),
            shares=lambda: not self._touched.tapped and not self._exchanges,
        )
        self._loops: list[LoopAround] = []  # whose numbers of turns the program returns
        self._lock = threading.Lock()

    def lower(self, arrays: list[Any]) -> jax.stages.Lowered:
        """Returns the program before XLA compiles it."""
        return self._compiled.lower(*self._states(), arrays)

    def run(self, arrays: list[Any]) -> Any:
        """Runs the program and gives the variables their new values.

        Raises:
            Exception: what a data set or a queue of a loop in the program has raised.
        """
        if self._exchanges is None:
            self._compiled.prepare(*self._states(), arrays)  # tells which loops exchange
        if compile_only.is_on_for_functions():
            compile_only.check_cache()
            return self._compiled.zeros(*self._states(), arrays)[0]
        exchanges = bool(self._touched.tapped or self._exchanges)
        if not exchanges and not self._touched.changed:
            return self._run(arrays)[0]
        # Variables that it changes, and what it exchanges with the host, are one run's at a time.
        with self._lock:
            return self._run_with_exchanges(arrays) if exchanges else self._run(arrays)[0]

    def _run_with_exchanges(self, arrays: list[Any]) -> Any:
        queues: tuple[Any, ...] = self._touched.tapped.keys
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

    def _states(self) -> tuple[list[Any], list[Any]]:
        touched = self._touched
        count = self._replicas
        return copies_of(touched.changed, count), read_by(touched.fixed, count)

    def _run(self, arrays: list[Any]) -> tuple[Any, Tapped]:
        result, tapped, new, turns = self._compiled(*self._states(), arrays)
        (put if self._replicas == 1 else put_copies)(self._touched.changed, new)
        for number, loop in zip(turns, self._loops, strict=True):
            loop.check(int(number))
        return result, tapped

    def _traced(self, changed: list[Any], fixed: list[Any], arrays: list[Any]) -> Any:
        count = self._replicas
        axes = 0, axes_of(self._touched.fixed, fixed), None
        results = as_replicas(self._of_one, count, axes)(changed, fixed, arrays)
        if count == 1:
            return results
        result, tapped, new, turns = results
        result, turns = jax.tree.map(lambda leaf: leaf[0], (result, turns))
        return result, tapped, new, turns

    def _of_one(self, changed: list[Any], fixed: list[Any], arrays: list[Any]) -> Any:
        touched = self._touched
        values = zip([*touched.changed, *touched.fixed], [*changed, *fixed], strict=True)
        exchanges = self._exchanges = self._exchanges or []
        context = Context(exchanges=exchanges)
        with VariableScope(values, context) as scope:
            result, tapped = collecting(self._function)(arrays)
            context.claim(tapped)
            new = scope.values(touched.changed)
        scope.refuse_others(touched.changed)
        self._loops = [loop for _, loop in context.turns]
        return result, tapped, new, [turns for turns, _ in context.turns]


class exchanging:  # noqa: N801 - used as a function
    """Surrounds a run of a program whose loops exchange values with the host."""

    def __init__(self, exchanges: list[Any]):
        self._exchanges = exchanges

    def __enter__(self) -> None:
        for exchange in self._exchanges:
            exchange.open()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        errors = [exchange.close(error) for exchange in self._exchanges]
        own = next((e for e in errors if e is not None and e is not error), None)
        if own is not None:
            raise own
