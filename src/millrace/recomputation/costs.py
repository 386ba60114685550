"""A traced step as a chain of segments, and the bytes and FLOPs of each.

XLA's own analysis counts the body of a loop once, so an LSTM over 100 steps would look as cheap as
over one; and it needs a lowering for each call. Here products and convolutions are counted exactly,
every other operation as one FLOP for each element of its result.

graph -> loops in chunks -> cut points -> segments -> links (bytes, FLOPs) -> ladder of choices
"""

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from millrace._compat.jaxpr import (
    Equation,
    Graph,
    Loop,
    Var,
    inner_equations,
    needed,
    scope,
    spec_of,
    trace,
    variables,
)
from millrace.recomputation.cut_points import levels_by_cut_points, nbytes
from millrace.recomputation.joint_graph import Joint, joint_graph, with_lean_loops
from millrace.recomputation.pareto import Choice, ladder
from millrace.recomputation.plan import Again, ChainLink, Item, Once, Way
from millrace.recomputation.recompute import KEEP_PRODUCTS, span
from millrace.recomputation.scans import chunked_function, loops_of, slices_of_inputs
from millrace.recomputation.segments import Segments, cut
from millrace.threads.scoped_value import ScopedValue

_CALL = re.compile(r"mr\.L(\d+)")


def flops_of_calls(graph: Graph, num_calls: int) -> list[float]:
    """Returns the FLOPs of each call.

    Args:
        graph: a trace of the model, forward or with its gradients, under `marked_calls`.
        num_calls: number of leaf calls.
    """
    flops = [0.0] * num_calls
    for equation in graph.equations:
        calls = _CALL.findall(scope(equation))
        if calls:
            flops[int(calls[-1])] += flops_of(equation)
    return flops


def flops_of(equation: Equation) -> float:
    """Returns the FLOPs of one equation, including those of its loops and branches."""
    name, params = equation.primitive.name, equation.params
    shapes = [tuple(var.aval.shape) for var in equation.invars]
    elements = sum(math.prod(var.aval.shape) for var in equation.outvars)
    if name == "dot_general":
        contracted = params["dimension_numbers"][0][0]
        return 2.0 * elements * math.prod(shapes[0][axis] for axis in contracted)
    if name == "conv_general_dilated":
        kernel = params["dimension_numbers"].rhs_spec  # axes of outputs, inputs, then space
        return 2.0 * elements * math.prod(shapes[1][axis] for axis in kernel[1:])
    bodies = list(inner_equations(equation))
    if not bodies:
        return float(elements)
    costs = [sum(map(flops_of, body)) for body in bodies]
    if name == "cond":
        return max(costs)
    return sum(costs) * _iterations(name, params)


def _iterations(name: str, params: Mapping[str, object]) -> int:
    # The number of iterations of a `while` is not in its equation.
    return cast(int, params["length"]) if name == "scan" else 1


def shares(flops: Sequence[float]) -> list[float]:
    """Returns each entry as a share of the sum, 0 to 1."""
    total = sum(flops)
    return [each / total if total else 1 / len(flops) for each in flops]


MOST_CHUNKS, LEAST_ITERATIONS = 32, 8  # of a loop, of a chunk; each chunk is compiled separately
_NAMES = 4  # layers named in a description
# Keeping only products is offered where they are at most this share of all residuals.
WORTH_IT = 0.9


@dataclass(frozen=True, slots=True)
class SegmentChain:
    """The segments of a step or a stage, and the choices of how to run them."""

    segments: Segments
    choices: tuple[Choice, ...]  # the first keeps everything, the last takes the least memory
    flops: float  # of forward and backward, if nothing runs again

    def below(self, share: float) -> int:
        """Returns the first choice whose peak is at most `share` of that of choice 0."""
        most = share * self.choices[0].peak_bytes
        fitting = (k for k, choice in enumerate(self.choices) if choice.peak_bytes <= most)
        return next(fitting, len(self.choices) - 1)

    def extra(self, number: int) -> float:
        """Returns the FLOPs that a choice adds, as a share of those without recomputation."""
        return self.choices[number].extra_flops / self.flops if self.flops else 0.0

    def describe(self, number: int) -> str:
        """Describes in words what a choice runs again."""
        choice = self.choices[number]
        again = [item for item in choice.items if isinstance(item, Again)]
        lean = [i for i in choice.items if isinstance(i, Once) and i.way == KEEP_PRODUCTS]
        if not again and not lean:
            return "nothing is run again"
        names = [self._names(item) for item in again]
        shown = ", ".join(names[:_NAMES]) + (", ..." if names[_NAMES:] else "")
        whole = sum(end - begin for begin, end in map(span, again))
        return (
            f"of {len(self.segments)} segments {whole} run again"
            + (f" ({shown})" if names else "")
            + f" and {len(lean)} keep products only, for {1 + self.extra(number):.2f}x the FLOPs"
        )

    def _names(self, item: Item) -> str:
        begin, end = span(item)
        layers = [
            name
            for equation in self.segments.between(begin, end)
            if (name := scope(equation).rpartition("/")[2])
        ]
        first, last = (layers[0], layers[-1]) if layers else (f"segment {begin}", "")
        return first if last in ("", first) else f"{first} to {last}"


