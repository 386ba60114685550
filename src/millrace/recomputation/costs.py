"""A traced step as a chain of segments, and the bytes and FLOPs of each.

XLA's own analysis counts the body of a loop once, so an LSTM over 100 steps would look as cheap as
over one; and it needs a lowering for each call. Products and convolutions are counted exactly,
everything else as one FLOP for each element that it makes.

graph -> loops in chunks -> cut points -> segments -> links (bytes, FLOPs) -> ladder of choices
"""

import functools
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

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
from millrace.recomputation.scans import chunked_function, loops_of, slices_of_parts
from millrace.recomputation.segments import Segments, cut
from millrace.threads.scoped_value import ScopedValue

_CALL = re.compile(r"mr\.L(\d+)")


def flops_of_calls(graph: Graph, num_calls: int) -> list[float]:
    """Returns the FLOPs of each call.

    Args:
        graph: a trace of the model, forward or with its gradients, under `marked_calls`.
        num_calls: how many leaf calls there are.
    """
    flops = [0.0] * num_calls
    for equation in graph.equations:
        calls = _CALL.findall(scope(equation))
        if calls:
            flops[int(calls[-1])] += flops_of(equation)
    return flops


def flops_of(equation: Equation) -> float:
    """Returns the FLOPs of one equation, with those inside of it."""
    name, params = equation.primitive.name, equation.params
    shapes = [tuple(var.aval.shape) for var in equation.invars]
    made = sum(math.prod(var.aval.shape) for var in equation.outvars)
    if name == "dot_general":
        contracted = params["dimension_numbers"][0][0]
        return 2.0 * made * math.prod(shapes[0][axis] for axis in contracted)
    if name == "conv_general_dilated":
        kernel = params["dimension_numbers"].rhs_spec  # places of output, input, spatial axes
        return 2.0 * made * math.prod(shapes[1][axis] for axis in kernel[1:])
    bodies = list(inner_equations(equation))
    if not bodies:
        return float(made)
    costs = [sum(map(flops_of, body)) for body in bodies]
    if name == "cond":
        return max(costs)
    return sum(costs) * _turns(name, params)


def _turns(name: str, params: dict[str, Any]) -> int:
    return params["length"] if name == "scan" else 1  # a `while` does not say how often it turns


def shares(flops: Sequence[float]) -> list[float]:
    """Returns the share of each, of the sum of all."""
    total = sum(flops)
    return [each / total if total else 1 / len(flops) for each in flops]


MOST_CHUNKS, LEAST_TURNS = 32, 8  # of a loop; each chunk is code of its own
_NAMES = 4  # that a description has
WORTH_IT = 0.9  # keep only products where they are at most so much of all residuals


@dataclass(frozen=True, slots=True)
class Chain:
    """Segments to choose from, and what there is to choose."""

    segments: Segments
    choices: tuple[Choice, ...]  # the first keeps everything, the last takes the least memory
    flops: float  # of forward and backward, if nothing is run again

    def below(self, share: float) -> int:
        """Returns the first choice that takes at most a share of what the first one takes."""
        most = share * self.choices[0].peak_bytes
        fitting = (k for k, choice in enumerate(self.choices) if choice.peak_bytes <= most)
        return next(fitting, len(self.choices) - 1)

    def extra(self, number: int) -> float:
        """Returns the share of the FLOPs that a choice adds to them."""
        return self.choices[number].extra_flops / self.flops if self.flops else 0.0

    def describe(self, number: int) -> str:
        """Returns what a choice runs again, in words."""
        choice = self.choices[number]
        again = [item for item in choice.items if isinstance(item, Again)]
        lean = [i for i in choice.items if isinstance(i, Once) and i.way == KEEP_PRODUCTS]
        if not again and not lean:
            return "nothing is run again"
        names = [self._names(item) for item in again]
        shown = ", ".join(names[:_NAMES]) + (", ..." if names[_NAMES:] else "")
        whole = sum(end - begin for begin, end in map(span, again))
        return (
            f"of {len(self.segments.parts)} segments {whole} run again"
            + (f" ({shown})" if names else "")
            + f" and {len(lean)} keep products only, for {1 + self.extra(number):.2f}x the FLOPs"
        )

    def _names(self, item: Item) -> str:
        begin, end = span(item)
        layers = [
            name
            for equation in (e for part in self.segments.parts[begin:end] for e in part)
            if (name := scope(equation).rpartition("/")[2])
        ]
        first, last = (layers[0], layers[-1]) if layers else (f"segment {begin}", "")
        return first if last in ("", first) else f"{first} to {last}"


