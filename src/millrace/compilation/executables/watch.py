"""Functions of `jax.jit`, which JAX compiles itself while millrace watches the call.

    call -> JAX  traces, lowers, compiles     reports the begin and the end of each to this thread
                 at the first begin:          key, cause; refused here if the log says so
         -> a record, if anything was compiled

JAX keeps the executables, and only JAX knows whether it has one for a call. So a call that compiles
nothing costs nothing more, and what `no_recompile()` or `on_recompile="error"` forbid is refused
when JAX begins to trace: an exception in a listener ends the step.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import jax

from millrace._compat.jax_executables import sizes_of
from millrace._compat.jax_tracing import compiler_options, jit_options, static_arguments
from millrace.base.records.cache import EntryLabels
from millrace.base.records.compilation import Aspect, CompileRecord, Origin, ProgramKey
from millrace.base.threads.scoped_value import ScopedValue
from millrace.compilation.cache.lookup import Lookup, looking_up
from millrace.compilation.executables.call_description import (
    inner_function,
    name_of,
    number_of,
    shapes_of,
)
from millrace.compilation.executables.log import CompileLog, record_of
from millrace.compilation.executables.trials import NewExecutable
from millrace.compilation.executables.wanted import LoggedProgram
from millrace.compilation.explain.diagnose import history
from millrace.compilation.explain.key import fields_from, key_of_call

Returned = TypeVar("Returned")

_TRACE = "/jax/core/compile/jaxpr_trace_duration"
_LOWER = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_COMPILE = "/jax/core/compile/backend_compile_duration"
_STEPS = frozenset({_TRACE, _LOWER, _COMPILE})


_listens = threading.Lock()  # held from the first use on


def call_watched(
    function: Callable[..., Returned],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    log: CompileLog,
) -> Returned:
    """Calls a function of `jax.jit`, or an object that has one inside, and returns its result.

    Args:
        function: the function or object.
        args: its positional arguments.
        kwargs: its keyword arguments.
        log: gets a record if JAX compiles the function.

    Raises:
        RecompilationError: if JAX would compile it, and the log refuses that.
    """
    log.runs(name_of(function))
    if isinstance(function, jax.stages.Compiled):
        return function(*args, **kwargs)
    _listen()
    watch = _Watch(function, args, kwargs, log)
    with _watch.bound_to(watch):
        result = function(*args, **kwargs)
    if watch.has_compiled:
        record, compiled = watch.record()
        log.add(record)
        if compiled is not None:
            log.observe(NewExecutable(record, compiled))
    return result


def unwatched() -> contextlib.AbstractContextManager[Any]:
    """Surrounds compilations within a watched call that are logged elsewhere."""
    return _watch.bound_to(None)


class _Watch:
    """One call of a function, and the steps of JAX during it."""

    def __init__(
        self,
        function: Callable[..., object],
        args: Sequence[object],
        kwargs: Mapping[str, object],
        log: CompileLog,
    ):
        self._function, self._args, self._kwargs, self._log = function, args, kwargs, log
        self._name: str | None = getattr(function, "__name__", None)
        self._program: LoggedProgram | None = None
        self._lookup: contextlib.ExitStack | None = None
        self.has_compiled = False

    def _prepare(self) -> LoggedProgram:
        """Finds out why the function is compiled, and lets the log refuse it."""
        function, log = self._function, self._log
        name = name_of(function)
        self._began = time.time()
        batch = shapes_of((self._args, self._kwargs))
        what = f"{name} for {batch}" if batch else name
        log.begin(what)
        key = _key_of(name, function, self._args, self._kwargs)
        groups = ("function", number_of(inner_function(function))), ("program", key.digest)
        program = LoggedProgram(key=key, what=what, groups=frozenset(groups), batch=batch)
        self._reason = reason = log.reason(program)
        log.allow(what, reason.cause, reason.is_again)
        self._seconds = dict.fromkeys(_STEPS, 0.0)
        self._program = program
        return program

    def begins(self, step: str, name: str) -> None:
        """Handles the begin of a step; the first of a call names a function without a name."""
        if self._name is None:
            self._name = name
        if not self._is_own(name):
            return
        program = self._program or self._prepare()
        if step == _COMPILE and self._lookup is None:
            self._lookup = contextlib.ExitStack()
            key = program.key
            labels = EntryLabels("", key.program, program.batch, key)
            self._result: Lookup = self._lookup.enter_context(looking_up(labels))

    def ends(self, step: str, name: str, seconds: float) -> None:
        """Handles the end of a step; an inner function of the same name ends before."""
        if self._program is None or not self._is_own(name):
            return
        self._seconds[step] = seconds
        if step == _COMPILE and self._lookup is not None:
            self._lookup.close()
            self.has_compiled = True

    def _is_own(self, name: str) -> bool:
        return name in (self._name, f"jit({self._name})")

    def record(self) -> tuple[CompileRecord, Any]:
        """Returns the record of the compilation, and the executable if JAX has kept it."""
        program: Any = self._program
        text, compiled = _kept_by_jax(self._function, self._args, self._kwargs)
        with self._log.attempt(self._reason):
            history.add(program.key, text)
        record = record_of(
            program,
            Origin.CACHE if self._result.hit else Origin.COMPILED,
            self._reason.cause,
            self._reason.is_again,
            sizes_of(compiled),
            began=self._began,
            compile_seconds=self._seconds[_COMPILE],
            trace_seconds=self._seconds[_TRACE],
            lower_seconds=self._seconds[_LOWER],
        )
        return record, compiled


class _NotKeptError(Exception):
    """JAX has not kept the executable."""


class _Refusal:
    """Ends every step that JAX begins."""

    def begins(self, *_: object) -> None:
        raise _NotKeptError

    def ends(self, *_: object) -> None:
        pass  # no step has begun


def _key_of(
    name: str,
    function: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> ProgramKey:
    key = key_of_call(
        name,
        function,
        tuple(args),
        kwargs,
        static=static_arguments(function),
        identity=[("function object", str(number_of(inner_function(function))))],
        compiler_options=compiler_options(function),
    )
    options = fields_from(Aspect.OPTION, {"compiled by": "jax.jit", **jit_options(function)})
    return replace(key, fields=(*key.fields, *options))


_watch = ScopedValue[_Watch | _Refusal | None](None)  # of the call that this thread is in


def _kept_by_jax(
    function: Any,  # of `jax.jit`, or an object with one inside
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> tuple[str, Any]:
    """Returns the text and the executable of the latest compilation, which JAX has kept.

    The arguments may have been donated: JAX looks at their types only.
    """
    text = ""
    with _watch.bound_to(_Refusal()):
        try:
            lowered = function.lower(*args, **kwargs)
            text = lowered.as_text()
            return text, lowered.compile()
        except Exception:  # of many classes: wrappers of a function of jax.jit may do anything
            return text, None


def _listen() -> None:
    """Listens to JAX from now on, once: JAX calls a listener for each registration."""
    if _listens.acquire(blocking=False):
        jax.monitoring.register_scalar_listener(_on_begin)
        jax.monitoring.register_event_duration_secs_listener(_on_end)


def _on_begin(event: str, value: float | int, **names: object) -> None:
    watch = _watch.get()
    if watch is not None and event in _STEPS:
        watch.begins(event, str(names.get("fun_name", "")))


def _on_end(event: str, duration_secs: float, **names: object) -> None:
    watch = _watch.get()
    if watch is not None and event in _STEPS:
        watch.ends(event, str(names.get("fun_name", "")), duration_secs)
