"""A traced function in pieces: programs, and between them the loops that the host drives.

    graph of the function     .  .  .  loop  .  .  loop  .
    pieces                    segment | chunks | segment | chunks | segment
    values between them       by the variables of the graph

    host      take 1 | call 1 | take 2 | call 2 | outs of 1 | take 3 | call 3 | outs of 2
    device                    |---------- 1 ----------|---------- 2 ----------|------- 3 --

Results of a chunk are delivered while the next one runs, without a callback in the program: so no
thread of XLA ever waits for Python. The carry goes from one call to the next.
"""

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from millrace._compat.jaxpr import (
    Atom,
    Equation,
    Graph,
    Var,
    as_function,
    host_work,
    inlined,
    inner_host_work,
    is_literal,
    spec_of,
    used,
    variables,
    with_effects,
)
from millrace.api.own_loops.chunk import ChunkResult
from millrace.api.own_loops.compiled import Compiled, Subject
from millrace.api.own_loops.driven_loop import DrivenLoop
from millrace.api.own_loops.exchange import MANY, Exchange
from millrace.api.own_loops.log_subject import PieceSubjects
from millrace.api.own_loops.replica_forms import AS_WHOLE, IN_PARTS, ReplicaForm
from millrace.base.interrupts import uninterrupted
from millrace.base.pytrees import Array, ArrayTree
from millrace.errors import ProcessError
from millrace.programs.taps.taps import Tapped

PieceValues = dict[Hashable, Any]  # by the variables of a graph


class Pieces:
    """The pieces of a graph, in order."""

    def __init__(
        self,
        graph: Graph,
        are_split: Sequence[bool],
        results: Sequence[bool],
        form: ReplicaForm,
        changed: Sequence[keras.Variable],
        subjects: PieceSubjects,
    ):
        """Cuts the graph, and compiles all pieces.

        Args:
            graph: of one replica.
            are_split: whether each of its inputs is split.
            results: whether each of its results is to be split.
            form: of the replicas.
            changed: variables that the program assigns.
            subjects: for the compile log.
        """
        if inner_host_work(graph.equations) is not None:
            graph = inlined(graph)
        if (found := inner_host_work(graph.equations)) is not None:
            place, loop = found
            loop.refuse(f"{place!r} of JAX")
        self._graph, self._form, self._subjects = graph, form, subjects
        constants = form.arguments(list(graph.constants.values()))
        self._constants: PieceValues = dict(zip(graph.constants, constants, strict=True))
        inputs = zip(graph.invars, are_split, strict=True)
        self._whole = {var for var, is_split in inputs if not is_split} | set(graph.constants)
        self._pieces: list[_Segment | _LoopCall] = []
        begin = 0
        for k, equation in enumerate(graph.equations):
            if host_work(equation) is not None:
                call = _LoopCall(equation, self._is_split, form, changed)
                self._add_segment(begin, k, {*call.inputs, *self._read_from(k + 1)}, {})
                call.prepare(subjects)
                self._pieces.append(call)
                begin = k + 1
        # A program makes one value of those of all replicas, and the other way round.
        wanted = list(zip(graph.outvars, results, strict=True))
        turned: dict[Hashable, tuple[Atom, bool]] = {
            k: (atom, split)
            for k, (atom, split) in enumerate(wanted)
            if form.count > 1 and self._is_split(atom) != split
        }
        self._add_segment(begin, len(graph.equations), set(variables(graph.outvars)), turned)
        self._results = [k if k in turned else atom for k, atom in enumerate(graph.outvars)]
        self._frees = _last_uses(self._pieces, self._results)

    def exchanges(self) -> Iterator[Exchange]:
        """Yields the exchanges of all loops."""
        for piece in self._pieces:
            if isinstance(piece, _LoopCall):
                yield from piece.exchanges()

    def run(self, arguments: Sequence[Array]) -> list[Any]:
        """Runs the pieces, given the values of the graph's inputs, and returns its results.

        Raises:
            Exception: of a data set or a queue of a loop, which ends there: the variables of the
                program have the values of that moment.
        """
        values = self._constants | dict(zip(self._graph.invars, arguments, strict=True))
        for piece, free in zip(self._pieces, self._frees, strict=True):
            values.update(zip(piece.results, piece.run(values), strict=True))
            for name in free:
                del values[name]
        results = (_read(values, name) for name in self._results)
        return [v if isinstance(v, jax.Array) else jnp.asarray(v) for v in results]

    def _is_split(self, atom: Atom) -> bool:
        return not is_literal(atom) and atom not in self._whole

    def _read_from(self, number: int) -> Iterator[Var]:
        """Yields the variables that the equations from `number` on and the results read."""
        for equation in self._graph.equations[number:]:
            yield from variables(equation.invars)
        yield from variables(self._graph.outvars)

    def _add_segment(
        self, begin: int, end: int, wanted: set[Any], turned: dict[Hashable, tuple[Atom, bool]]
    ) -> None:
        """Adds the equations from `begin` to `end`.

        Args:
            begin: index of the first equation.
            end: index after the last one.
            wanted: variables that others read.
            turned: further results, by name, and whether they are split.
        """
        graph = self._graph
        part = graph.equations[begin:end]
        made = [var for equation in part for var in equation.outvars if var in wanted]
        outvars = [*made, *(atom for atom, _ in turned.values())]
        earlier: Any = [var for piece in self._pieces for var in piece.results]
        whole = Graph((*graph.invars, *earlier), (), part, graph.constants)
        segment = used(whole, outvars, also=with_effects(whole))
        if outvars or segment.equations:
            flags = [*[IN_PARTS] * len(made), *(split for _, split in turned.values())]
            are_split = list(map(self._is_split, segment.invars))
            subject = self._subjects.next()
            self._pieces.append(
                _Segment(segment, are_split, [*made, *turned], flags, self._form, subject)
            )


