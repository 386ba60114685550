"""Other forms of the loops in a traced step, with the same values.

    scan over 2048 steps   ->   32 scans of 64 steps, each of which can be a segment

A loop that runs with another body is traced anew.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal

from millrace._compat.jaxpr import Equation, Graph, Loop, Var, as_function, as_loop, is_literal
from millrace.recomputation.segments import cut, dense

Run = Callable[..., list[jax.Array]]  # of the values of a graph's inputs


def chunked_function(graph: Graph, chunks_of: Callable[[Loop], int]) -> Run:
    """Returns the function of a graph with its outermost loops split into consecutive chunks.

    Args:
        graph: with the loops.
        chunks_of: returns the number of chunks for a loop.
    """
    return with_loops(graph, lambda loop: _chunked(loop, chunks_of(loop)))


def slices_of_inputs(graph: Graph) -> Graph:
    """Replaces slices of concatenated arrays by slices of the one array that they lie in.

    Often only the last result of a loop is used. The chunks before the last one then have no
    results to hand on.
    """
    joined: dict[Var, Equation] = {}
    equations = []
    for equation in graph.equations:
        if equation.primitive.name == "concatenate" and equation.params["dimension"] == 0:
            joined[equation.outvars[0]] = equation
        elif equation.primitive.name == "slice" and equation.invars[0] in joined:
            equation = _slice_of_input(equation, joined[equation.invars[0]])
        equations.append(equation)
    return Graph(graph.invars, graph.outvars, tuple(equations), graph.constants)


def _slice_of_input(equation: Equation, joined: Equation) -> Equation:
    params, begin = equation.params, 0
    (start, *starts), (limit, *limits) = params["start_indices"], params["limit_indices"]
    for array in joined.invars:
        end = begin + array.aval.shape[0]
        if begin <= start and limit <= end:
            bounds = {
                "start_indices": (start - begin, *starts),
                "limit_indices": (limit - begin, *limits),
            }
            return equation.replace(invars=[array], params={**params, **bounds})
        begin = end
    return equation


def loops_of(graph: Graph) -> list[Loop]:
    """Returns the outermost `jax.lax.scan` loops of a graph."""
    return [loop for equation in graph.equations if (loop := as_loop(equation)) is not None]


def with_loops(graph: Graph, run_loop: Callable[[Loop], Run]) -> Run:
    """Returns the function of a graph in which `run_loop` says how each loop runs."""
    loops = {k: loop for k, e in enumerate(graph.equations) if (loop := as_loop(e)) is not None}
    if not loops:
        return as_function(graph)
    # A segment for each loop, and one for the equations between two.
    levels = accumulate(k in loops or k - 1 in loops for k in range(len(graph.equations)))
    segments = cut(graph, (), (), dense(list(levels)))
    runs = {id(graph.equations[k]): run_loop(loop) for k, loop in loops.items()}

    def run(*values: jax.Array) -> list[jax.Array]:
        environment = dict(zip(graph.invars, values, strict=True)) | graph.constants
        for number, equations in enumerate(segments.equations):
            run_segment = runs.get(id(equations[0]))
            if run_segment is None:
                segment = segments.subgraph(number, number + 1)
                run_segment, inputs, outputs = as_function(segment), segment.invars, segment.outvars
            else:
                inputs, outputs = equations[0].invars, equations[0].outvars
            results = run_segment(*(_read(environment, atom) for atom in inputs))
            environment.update(zip(outputs, results, strict=True))
        return [_read(environment, var) for var in graph.outvars]

    return run


def _read(environment: dict[Var, jax.Array], atom: Var | Literal) -> jax.Array:
    return atom.val if is_literal(atom) else environment[atom]


def with_body(loop: Loop, body: Run) -> Run:
    """Returns a function that runs a loop with another body, which takes the same values."""
    return lambda *values: _scan(loop, body, _inputs(loop, values))


def _chunked(loop: Loop, chunks: int) -> Run:
    """Returns a function that runs a loop as `chunks` loops of nearly equal lengths."""
    ends = [loop.length * (k + 1) // chunks for k in range(chunks)]
    spans = list(zip([0, *ends[:-1]], ends, strict=True))
    body = as_function(loop.body)

    def run(*values: jax.Array) -> list[jax.Array]:
        constants, carry, sequences = _inputs(loop, values)
        stacks: list[list[jax.Array]] = []
        for begin, end in spans[:: -1 if loop.reverse else 1]:
            chunk = [lax.slice_in_dim(leaf, begin, end) for leaf in sequences]
            results = _scan(loop, body, _LoopInputs(constants, carry, chunk), end - begin)
            carry = results[: len(carry)]
            stacks.append(results[len(carry) :])
        if loop.reverse:
            stacks.reverse()
        return [*carry, *(jnp.concatenate(chunks) for chunks in zip(*stacks, strict=True))]

    return run


class _LoopInputs(NamedTuple):
    constants: list[jax.Array]
    carry: list[jax.Array]
    sequences: list[jax.Array]  # [length, ...]


def _inputs(loop: Loop, values: Sequence[jax.Array]) -> _LoopInputs:
    first, second = loop.num_constants, loop.num_constants + loop.num_carried
    return _LoopInputs(list(values[:first]), list(values[first:second]), list(values[second:]))


def _scan(loop: Loop, body: Run, inputs: _LoopInputs, length: int | None = None) -> list[jax.Array]:
    def step(
        carry: list[jax.Array], element: list[jax.Array]
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        results = body(*inputs.constants, *carry, *element)
        return results[: len(carry)], results[len(carry) :]

    carry, stacked = lax.scan(
        step, inputs.carry, inputs.sequences, length or loop.length, loop.reverse, loop.unroll
    )
    return [*carry, *stacked]