def chain_of(
    graph: Graph, num_weights: int, targets: Sequence[int], others: Sequence[int] = ()
) -> Chain:
    """Cuts a step or a stage into segments, and finds the best ways to run them.

    Args:
        graph: of a forward. Its first inputs are the weights.
        num_weights: how many of its inputs these are.
        targets: places of the results that are differentiated.
        others: places of inputs that are no weights, and by which they are differentiated, too.
    """
    graph = _with_chunks(graph)
    weights = graph.invars[:num_weights]
    learned = [*weights, *(graph.invars[place] for place in others)]
    answered = [graph.outvars[place] for place in targets]
    segments = cut(graph, learned, answered, levels_by_cut_points(graph, weights))
    links, flops = links_of(segments)
    chain = Chain(segments, _ladder(links), flops)
    seen = _seen.get()
    if seen is not None:
        seen.append(chain)
    return chain


_seen = ScopedValue[list[Chain] | None](None)


@contextmanager
def chains_seen() -> Iterator[list[Chain]]:
    """Yields a list that fills with the chains that are made of steps traced inside."""
    seen: list[Chain] = []
    with _seen.bound_to(seen):
        yield seen


def links_of(segments: Segments) -> tuple[tuple[ChainLink, ...], float]:
    """Returns what each segment costs, and the FLOPs of all if nothing is run again."""
    links, total = [], 0.0
    gradients = _gradients(segments)
    outside = set(segments.graph.invars)  # of no segment: they are there anyway
    counted: set[Var] = set()
    for number in range(len(segments.parts)):
        graph = segments.part(number, number + 1)
        taken = [v for v in graph.invars if v not in outside and v not in counted]
        counted.update(taken)  # a value that later segments take, too, is kept once
        ways, flops = _ways(segments, graph, gradients[number])
        forward = sum(map(flops_of, graph.equations))
        links.append(ChainLink(_size(taken), forward, ways))
        total += flops
    return tuple(links), total


def _gradients(segments: Segments) -> list[int]:
    """Returns the bytes of all gradients that are there once backward has run a segment."""
    weights = segments.learns & set(segments.graph.invars)
    sizes, held = [0] * len(segments.parts), 0
    for number in reversed(range(len(segments.parts))):
        taken = weights & set(segments.inputs(number, number + 1))
        weights -= taken
        held += _size(taken)
        sizes[number] = held
    return sizes


def _ways(segments: Segments, graph: Graph, gradients: int) -> tuple[tuple[Way, ...], float]:
    """Returns the ways to run a segment, and its FLOPs if it keeps everything."""
    learns = [var in segments.learns for var in graph.invars]
    answered = [var in segments.answered for var in graph.outvars]
    # Cotangents of what it takes and gives, and gradients of segments that backward has left.
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
    """Returns the bytes of values, without those that the segment hands on anyway."""
    handed_on = set(variables(joint.results))  # not numbers written into the graph
    return _size(var for var in names if var not in handed_on)


def _size(values: Any) -> int:
    return sum(map(nbytes, values))


@functools.lru_cache(maxsize=16)
def _ladder(links: tuple[ChainLink, ...]) -> tuple[Choice, ...]:
    return tuple(ladder(links))


def _with_chunks(graph: Graph) -> Graph:
    """Returns a graph whose long loops are several, each of which can be a segment."""
    if not any(_chunks(loop) > 1 for loop in loops_of(graph)):
        return graph
    chunked = trace(chunked_function(graph, _chunks), *map(spec_of, graph.invars))[0]
    return needed(slices_of_parts(chunked))


def _chunks(loop: Loop) -> int:
    return max(1, min(MOST_CHUNKS, loop.length // LEAST_TURNS))
