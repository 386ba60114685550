"""Other forms of the scans in a traced step, with the same values.

    scan over 2048 steps, read at the last  ->  the last result is carried, and none is collected

    form                steps of the loop, by what backward keeps of them
    KEEP                everything
    LEAN                as little as follows without a product
    half in chunks      [ 32 chunks of 32 steps ][ 1024 steps, lean ]   a chunk keeps what it
    all in chunks       [         45 chunks of 45 steps           ]     begins with, and runs again

A loop over chunks has one body for all of them, so it compiles as fast as the loop that it is made
of. Its backward adds up the gradients of weights chunk by chunk. Chunks of a length near the square
root of all steps take the least memory (Chen et al. 2016, arXiv 1604.06174).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from millrace._compat.jaxpr import (
    Atom,
    Equation,
    Graph,
    Loop,
    Var,
    as_function,
    as_loop,
    evaluated,
    inlined,
    is_literal,
    needed,
    scope,
    spec_of,
    trace,
    variables,
)
from millrace.programs.recomputation.costs import nbytes
from millrace.programs.recomputation.joint_graph import Run
from millrace.programs.recomputation.lean_loops import lean_body

LEAST_STEPS = 8  # of a loop that takes other forms


@dataclass(frozen=True, slots=True)
class ScanForm:
    """How the loops of a step run."""

    in_chunks: float = 0.0  # share of the steps that run again, chunk by chunk
    is_lean: bool = False  # whether the others keep only what their products require


KEEP = ScanForm()
FORMS = (
    KEEP,
    ScanForm(is_lean=True),
    ScanForm(0.25, is_lean=True),
    ScanForm(0.5, is_lean=True),
    ScanForm(0.625, is_lean=True),
    ScanForm(0.75, is_lean=True),
    ScanForm(1.0),
    ScanForm(1.0, is_lean=True),
)


def is_long(equation: Equation) -> bool:
    """Whether an equation is a loop that can run in other forms."""
    loop = as_loop(equation)
    return loop is not None and loop.length >= LEAST_STEPS and not equation.effects


def with_loops(graph: Graph, form: ScanForm) -> Graph:
    """Returns a graph whose loops run in another form."""
    if form == KEEP:
        return graph
    return _with_functions(
        graph,
        {
            k: _in_form(loop, form)
            for k, equation in enumerate(graph.equations)
            if (loop := as_loop(equation)) is not None and is_long(equation)
        },
    )


def with_last_results(graph: Graph) -> Graph:
    """Returns a graph whose loops collect no results of which only those of the last step are read.

    Their cotangents would be an array of all steps, of zeros but for the last one.
    """
    maker = {v: k for k, e in enumerate(graph.equations) if is_long(e) for v in e.outvars}
    readers: dict[Var, list[int]] = {}
    for k, equation in enumerate(graph.equations):
        for var in dict.fromkeys(variables(equation.invars)):
            readers.setdefault(var, []).append(k)
    returned = set(variables(graph.outvars))
    functions: dict[int, Run] = {}
    last: dict[int, list[int]] = {}  # of each loop, the numbers of its results
    for var, k in maker.items():
        loop, read = as_loop(graph.equations[k]), readers.get(var, [])
        if loop is None or var in returned or not read:
            continue
        number = graph.equations[k].outvars.index(var)
        is_stacked = number >= loop.num_carried
        is_number = not jnp.issubdtype(var.aval.dtype, jax.dtypes.extended)  # no key
        if is_stacked and is_number and all(_takes_last(graph.equations[r], loop) for r in read):
            last.setdefault(k, []).append(number)
            functions.update(dict.fromkeys(read, _same))
    for k, numbers in last.items():
        loop = as_loop(graph.equations[k])
        if loop is not None:
            functions[k] = _with_last(loop, numbers)
    return _with_functions(graph, functions)


def _with_functions(graph: Graph, functions: Mapping[int, Run]) -> Graph:
    """Returns a graph with other functions in the place of some of its equations."""
    if not functions:
        return graph

    def run(*values: jax.Array) -> list[jax.Array]:
        environment = dict(zip(graph.invars, values, strict=True)) | graph.constants
        for k, equation in enumerate(graph.equations):
            function = functions.get(k)
            if function is None:
                results = evaluated(equation, environment)
            else:
                inputs = [_read(environment, atom) for atom in equation.invars]
                with jax.named_scope(scope(equation) or "loop"):
                    results = function(*inputs)
            environment.update(zip(equation.outvars, results, strict=True))
        return [_read(environment, atom) for atom in graph.outvars]

    return needed(inlined(trace(run, *map(spec_of, graph.invars))[0]))


def _read(environment: dict[Var, jax.Array], atom: Atom) -> jax.Array:
    return atom.val if is_literal(atom) else environment[atom]


def _same(*values: jax.Array) -> list[jax.Array]:
    return list(values)


def _takes_last(equation: Equation, loop: Loop) -> bool:
    """Whether an equation is the slice of the last step of a loop's collected results."""
    if equation.primitive.name != "slice":
        return False
    (array,), params = equation.invars, equation.params
    begin = 0 if loop.reverse else loop.length - 1
    return (
        params["start_indices"] == (begin, *(0 for _ in array.aval.shape[1:]))
        and params["limit_indices"] == (begin + 1, *array.aval.shape[1:])
        and set(params["strides"] or (1,)) == {1}
    )


