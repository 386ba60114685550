"""A traced function that compiles itself for its arguments, and logs that.

call -> as the last one                    its executable: JAX checks whether it takes the arguments
     -> other options of JAX, or           the executable for these, compiled if it is new
        another device
     -> within a trace, or without jit     JAX itself: it becomes part of the surrounding trace
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from millrace._compat.jax_tracing import is_tracing, trace_options
from millrace.base.pytrees import Array, ArrayTree, SpecTree
from millrace.base.records.compilation import ProgramKey
from millrace.base.threads.made_once import MadeOnce
from millrace.compilation.executables.call_description import shapes_of
from millrace.compilation.executables.executable import Executable
from millrace.compilation.executables.log import CompileLog, current_log
from millrace.compilation.executables.wanted import Code, Wanted
from millrace.compilation.executables.watch import call_watched, unwatched
from millrace.compilation.explain.key import devices_of_call
from millrace.compilation.finder import ProgramFinder

ProgramArgument: TypeAlias = "ArrayTree | SpecTree | np.generic"  # a NumPy scalar is an array
ProgramArguments = tuple[ProgramArgument, ...]  # of a program, by position


class ProgramDescription(NamedTuple):
    """A program for certain arguments, as the compile log knows it."""

    key: ProgramKey
    arguments: object  # those that the user has passed


@dataclass(frozen=True, slots=True)
class Subject:
    """The user's function or loop behind a program, for the compile log."""

    name: str  # "train", "repeat of step"
    number: Hashable  # of the function or the loop
    objects: tuple[Hashable, ...]  # numbers of the models that it uses
    describe: Callable[[ProgramArguments], ProgramDescription]
    seconds: float = 0.0  # spent on finding the variables that it touches
    runs_as: str | None = None  # name of the function that it is a piece of


class _LastCall(NamedTuple):
    options: tuple[Hashable, ...]  # of JAX
    executable: Executable


class Compiled:
    """A function of arrays. Its executables are called directly, without `jax.jit`."""

    def __init__(
        self,
        function: Callable[..., object],
        subject: Subject,
        shares: Callable[[], bool],
        donated: tuple[int, ...] = (),
        devices: tuple[jax.Device, ...] | None = None,
        source: object = None,
    ):
        """Prepares the function; compiles nothing yet.

        Args:
            function: to be traced.
            subject: for the compile log.
            shares: whether the executable may serve equal programs; called after the trace.
            donated: indices of arguments whose memory the program may reuse.
            devices: of the program; None for those of its arguments.
            source: what the program is made of, which can name its arguments.
        """
        self._source = source
        self._jitted = jax.jit(function, donate_argnums=donated)
        self._subject = subject
        self._shares, self._devices = shares, devices
        self._executables = MadeOnce[Executable]()
        self._last: _LastCall | None = None

    def lower(self, *arguments: ProgramArgument) -> jax.stages.Lowered:
        """Returns the program before XLA compiles it."""
        return self._jitted.lower(*arguments)

    def prepare(self, *arguments: ProgramArgument) -> None:
        """Traces and compiles the function, unless there is an executable for these arguments.

        Args:
            *arguments: arrays or their specs.
        """
        if _is_left_to_jax():
            self._jitted.lower(*arguments)
        else:
            self._last = _LastCall(trace_options(), self._executable(arguments))

    def __call__(self, *arguments: ProgramArgument) -> Any:
        last = self._last
        if last is not None and last.options == trace_options():
            try:
                results = last.executable(*arguments)
            except (TypeError, ValueError):  # for another device, say; nothing has run
                pass
            else:
                self._runs(current_log())
                return results
        if _is_left_to_jax():
            return self._jitted(*arguments)
        log = current_log()
        executable = self._executable(arguments)
        self._runs(log)
        try:
            results = executable(*arguments)
        except (TypeError, ValueError):  # JAX moves the arguments there, or names the error
            return call_watched(self._jitted, arguments, {}, log)
        self._last = _LastCall(trace_options(), executable)
        return results

    def _runs(self, log: CompileLog) -> None:
        log.runs(self._subject.runs_as or self._subject.name)

    def _executable(self, arguments: ProgramArguments) -> Executable:
        leaves, tree = jax.tree.flatten(arguments)
        key = trace_options(), tree, tuple(map(_kind, leaves))
        return self._executables.get(key, lambda: self._compile(arguments))

    def _compile(self, arguments: ProgramArguments) -> Executable:
        log, subject = current_log(), self._subject
        devices, objects = self._devices or devices_of_call(arguments), subject.objects
        key, user_arguments = subject.describe(arguments)
        shapes = shapes_of(user_arguments)
        what = f"{subject.name} for {shapes}" if shapes else subject.name
        log.begin(what)
        seconds = 0.0 if len(self._executables) else subject.seconds

        def shares(traced: jax.stages.Traced) -> bool:
            # A program with effects calls the host through objects of its own.
            return len(devices) == 1 and not traced.jaxpr.effects and self._shares()

        wanted = Wanted(
            key=key,
            what=what,
            # With other models the same function is another program.
            groups=frozenset(
                {("function", subject.number, *objects), ("program", key.digest, *objects)}
            ),
            batch=shapes,
            make=lambda: Code(lambda: self._jitted.trace(*arguments), shares, {}, seconds),
            devices=devices,
            source=self._source,
        )
        with unwatched():
            return ProgramFinder(log).find(wanted)


def _is_left_to_jax() -> bool:
    return is_tracing() or bool(jax.config.jax_disable_jit)  # type: ignore[attr-defined]


def _kind(leaf: Array) -> tuple[Hashable, ...]:
    """Returns the properties of an argument that JAX compiles for, its device among them."""
    sharding = leaf.sharding if isinstance(leaf, jax.Array) and leaf.committed else None
    return leaf.shape, leaf.dtype, sharding
