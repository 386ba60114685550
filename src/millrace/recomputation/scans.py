"""Loops of a traced step in other forms, in which the values are the same.

    scan over 2048 steps   ->   32 scans of 64 steps, each of which can be a segment

A loop that is to be run with another body is traced anew.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import jax.numpy as jnp
from jax import lax

from millrace._compat.jaxpr import Equation, Graph, Loop, Var, as_function, as_loop, is_literal
from millrace.recomputation.segments import cut, dense

Run = Callable[..., list[Any]]


def chunked_function(graph: Graph, chunks_of: Callable[[Loop], int]) -> Run:
    """Returns the function of a graph whose loops are run as several, one after the other.

    Args:
        graph: whose outermost loops are meant.
        chunks_of: how many chunks are to be made of a loop.
    """
    return with_loops(graph, lambda loop: _chunked(loop, chunks_of(loop)))


def slices_of_parts(graph: Graph) -> Graph:
    """Returns a graph in which a slice of joined arrays is one of the array that it lies in.

    Of all that a loop makes, the last is often all that is taken. The chunks before the last one
    then have nothing to hand on.
    """
    joined: dict[Var, Equation] = {}
    equations = []
    for equation in graph.equations:
        if equation.primitive.name == "concatenate" and equation.params["dimension"] == 0:
            joined[equation.outvars[0]] = equation
        elif equation.primitive.name == "slice" and equation.invars[0] in joined:
            equation = _slice_of_part(equation, joined[equation.invars[0]])
        equations.append(equation)
    return Graph(graph.invars, graph.outvars, tuple(equations), graph.constants)


def _slice_of_part(equation: Equation, joined: Equation) -> Equation:
    params, begin = equation.params, 0
    (start, *starts), (limit, *limits) = params["start_indices"], params["limit_indices"]
    for part in joined.invars:
        end = begin + part.aval.shape[0]
        if begin <= start and limit <= end:
            bounds = {
                "start_indices": (start - begin, *starts),
                "limit_indices": (limit - begin, *limits),
            }
            return equation.replace(invars=[part], params={**params, **bounds})
        begin = end
    return equation


def loops_of(graph: Graph) -> list[Loop]:
    """Returns the outermost loops of a graph whose number of turns is known."""
    return [loop for equation in graph.equations if (loop := as_loop(equation)) is not None]


def with_loops(graph: Graph, run_loop: Callable[[Loop], Run]) -> Run:
    """Returns a function of a graph that runs its loops otherwise."""
    loops = {k: loop for k, e in enumerate(graph.equations) if (loop := as_loop(e)) is not None}
    if not loops:
        return as_function(graph)
    # A part for each loop, and one for what lies between two.
    levels = accumulate(k in loops or k - 1 in loops for k in range(len(graph.equations)))
    segments = cut(graph, (), (), dense(list(levels)))
    runs = {id(graph.equations[k]): run_loop(loop) for k, loop in loops.items()}

    def run(*values: Any) -> list[Any]:
        known = dict(zip(graph.invars, values, strict=True)) | graph.constants
        for number, equations in enumerate(segments.parts):
            run_part = runs.get(id(equations[0]))
            if run_part is None:
                part = segments.part(number, number + 1)
                run_part, inputs, outputs = as_function(part), part.invars, part.outvars
            else:
                inputs, outputs = equations[0].invars, equations[0].outvars
            made = run_part(*(_read(known, atom) for atom in inputs))
            known.update(zip(outputs, made, strict=True))
        return [_read(known, var) for var in graph.outvars]

    return run


def _read(known: dict[Any, Any], atom: Any) -> Any:
    return atom.val if is_literal(atom) else known[atom]


def with_body(loop: Loop, body: Run) -> Run:
    """Returns a function that runs a loop with another body, of the same values."""
    return lambda *values: _scan(loop, body, *_parts(loop, values))


def _chunked(loop: Loop, chunks: int) -> Run:
    """Returns a function that runs a loop as `chunks` loops, of nearly equal lengths."""
    ends = [loop.length * (k + 1) // chunks for k in range(chunks)]
    spans = list(zip([0, *ends[:-1]], ends, strict=True))
    body = as_function(loop.body)

    def run(*values: Any) -> list[Any]:
        constants, carry, sequences = _parts(loop, values)
        stacks: list[list[Any]] = []
        for begin, end in spans[:: -1 if loop.reverse else 1]:
            part = [lax.slice_in_dim(leaf, begin, end) for leaf in sequences]
            made = _scan(loop, body, constants, carry, part, end - begin)
            carry = made[: len(carry)]
            stacks.append(made[len(carry) :])
        if loop.reverse:
            stacks.reverse()
        return [*carry, *(jnp.concatenate(parts) for parts in zip(*stacks, strict=True))]

    return run


def _parts(loop: Loop, values: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    first, second = loop.num_constants, loop.num_constants + loop.num_carried
    return list(values[:first]), list(values[first:second]), list(values[second:])


def _scan(
    loop: Loop,
    body: Run,
    constants: list[Any],
    carry: list[Any],
    sequences: list[Any],
    length: int | None = None,
) -> list[Any]:
    def step(carry: list[Any], element: list[Any]) -> tuple[list[Any], list[Any]]:
        made = body(*constants, *carry, *element)
        return made[: len(carry)], made[len(carry) :]

    carry, stacked = lax.scan(
        step, carry, sequences, length or loop.length, loop.reverse, loop.unroll
    )
    return [*carry, *stacked]
