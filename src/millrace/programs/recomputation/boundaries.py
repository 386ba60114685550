"""Boundaries that a user sets, and the order of kernels that recomputes what lies between them.

In a trace, a boundary is one equation `name` for each value it marks; it computes nothing.

    equation        follows from            level, with boundaries at x and y
    a = f(w0, x0)   weights and batch       0
    x = name(a)     boundary                1 from here on
    m = mask(seed)  no weight               that of the first equation that needs it
    c = g(w1, x)    weights and batch       1
    y = name(c)     boundary                2 from here on

The equations of a level are a segment. Values that follow from weights alone (a cast), or from no
weight at all (a slice of the batch), are computed where they are first needed: computed earlier,
they would have to be kept from there on.

    forward   segment 0 -> boundary -> segment 1 -> boundary -> segment 2 -> loss
    keeps     inputs of 0              inputs of 1              residuals of 2
    backward  residuals of 2 -> run 1 again -> its residuals -> run 0 again -> its residuals
"""

import itertools
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Literal

from millrace._compat.jaxpr import (
    Equation,
    Graph,
    Var,
    first_needs,
    is_literal,
    renamed,
    variables,
)
from millrace.base.threads.scoped_value import ScopedValue
from millrace.programs.recomputation.evictions import without_unused
from millrace.programs.recomputation.joint_graph import Joint
from millrace.programs.recomputation.kernel_work import KernelWork
from millrace.programs.recomputation.kernels import Kernel, kernels_of, work_of
from millrace.programs.recomputation.ordered import OrderedKernels, first_late

T = TypeVar("T")  # a tree of arrays

_PREFIX = "mr.boundary."
_numbers = itertools.count()


def mark_boundary(tensors: T) -> T:
    """Marks all arrays of a structure as one boundary, and returns the structure unchanged."""
    name = f"{_PREFIX}{next(_numbers)}"
    marked = _marked.get()
    if marked is not None:
        marked.append(name)
    return jax.tree.map(lambda leaf: checkpoint_name(leaf, name), tensors)


def boundary_of(equation: Equation) -> str | None:
    """Returns the name of the boundary that an equation marks, None if it marks none."""
    if equation.primitive.name != "name":
        return None
    name = equation.params["name"]
    return name if name.startswith(_PREFIX) else None


def without_boundaries(graph: Graph) -> Graph:
    """Returns `graph` without its boundary marks.

    A marked value has another name than the same value before its mark: where nothing runs again,
    backward might keep both.
    """
    names: dict[Var, Var | Literal] = {}
    equations = []
    for equation in graph.equations:
        if boundary_of(equation) is None:
            equations.append(equation)
        else:
            (marked,), (result,) = equation.invars, equation.outvars
            names[result] = marked
            if not is_literal(marked) and marked in names:
                names[result] = names[marked]
    plain = Graph(graph.invars, graph.outvars, tuple(equations), graph.constants)
    return renamed(plain, names, {}) if names else graph


_marked = ScopedValue[list[str] | None](None)


@contextmanager
def collected_boundaries() -> Iterator[list[str]]:
    """Yields a list that fills with the names of the boundaries that are marked inside."""
    marked: list[str] = []
    with _marked.bound_to(marked):
        yield marked


def levels_by_boundaries(graph: Graph, weights: Collection[Var]) -> list[int]:
    """Returns for each equation the number of boundaries before it."""
    mixed = _follows_from_both(graph, weights)
    level: dict[Var, int] = {}
    reached: dict[str, int] = {}  # by name, the level that a boundary begins
    levels: list[int | None] = []
    groups = _boundaries(graph)
    for equation, is_mixed in zip(graph.equations, mixed, strict=True):
        name = boundary_of(equation)
        own = max((level[var] for var in variables(equation.invars) if var in level), default=0)
        if name is not None and is_mixed:
            if name not in reached:  # all values of a boundary begin the same level
                taken = (var for e in groups[name] for var in variables(e.invars))
                reached[name] = max((level[var] for var in taken if var in level), default=0) + 1
            own = reached[name]
        levels.append(own if is_mixed else None)
        if is_mixed:
            level.update(dict.fromkeys(equation.outvars, own))
    last = max((level for level in levels if level is not None), default=0)
    _, complete = first_needs(graph, levels, {})
    return [last if level is None else level for level in complete]