class _Segment:
    """Equations without loops that the host drives: one program."""

    def __init__(
        self,
        graph: Graph,
        are_split: Sequence[bool],
        results: Sequence[Hashable],
        results_are_split: Sequence[bool],
        form: ReplicaForm,
        subject: Subject,
        donated: tuple[int, ...] = (),
    ):
        self.inputs: Sequence[Hashable] = graph.invars
        self.results = results
        function = form.mapped(as_function(graph), are_split, [*results_are_split])
        self.call = Compiled(function, subject, lambda: True, donated, form.devices)
        self.call.prepare(*map(form.spec, map(spec_of, graph.invars), are_split))

    def run(self, values: PieceValues) -> list[jax.Array]:
        """Returns the results, given the values of its inputs."""
        return self.call(*(values[name] for name in self.inputs))


class _LoopCall:
    """A loop that the host drives, at its place."""

    def __init__(
        self,
        equation: Equation,
        is_split: Callable[[Atom], bool],
        form: ReplicaForm,
        changed: Sequence[keras.Variable],
    ):
        """Finds its inputs; compiles nothing yet.

        Args:
            equation: that stands for the loop.
            is_split: whether a value is split.
            form: of the replicas.
            changed: variables that the program assigns.
        """
        self._loop: DrivenLoop = host_work(equation)
        self._form, self._changed, self._is_split = form, changed, is_split
        self.results: Sequence[Hashable] = equation.outvars
        atoms = iter(equation.invars)
        groups = [list(itertools.islice(atoms, count)) for count in self._loop.counts]
        self._outside, self._outside_condition, self._carry, limits = groups
        self._others = list(atoms)
        # The largest of all replicas is computed where the replicas may have different ones.
        self._limit = limits[is_split(limits[0])]
        read = (
            *self._outside, *self._outside_condition, *self._carry, self._limit, *self._others
        )  # fmt: skip
        self.inputs: Sequence[Hashable] = list(variables(read))
        self._body: Pieces | None = None  # of a loop with others in it
        self._condition: _Segment | None = None  # of such a loop
        self._latest: list[Any] = []  # the carry, while the loop runs

    def exchanges(self) -> Iterator[Exchange]:
        """Yields the exchanges of the loop and of those in its body."""
        yield self._loop.exchange
        if self._body is not None:
            yield from self._body.exchanges()

    def prepare(self, subjects: PieceSubjects) -> None:
        """Compiles the programs of the loop."""
        loop, form = self._loop, self._form
        subject = subjects.next(loop.name)
        outside = list(map(self._is_split, self._outside))
        carry = [IN_PARTS] * len(self._carry)
        graph = loop.part.graph
        more = len(graph.outvars) - len(carry)
        taps = IN_PARTS if form.is_local else AS_WHOLE
        if loop.has_inner:
            element = [IN_PARTS] * (len(graph.invars) - len(outside) - len(carry))
            arguments, results = [*outside, *carry, *element], [*carry, *[taps] * more]
            self._body = Pieces(graph, arguments, results, form, self._changed, subjects)
            if loop.condition is not None:
                outside = list(map(self._is_split, self._outside_condition))
                subject = subjects.next(f"the condition of {loop.name}")
                self._condition = _Segment(
                    loop.condition.graph, [*outside, *carry], (), [AS_WHOLE], form, subject
                )
            return
        block = [IN_PARTS] * (len(graph.invars) - len(outside) - len(carry) - 2)
        arguments = [*outside, *carry, *block, AS_WHOLE, AS_WHOLE if form.is_local else IN_PARTS]
        results = [*carry, *[taps] * (more - 2), AS_WHOLE, AS_WHOLE]
        donated = tuple(range(len(outside), len(outside) + len(carry)))  # copies of the run
        self._chunk = _Segment(graph, arguments, (), results, form, subject, donated)

    def run(self, values: PieceValues) -> list[jax.Array]:
        """Runs the loop; returns the carry after its last iteration.

        Raises:
            PlanError: if the body does not allow the number of iterations.
            Exception: of the data set or a queue. The iterations before it have been run, and the
                variables of the program are assigned.
        """
        loop, form, exchange = self._loop, self._form, self._loop.exchange
        limit = _number(_read(values, self._limit))
        loop.iteration.loop.check(0 if limit == MANY else limit)
        outside = [_read(values, atom) for atom in self._outside]
        carry = [_read(values, atom) for atom in self._carry]
        self._latest = form.copies(carry, list(map(self._is_split, self._carry)))
        try:
            if self._body is not None:
                condition = [_read(values, atom) for atom in self._outside_condition]
                self._run_one_by_one(self._body, outside, condition, limit)
            elif form.is_local and loop.iteration.goes_on is None:
                self._run_ahead(outside, limit)
            else:
                self._run_in_step(outside, limit)
        except KeyboardInterrupt as error:  # a second one, which has not waited for the chunk
            inner = () if self._body is None else self._body.exchanges()
            is_known = any(each.error is not None for each in inner)
            if is_known or any(value.is_deleted() for value in self._latest):
                raise
            exchange.error = error
        carry, self._latest = self._latest, []
        if exchange.error is not None:
            others = [_read(values, atom) for atom in self._others]
            others = form.copies(others, list(map(self._is_split, self._others)))
            states = carry[len(carry) - len(loop.changed) :]
            form.assign([*loop.changed, *loop.others], [*states, *others])
            raise exchange.error
        return carry

    def _run_ahead(self, outside: list[Any], limit: int) -> None:
        """Calls a chunk before the results of the previous one have arrived."""
        exchange, done = self._loop.exchange, 0
        pending: tuple[ChunkResult, int] | None = None
        while done < limit:
            block, start, count = exchange.portion(limit - done)
            if not count:
                break
            result = self._call(outside, block, start, count)
            done += count
            if pending is not None:
                self._deliver(*pending)
            pending = result, count
        if pending is not None and (exchange.queues or exchange.error):
            self._deliver(*pending)

    def _run_in_step(self, outside: list[Any], limit: int) -> None:
        """Waits for each chunk, because its result decides whether another one follows."""
        exchange, form, done = self._loop.exchange, self._form, 0
        more: Any = True
        if self._loop.iteration.goes_on is not None:
            more = form.result(self._call(outside, exchange.empty, 0, 0).more)
        while more and done < limit:
            block, start, count = exchange.portion(limit - done)
            if not count and form.is_local:
                break
            result = self._call(outside, block, start, count)
            used, more = (int(form.result(value)) for value in (result.used, result.more))
            exchange.give_back(used)
            exchange.deliver(result.outs.values, used)
            done += used
            if not used:
                exchange.error = exchange.error or self._ended_by_another(done)
            if exchange.error is not None:
                break

    def _run_one_by_one(
        self, body: Pieces, outside: list[Any], condition: list[Any], limit: int
    ) -> None:
        """Runs the pieces of the body, which has loops that the host drives."""
        loop, exchange, form = self._loop, self._loop.exchange, self._form
        structure = jax.tree.structure(loop.iteration.tapped)
        axis = 0 if form.count == 1 else 1  # of the iterations
        for done in range(limit):
            if self._condition is not None:
                (more,) = self._condition.call(*condition, *self._latest)
                if not form.result(more):
                    break
            block, start, count = exchange.portion(1)
            if not form.is_local and not form.smallest(count):
                exchange.give_back(0)
                exchange.error = exchange.error or self._ended_by_another(done)
            if exchange.error is not None:
                break
            rows: Any = jax.tree.map(lambda leaf: np.take(leaf, start, axis), block)  # noqa: B023
            element = jax.tree.leaves(form.parts(rows))
            results = body.run([*outside, *self._latest, *element])
            self._latest = results[: len(self._carry)]
            taps: Tapped = jax.tree.unflatten(structure, results[len(self._carry) :])
            entries = jax.tree.map(lambda leaf: np.expand_dims(leaf, axis), taps.values)
            exchange.deliver(entries, 1)

    def _call(self, outside: list[Any], block: ArrayTree, start: int, count: int) -> ChunkResult:
        form, number = self._form, np.int32(count)
        if not form.is_local:
            block, number = form.parts([block, np.full(len(form.local), number)])  # type: ignore[misc]
        with uninterrupted():
            results = self._chunk.call(
                *outside, *self._latest, *jax.tree.leaves(block), np.int32(start), number
            )
            self._latest = results[: len(self._carry)]
        *outs, used, more = results[len(self._carry) :]
        structure = jax.tree.structure(self._loop.iteration.tapped)
        return ChunkResult(self._latest, jax.tree.unflatten(structure, outs), used, more)

    def _deliver(self, result: ChunkResult, count: int) -> None:
        jax.block_until_ready(result.used)
        self._loop.exchange.deliver(result.outs.values, count)

    def _ended_by_another(self, done: int) -> ProcessError:
        return ProcessError(
            f"Another process has ended {self._loop.name} after {done} iterations, at Ctrl-C or an "
            "error of its own, which its output shows. The variables have the values after these "
            "iterations in all processes."
        )


def _read(values: PieceValues, name: Hashable) -> Any:
    return name.val if is_literal(name) else values[name]  # type: ignore[arg-type]


def _number(value: Any) -> int:
    """Returns a number, of replica 0 if each has its own."""
    own = value.addressable_data(0) if isinstance(value, jax.Array) else value
    return int(np.ravel(own)[0])


def _last_uses(
    pieces: "Sequence[_Segment | _LoopCall]", results: Sequence[Hashable]
) -> list[list[Hashable]]:
    """Returns for each piece the values that nothing after it reads."""
    needed = {name for name in results if not is_literal(name)}  # type: ignore[arg-type]
    frees: list[list[Hashable]] = []
    for piece in reversed(pieces):
        names = {*piece.inputs, *piece.results}
        frees.append([name for name in names if name not in needed])
        needed |= names
    return frees[::-1]
