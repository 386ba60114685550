"""A traced function that compiles itself for what it is called with, and logs it.

call -> as last time                       its executable: JAX looks whether it takes the arguments
     -> other options of JAX, or on        the executable for these, compiled if it is new
        another device
     -> within a trace, or without jit     JAX itself: it becomes part of what is being traced
"""

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from millrace._compat.jax_tracing import is_tracing, trace_options
from millrace.compiling.call_description import Reason, shapes_of
from millrace.compiling.executable import Executable, finish
from millrace.compiling.log import current_log
from millrace.compiling.lowering import Lowering, progress
from millrace.compiling.watch import call_watched, unwatched
from millrace.records.compilation import ProgramKey
from millrace.threads.made_once import MadeOnce


@dataclass(frozen=True, slots=True)
class Subject:
    """What the user wrote that a program is made of, for the compile log."""

    name: str  # "train", "repeat of step"
    number: int  # of the function or the loop
    objects: tuple[Hashable, ...]  # which models it was given
    key: Callable[[tuple[Any, ...]], ProgramKey]  # by the arguments of the program
    given: Callable[[tuple[Any, ...]], Any]  # those of them that the user has given
    seconds: float = 0.0  # that a first look at it has taken

    def after(self, seconds: float) -> "Subject":
        """Returns the same after another look."""
        return replace(self, seconds=self.seconds + seconds)

    def what(self, arguments: tuple[Any, ...]) -> str:
        """The program in words."""
        shapes = shapes_of(self.given(arguments))
        return f"{self.name} for {shapes}" if shapes else self.name


class _Known(NamedTuple):
    options: tuple[Any, ...]  # of JAX
    executable: Executable


class Compiled:
    """A function of arrays. Its executables are called directly, without `jax.jit`."""

    def __init__(
        self,
        function: Callable[..., Any],
        subject: Subject,
        shares: Callable[[], bool],
        donated: tuple[int, ...] = (),
    ):
        """Compiles nothing yet.

        Args:
            function: to be traced.
            subject: what it is made of.
            shares: whether its executable may serve equal programs; asked once it is traced.
            donated: numbers of arguments that are given away.
        """
        self._jitted = jax.jit(function, donate_argnums=donated)
        self._subject = subject
        self._shares = shares
        self._executables = MadeOnce[Executable]()
        self._last: _Known | None = None

    def lower(self, *arguments: Any) -> jax.stages.Lowered:
        """Returns the program before XLA compiles it."""
        return self._jitted.lower(*arguments)

    def prepare(self, *arguments: Any) -> None:
        """Traces the function and compiles it, if that is new."""
        if _is_left_to_jax():
            self._jitted.lower(*arguments)
        else:
            self._executable(arguments)

    def zeros(self, *arguments: Any) -> Any:
        """Compiles the function, if that is new, and returns zeros like its results."""
        self.prepare(*arguments)
        specs = self._jitted.eval_shape(*arguments)
        return jax.tree.map(lambda spec: jnp.zeros(spec.shape, spec.dtype), specs)

    def __call__(self, *arguments: Any) -> Any:
        """Runs the program."""
        last = self._last
        if last is not None and last.options == trace_options():
            try:
                results = last.executable(*arguments)
            except (TypeError, ValueError):  # for another device, say; nothing has run
                pass
            else:
                current_log().runs(self._subject.name)
                return results
        if _is_left_to_jax():
            return self._jitted(*arguments)
        log = current_log()
        executable = self._executable(arguments)
        log.runs(self._subject.name)
        try:
            results = executable(*arguments)
        except (TypeError, ValueError):  # JAX knows how to bring them there, or what is wrong
            return call_watched(self._jitted, arguments, {}, log)
        self._last = _Known(trace_options(), executable)
        return results

    def _executable(self, arguments: tuple[Any, ...]) -> Executable:
        leaves, tree = jax.tree.flatten(arguments)
        key = trace_options(), tree, tuple(map(_kind, leaves))
        return self._executables.get(key, lambda: self._compile(arguments))

    def _compile(self, arguments: tuple[Any, ...]) -> Executable:
        log, subject = current_log(), self._subject
        what, devices = subject.what(arguments), _devices(arguments)
        log.begin(what)
        key = subject.key(arguments)
        reason = Reason(key, log, subject.number, subject.objects)
        with unwatched(), progress("tracing", what):
            begin = time.perf_counter()
            traced = self._jitted.trace(*arguments)
            between = time.perf_counter()
            lowered = traced.lower()
            end = time.perf_counter()
        first = not len(self._executables)
        lowering = Lowering(
            what=what,
            key=key,
            lowered=lowered,
            devices=devices,
            cause=reason.cause,
            again=reason.is_again,
            trace_seconds=between - begin + (subject.seconds if first else 0.0),
            lower_seconds=end - between,
            batch=shapes_of(subject.given(arguments)),
            # What has effects calls the host, through this very program.
            shares=len(devices) == 1 and not traced.jaxpr.effects and self._shares(),
        )
        with unwatched():
            executable = finish(lowering, log)
        reason.has_led_to_an_executable()
        return executable


def _is_left_to_jax() -> bool:
    return is_tracing() or bool(jax.config.jax_disable_jit)  # type: ignore[attr-defined]


def _kind(leaf: Any) -> tuple[Any, ...]:
    """Returns what JAX compiles arguments anew for: also where they have to stay."""
    is_bound = isinstance(leaf, jax.Array) and leaf.committed
    return leaf.shape, leaf.dtype, leaf.sharding if is_bound else None


def _devices(arguments: tuple[Any, ...]) -> tuple[jax.Device, ...]:
    """Returns where JAX runs a function: where its arguments have to stay, or the default."""
    for leaf in jax.tree.leaves(arguments):
        if isinstance(leaf, jax.Array) and leaf.committed:
            return tuple(sorted(leaf.sharding.device_set, key=lambda device: device.id))
    default: Any = jax.config.jax_default_device  # type: ignore[attr-defined]
    if isinstance(default, jax.Device):
        return (default,)
    return tuple(jax.local_devices(backend=default)[:1])