def _follows_from_both(graph: Graph, weights: Collection[Var]) -> list[bool]:
    """Returns for each equation whether it follows from weights and from something else."""
    weighty, other = set(weights), set(graph.invars) - set(weights)
    both: list[bool] = []
    for equation in graph.equations:
        inputs = list(variables(equation.invars))
        from_weights = any(var in weighty for var in inputs)
        from_others = any(var in other for var in inputs)
        weighty.update(equation.outvars if from_weights else ())
        other.update(equation.outvars if from_others else ())
        both.append(from_weights and from_others)
    return both


def _boundaries(graph: Graph) -> dict[str, list[Equation]]:
    groups: dict[str, list[Equation]] = {}
    for equation in graph.equations:
        name = boundary_of(equation)
        if name is not None:
            groups.setdefault(name, []).append(equation)
    return groups


def kernels_between_boundaries(
    joint: Joint, num_weights: int, keeps_last: bool, is_whole: bool = False
) -> OrderedKernels:
    """Returns the kernels of a step or stage, which run again from each boundary to the next.

    Args:
        joint: forward and backward.
        num_weights: number of its first inputs that are weights.
        keeps_last: whether the last segment runs only once: its backward follows its forward
            immediately, so running it again saves nothing.
        is_whole: whether all of it is one segment.
    """
    kernels = kernels_of(joint.graph, stops_at=boundary_of)
    work = work_of(joint.graph, kernels)
    first = first_late(joint, kernels)
    levels = [0] * first if is_whole else _levels_of(joint, kernels[:first], num_weights)
    once = {levels[k] for k in range(first) if not work.repeatable[k]}  # would print twice
    once |= {max(levels, default=0)} if keeps_last else set()
    order = sorted(range(first), key=lambda k: levels[k])
    order += _backward(work, levels, first, once)
    return OrderedKernels(joint, kernels, work, without_unused(work, tuple(order)))


def _levels_of(joint: Joint, kernels: Sequence[Kernel], num_weights: int) -> list[int]:
    """Returns the level of each kernel of the forward."""
    inside = {id(equation) for kernel in kernels for equation in kernel.equations}
    equations = tuple(e for e in joint.graph.equations if id(e) in inside)
    graph = Graph(joint.inputs, (), equations, joint.graph.constants)
    found = levels_by_boundaries(graph, joint.inputs[:num_weights])
    level = {id(equation): own for equation, own in zip(equations, found, strict=True)}
    return [max(level[id(e)] for e in kernel.equations) for kernel in kernels]


def _backward(
    work: KernelWork, levels: Sequence[int], first: int, once: Collection[int]
) -> list[int]:
    """Returns the kernels of backward in order, each segment again before it is needed."""
    crossing = set(work.results)
    for value, readers in enumerate(work.readers):
        own = work.maker[value]
        if any(k < first and levels[k] != levels[own] for k in readers):
            crossing.add(value)
    order: list[int] = []
    done = set(once)
    for kernel in range(first, len(work.inputs)):
        for value in work.inputs[kernel]:
            maker = work.maker[value]
            if maker < first and value not in crossing and levels[maker] not in done:
                done.add(levels[maker])
                order += _needed_again(work, levels, first, levels[maker], crossing)
        order.append(kernel)
    return order


def _needed_again(
    work: KernelWork, levels: Sequence[int], first: int, level: int, crossing: Collection[int]
) -> list[int]:
    """Returns the kernels of a segment that compute what backward reads and nobody keeps."""
    needed: list[int] = []
    wanted: set[int] = set()
    for kernel in reversed(range(first)):
        if levels[kernel] != level:
            continue
        for value in work.outputs[kernel]:
            if value not in crossing and any(k >= first for k in work.readers[value]):
                wanted.add(value)
        if not wanted.isdisjoint(work.outputs[kernel]):
            needed.append(kernel)
            wanted.update(value for value in work.inputs[kernel] if value not in crossing)
    return needed[::-1]