def chain_of(
    graph: Graph, num_weights: int, targets: Sequence[int], others: Sequence[int] = ()
) -> SegmentChain:
    """Cuts a step or a stage into segments, and finds the best ways to run them.

    Args:
        graph: of a forward. Its first inputs are the weights.
        num_weights: number of these inputs.
        targets: indices of the results that are differentiated.
        others: indices of further inputs with respect to which they are differentiated.
    """
    graph = _with_chunks(graph)
    weights = graph.invars[:num_weights]
    learned = [*weights, *(graph.invars[index] for index in others)]
    answered = [graph.outvars[index] for index in targets]
    segments = cut(graph, learned, answered, levels_by_cut_points(graph, weights))
    links, flops = links_of(segments)
    chain = SegmentChain(segments, _ladder(links), flops)
    collected = _collected.get()
    if collected is not None:
        collected.append(chain)
    return chain


_collected = ScopedValue[list[SegmentChain] | None](None)


@contextmanager
def collected_chains() -> Iterator[list[SegmentChain]]:
    """Yields a list that fills with the chains of the steps that are traced inside."""
    collected: list[SegmentChain] = []
    with _collected.bound_to(collected):
        yield collected


def links_of(segments: Segments) -> tuple[tuple[ChainLink, ...], float]:
    """Returns the costs of each segment, and the FLOPs of all if nothing runs again."""
    links, total = [], 0.0
    gradients = _gradients(segments)
    outside = set(segments.graph.invars)  # kept by no segment: these are in memory anyway
    counted: set[Var] = set()
    for number in range(len(segments)):
        graph = segments.subgraph(number, number + 1)
        taken = [v for v in graph.invars if v not in outside and v not in counted]
        counted.update(taken)  # a value that several segments take is kept once
        ways, flops = _ways(segments, graph, gradients[number])
        forward = sum(map(flops_of, graph.equations))
        links.append(ChainLink(_size(taken), forward, ways))
        total += flops
    return tuple(links), total


def _gradients(segments: Segments) -> list[int]:
    """Returns for each segment the bytes of all gradients once backward has run it."""
    weights = segments.learns & set(segments.graph.invars)
    sizes, held = [0] * len(segments), 0
    for number in reversed(range(len(segments))):
        taken = weights & set(segments.inputs(number, number + 1))
        weights -= taken
        held += _size(taken)
        sizes[number] = held
    return sizes


def _ways(segments: Segments, graph: Graph, gradients: int) -> tuple[tuple[Way, ...], float]:
    """Returns the ways to run a segment, and its FLOPs if it keeps everything."""
    learns = [var in segments.learns for var in graph.invars]
    answered = [var in segments.answered for var in graph.outvars]
    # Cotangents of its inputs and results, and gradients of the segments that have run backward.
    received = set(graph.invars) & segments.learns - set(segments.graph.invars)
    around = _size(received) + _size(graph.outvars) + gradients
    if not any(learns) or not any(answered):
        return (Way(0, _size(graph.outvars), 0.0),), sum(map(flops_of, graph.equations))
    joint = joint_graph(graph, learns, answered)
    kept_all = _kept(joint, joint.residuals)
    base = sum(map(flops_of, joint.equations))
    ways = [Way(kept_all, kept_all + around, 0.0)]
    if loops_of(graph):
        joint = joint_graph(with_lean_loops(graph), learns, answered)
    kept = _kept(joint, joint.saved)
    if kept <= WORTH_IT * kept_all:
        passes = (*joint.forward.equations, *joint.backward.equations)
        extra = max(0.0, sum(map(flops_of, passes)) - base)
        ways.append(Way(kept, kept_all + around, extra))
    return tuple(ways), base


def _kept(joint: Joint, names: Sequence[Var]) -> int:
    """Returns the bytes of values, leaving out those that are results of the segment anyway."""
    handed_on = set(variables(joint.results))  # without literals
    return _size(var for var in names if var not in handed_on)


def _size(values: Iterable[Var]) -> int:
    return sum(map(nbytes, values))


@functools.lru_cache(maxsize=16)
def _ladder(links: tuple[ChainLink, ...]) -> tuple[Choice, ...]:
    return tuple(ladder(links))


def _with_chunks(graph: Graph) -> Graph:
    """Splits the long loops of a graph into chunks, each of which can be a segment."""
    if not any(_chunks(loop) > 1 for loop in loops_of(graph)):
        return graph
    chunked = trace(chunked_function(graph, _chunks), *map(spec_of, graph.invars))[0]
    return needed(slices_of_inputs(chunked))


def _chunks(loop: Loop) -> int:
    return max(1, min(MOST_CHUNKS, loop.length // LEAST_ITERATIONS))
