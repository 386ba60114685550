"""One program of a function and the Keras variables that it touches.

a first trace of the function -> variables that it assigns, and those that it only reads
values of both, arrays -> the program -> results, taps, new values -> the variables
"""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from millrace._compat.jax_tracing import is_tracing, trace_options
from millrace.api.own_loops.compiled import Compiled, Subject
from millrace.api.own_loops.exchange import deliver_one
from millrace.api.own_loops.log_subject import PieceSubjects
from millrace.api.own_loops.pieces import Pieces
from millrace.api.own_loops.replica_forms import (
    AS_WHOLE,
    IN_PARTS,
    ProgramResults,
    ReplicaForm,
)
from millrace.api.own_loops.replication import ReplicaLaunch
from millrace.api.own_loops.scope import (
    Context,
    Touched,
    VariableScope,
    look_at,
    refuse_driven_loop,
)
from millrace.base.pytrees import Array, ArrayTree
from millrace.base.threads.made_once import MadeOnce
from millrace.base.threads.scoped_value import ScopedValue
from millrace.compilation.executables.watch import unwatched
from millrace.programs.steps.program import FunctionSource
from millrace.programs.taps.outfeed_queue import OutfeedQueue
from millrace.programs.taps.taps import collecting

# Values of variables that a program assigns, and of others that it reads; the user's arrays.
_LoopArguments = tuple[list[jax.Array], list[jax.Array], list[Array]]

# Whether the functions that this thread calls are compiled and not run: they return zeros, and
# leave variables as they are.
compiles_only = ScopedValue(False)