def _with_last(loop: Loop, numbers: Sequence[int]) -> Run:
    """Returns the function of a loop that carries some results, and returns those of its last step.

    They have a first axis of length 1.
    """
    body, carried = as_function(loop.body), loop.num_carried

    def run(*values: jax.Array) -> list[jax.Array]:
        constants, carry, sequences = _inputs(loop, values)
        specs = [spec_of(loop.body.outvars[number]) for number in numbers]
        first = [jnp.zeros(spec.shape, spec.dtype) for spec in specs]

        def step(
            state: tuple[list[jax.Array], list[jax.Array]], element: list[jax.Array]
        ) -> tuple[tuple[list[jax.Array], list[jax.Array]], list[jax.Array]]:
            results = body(*constants, *state[0], *element)
            stacked = [r for n, r in enumerate(results) if n >= carried and n not in numbers]
            return (results[:carried], [results[number] for number in numbers]), stacked

        (carry, last), stacked = lax.scan(
            step, (carry, first), sequences, loop.length, loop.reverse, loop.unroll
        )
        of_number = dict(zip(numbers, (leaf[None] for leaf in last), strict=True))
        remaining = iter(stacked)
        count = len(loop.body.outvars)
        rest = [of_number[n] if n in of_number else next(remaining) for n in range(carried, count)]
        return [*carry, *rest]

    return run


class _Inputs(NamedTuple):
    constants: list[jax.Array]
    carry: list[jax.Array]
    sequences: list[jax.Array]  # [length, ...]


def _in_form(loop: Loop, form: ScanForm) -> Run:
    lean = lean_body(loop.body) if form.is_lean else as_function(loop.body)
    plain = as_function(loop.body)
    first = round(loop.length * form.in_chunks)
    chunk = _chunk_length(loop, first) if first else 1
    first -= first % chunk  # the steps left over run with those that are kept

    def run(*values: jax.Array) -> list[jax.Array]:
        constants, carry, sequences = _inputs(loop, values)
        parts: list[list[jax.Array]] = []
        if first:
            body = lean if form.in_chunks == 1.0 else plain
            part = [_steps(loop, leaf, 0, first) for leaf in sequences]
            carry, stacked = _chunks(loop, body, _Inputs(constants, carry, part), first, chunk)
            parts.append(stacked)
        if first < loop.length:
            part = [_steps(loop, leaf, first, loop.length) for leaf in sequences]
            inputs = _Inputs(constants, carry, part)
            carry, stacked = _scan(loop, lean, inputs, loop.length - first)
            parts.append(stacked)
        if loop.reverse:
            parts.reverse()
        joined = [p[0] if len(p) == 1 else jnp.concatenate(p) for p in zip(*parts, strict=True)]
        return [*carry, *joined]

    return run


def _steps(loop: Loop, leaf: jax.Array, begin: int, end: int) -> jax.Array:
    """Returns the elements of some steps, counted in the order in which they run."""
    if end - begin == loop.length:
        return leaf
    if loop.reverse:
        begin, end = loop.length - end, loop.length - begin
    return lax.slice_in_dim(leaf, begin, end)


def _chunk_length(loop: Loop, steps: int) -> int:
    """Returns the length of chunks that takes the least memory."""
    constants, carried = loop.num_constants, loop.num_carried
    carry = sum(map(nbytes, loop.body.invars[constants : constants + carried]))
    kept = sum(nbytes(var) for e in loop.body.equations for var in e.outvars)
    best = math.sqrt(steps * carry / kept) if kept else math.sqrt(steps)
    best = max(1, min(max(2, round(best)), steps // 2))
    # Chunks that leave no steps over need no copy of the sequences.
    near = [length for length in range(max(1, best // 2), 2 * best + 1) if steps % length == 0]
    return min(near, key=lambda length: abs(math.log(length / best)), default=best)


def _chunks(
    loop: Loop, body: Run, inputs: _Inputs, steps: int, length: int
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Runs a loop over chunks of `length` steps, each of which runs again in backward."""

    def chunk(
        carry: list[jax.Array], sequences: list[jax.Array], constants: list[jax.Array]
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        return _scan(loop, body, _Inputs(constants, carry, sequences), length)

    def step(
        carry: list[jax.Array], sequences: list[jax.Array]
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        # All compilers honour `jax.checkpoint` within a loop.
        again = jax.checkpoint(chunk, prevent_cse=False)
        return again(carry, sequences, inputs.constants)

    sequences = [leaf.reshape(-1, length, *leaf.shape[1:]) for leaf in inputs.sequences]
    carry, stacked = lax.scan(step, inputs.carry, sequences, steps // length, loop.reverse)
    return carry, [leaf.reshape(-1, *leaf.shape[2:]) for leaf in stacked]


def _inputs(loop: Loop, values: Sequence[jax.Array]) -> _Inputs:
    first, second = loop.num_constants, loop.num_constants + loop.num_carried
    return _Inputs(list(values[:first]), list(values[first:second]), list(values[second:]))


def _scan(
    loop: Loop, body: Run, inputs: _Inputs, length: int
) -> tuple[list[jax.Array], list[jax.Array]]:
    def step(
        carry: list[jax.Array], element: list[jax.Array]
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        results = body(*inputs.constants, *carry, *element)
        return results[: len(carry)], results[len(carry) :]

    return lax.scan(step, inputs.carry, inputs.sequences, length, loop.reverse, loop.unroll)
