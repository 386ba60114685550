"""Runs a loop where it is called: as part of the program that is being traced, or on its own.

being traced                    part of that program                     in_program.py
replicas                        a program of its own                     program.py
on its own, no queues           a program of its own                     program.py
on its own, infeed or outfeed   a program that the host calls in chunks  host_loop.py
its body is one for the host    turn by turn, not compiled               by_host.py
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from millrace._compat.jax_tracing import is_tracing
from millrace._compat.keras_scope import current_scope
from millrace.compiling.call_description import new_number
from millrace.compiling.log import current_log
from millrace.compiling.watch import unwatched
from millrace.errors import OptionError
from millrace.feeds.infeed_queue import InfeedQueue
from millrace.loops.body import Carried
from millrace.loops.host_driven import LoopByHost, OnHost
from millrace.loops.host_loop import HostLoop
from millrace.loops.in_program import MANY, run_in_program
from millrace.loops.iteration import Turn, specs_of
from millrace.loops.log_subject import MadeOf, identity
from millrace.loops.program import Program
from millrace.loops.replication import current_launch
from millrace.threads.made_once import MadeOnce

KEPT = 32  # programs of loops that were called on their own


def run_loop(
    body: Callable[..., Any],
    condition: Callable[..., Any] | None,
    inputs: Any,
    infeed: InfeedQueue | None,
    limit: Any,
) -> Any:
    """Runs a loop; the arguments are those of `repeat` and `while_loop`."""
    if infeed is not None and not isinstance(infeed, InfeedQueue):
        raise OptionError(
            f"infeed is a millrace.InfeedQueue. Received: {type(infeed).__name__}. Set "
            "infeed=millrace.InfeedQueue(dataset), made once, outside of the loop."
        )
    carried = Carried(inputs)
    element = None if infeed is None else specs_of(infeed.block().batches)
    if current_scope() is not None or is_tracing():
        turn = Turn(body, carried, condition, element)
        if isinstance(limit, int):
            turn.around.check(limit)
        return carried.bare(run_in_program(turn, carried.values, limit, infeed))
    loop = _loops.find(body, condition, carried, element, infeed)
    return carried.bare(loop.run(carried.values, limit))


class _Alone:
    """A loop that is called on its own, as one program: without queues, or as replicas."""

    def __init__(self, turn: Turn, carried: Carried, infeed: InfeedQueue | None, made: MadeOf):
        self._turn, self._infeed = turn, infeed
        self._treedef = treedef = jax.tree.structure(carried.values)

        def given(arguments: tuple[Any, ...]) -> Any:
            return jax.tree.unflatten(treedef, arguments[-1][:-1])  # the last one is the limit

        self._subject = made.subject(turn.touched, given)
        self._programs = MadeOnce[Program]()  # one, once it is called

    def run(self, values: list[Any], limit: int | None) -> list[Any]:
        self._turn.around.check(limit or 0)
        arrays = [*jax.tree.leaves(values), np.int32(MANY if limit is None else limit)]
        return self._programs.get(None, lambda: self._make(arrays)).run(arrays)

    def _make(self, arrays: list[Any]) -> Program:
        subject = self._subject
        return Program(
            self._loop, arrays, lambda _, seconds: subject.after(seconds), current_launch()
        )

    def _loop(self, arrays: list[Any]) -> list[Any]:
        *leaves, limit = arrays
        return run_in_program(
            self._turn, jax.tree.unflatten(self._treedef, leaves), limit, self._infeed
        )


class _Driven:
    """A loop with queues that is called on its own."""

    def __init__(self, turn: Turn, infeed: InfeedQueue | None, made: MadeOf):
        self._around = turn.around
        subject = made.subject(turn.touched, lambda arguments: arguments[0][0])
        self._loop = HostLoop(turn, infeed, subject)

    def run(self, values: list[Any], limit: int | None) -> list[Any]:
        self._around.check(limit or 0)
        return self._loop.run(values, MANY if limit is None else limit)


class _Loops:
    """The programs that were used last, by what they were made of."""

    def __init__(self) -> None:
        # All with what their keys identify by address, which would else be given to others.
        self._loops = MadeOnce[tuple[_Alone | _Driven | LoopByHost, Any]](KEPT)
        self._numbers = MadeOnce[tuple[int, Any]](KEPT)  # by body and condition

    def find(
        self, body: Any, condition: Any, carried: Carried, element: Any, infeed: Any
    ) -> "_Alone | _Driven | LoopByHost":
        launch = current_launch()
        leaves, treedef = jax.tree.flatten((carried.specs, element))
        parts, alive = identity(body)
        more, alive_too = identity(condition)
        key = (
            parts,
            more,
            treedef,
            tuple((leaf.shape, leaf.dtype) for leaf in leaves),
            id(infeed),
            jax.config.jax_default_device,  # type: ignore[attr-defined]
            launch and launch.devices,
        )
        both = alive, alive_too
        number, _ = self._numbers.get((parts, more), lambda: (new_number(), both))

        def make() -> tuple[_Alone | _Driven | LoopByHost, Any]:
            made = MadeOf(body, condition, element, infeed, number)
            current_log().begin(made.name)
            try:
                with unwatched():
                    turn = Turn(body, carried, condition, element)
            except OnHost:
                return LoopByHost(body, condition, carried, infeed), (both, infeed)
            is_driven = infeed is not None or turn.tapped
            if is_driven and (launch is None or launch.devices == 1):
                return _Driven(turn, infeed, made), (both, infeed)
            return _Alone(turn, carried, infeed, made), (both, infeed)

        return self._loops.get(key, make)[0]


_loops = _Loops()