class LoopProgram:
    """A function of arrays; the values of its variables are further arguments of the program."""

    def __init__(
        self,
        function: Callable[[list[Array]], object],
        arrays: Sequence[Array],
        subject: Callable[[Touched], Subject],
        launch: ReplicaLaunch | None = None,
    ):
        """Traces the function once, to find the variables that it touches.

        Args:
            function: takes a list of arrays, and may touch any variables.
            arrays: examples of the arguments, of the same shapes and dtypes.
            subject: returns a description for the compile log, given the variables.
            launch: number of replicas, which the trace may change; None for one.
        """
        begin = time.perf_counter()
        specs = [
            jax.ShapeDtypeStruct(array.shape, jax.dtypes.canonicalize_dtype(array.dtype))
            for array in arrays
        ]
        self._function = function
        self._form, self._touched = _traced_once(function, specs, launch)
        self._specs = specs
        seconds = time.perf_counter() - begin
        self._subject = replace(subject(self._touched), seconds=seconds)
        form, touched = self._form, self._touched
        self._compiled: Compiled | None = None  # if it is in one piece
        if not touched.has_driven_loops:
            self._compiled = Compiled(
                self._traced,
                self._subject,
                shares=lambda: not touched.tapped,
                devices=form.devices,
                source=FunctionSource(touched.changed, touched.fixed),
            )
        self._is_prepared = False
        # Otherwise; by the options of JAX that traces depend on, and which values are split.
        self._pieces = MadeOnce[_CutFunction]()
        self._lock = threading.Lock()

    def lower(self, arrays: Sequence[Array]) -> jax.stages.Lowered | None:
        """Returns the program before XLA compiles it; None if it is in several pieces."""
        return self._compiled and self._compiled.lower(*self._arguments(arrays))

    def run(self, arrays: Sequence[Array]) -> Any:
        """Runs the program and assigns the variables their new values.

        Raises:
            Exception: of a data set or a queue of a loop in the program, which ends there.
        """
        touched, compiled = self._touched, self._compiled
        if compiled is None and is_tracing():
            refuse_driven_loop("a function of JAX")
        if not self._is_prepared:  # the function is traced without the lock
            arguments = self._arguments(arrays)
            _ = self._cut(arguments) if compiled is None else compiled.prepare(*arguments)
            self._is_prepared = True
        if compiles_only.get():
            return jax.tree.map(lambda spec: jnp.zeros(spec.shape, spec.dtype), touched.result)
        if compiled is not None and not touched.tapped and not touched.changed:
            return self._finished(compiled(*self._arguments(arrays)))
        with self._lock:  # variables and queues belong to one run at a time
            arguments = self._arguments(arrays)
            cut = self._cut(arguments) if compiled is None else None
            with contextlib.ExitStack() as stack:
                for exchange in cut.pieces.exchanges() if cut else ():
                    stack.enter_context(exchange.of_run())
                for queue in touched.tapped.keys:
                    stack.enter_context(cast(OutfeedQueue, queue).filled())
                results: ProgramResults = (
                    cut(arguments) if cut else compiled(*arguments)  # type: ignore[misc]
                )
                return self._finished(results)

    def _finished(self, results: ProgramResults) -> Any:
        """Assigns the variables, and gives the queues of the function itself their elements."""
        self._form.assign(self._touched.changed, results.new, results.first)
        if results.tapped:
            jax.block_until_ready(results)
        deliver_one(results.tapped)
        return self._form.result(results.result)

    def _arguments(self, arrays: Sequence[Array]) -> _LoopArguments:
        form, touched = self._form, self._touched
        return *form.values(touched.changed, touched.fixed), form.arguments(arrays)

    def _traced(
        self, changed: list[jax.Array], fixed: list[jax.Array], arrays: list[Array]
    ) -> ProgramResults:
        form = self._form
        are_split = form.are_split(self._touched.fixed, fixed)
        flags = [IN_PARTS] * len(changed), are_split, AS_WHOLE
        return form.mapped(self._of_one, flags, form.results)(changed, fixed, arrays)

    def _of_one(
        self, changed: list[jax.Array], fixed: list[jax.Array], arrays: list[Array]
    ) -> ProgramResults:
        touched = self._touched
        values = zip([*touched.changed, *touched.fixed], [*changed, *fixed], strict=True)
        context = Context(is_program=True, variables=touched.changed)
        with context.begun(), VariableScope(values, context) as scope:
            result, tapped = collecting(self._function)(arrays)
            context.claim(tapped)
            new = scope.values(touched.changed)
        scope.refuse_others(touched.changed)
        return self._form.ending(ProgramResults(result, tapped, new))

    def _cut(self, arguments: _LoopArguments) -> "_CutFunction":
        form, touched = self._form, self._touched
        changed, fixed, arrays = arguments
        # A value that is only read is split while replicas have copies of their own.
        are_split = form.are_split(touched.fixed, fixed)

        def make() -> _CutFunction:
            form.take_device_of([*changed, *fixed, *arrays])
            specs = [
                [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables]
                for variables in (touched.changed, touched.fixed)
            ]
            with unwatched():
                graph, tree = form.traced(self._of_one, *specs, self._specs)
            inputs = [*[IN_PARTS] * len(changed), *are_split, *[AS_WHOLE] * len(arrays)]
            results = jax.tree.leaves(jax.tree.broadcast(form.results, tree))
            subjects = PieceSubjects(self._subject, arrays)
            pieces = Pieces(graph, inputs, results, form, touched.changed, subjects)
            return _CutFunction(pieces, jax.tree.structure(tree))

        return self._pieces.get((trace_options(), *are_split), make)


class _CutFunction(NamedTuple):
    """A function with loops that the host drives."""

    pieces: Pieces
    results: jax.tree_util.PyTreeDef

    def __call__(self, arguments: ArrayTree) -> ProgramResults:
        return jax.tree.unflatten(self.results, self.pieces.run(jax.tree.leaves(arguments)))


def _traced_once(
    function: Callable[[list[Array]], object],
    specs: list[jax.ShapeDtypeStruct],
    launch: ReplicaLaunch | None,
) -> tuple[ReplicaForm, Touched]:
    """Traces a function for as many replicas as there are, which it may change."""
    launch = None if launch is None or len(launch.devices) == 1 else launch
    while True:
        form = ReplicaForm(launch)
        with form.looking():
            touched = look_at(function, specs, is_program=True)
        if launch is None or form.group == launch.group:
            return form, touched
