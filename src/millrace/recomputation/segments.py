"""A traced step or stage, cut at its boundaries into segments that can be run again.

In a trace, a boundary is one equation `name` for each value it marks; it computes nothing.

    equation        follows from            level, with boundaries at x and y
    a = f(w0, x0)   weights and batch       0
    x = name(a)     boundary                1 from here on
    m = mask(seed)  no weight               that of the first equation that needs it
    c = g(w1, x)    weights and batch       1
    y = name(c)     boundary                2 from here on

Values that follow from weights alone (a cast), or from no weight at all (a slice of the batch), are
computed where they are first needed: computed earlier, they would have to be kept from there on.
"""

import itertools
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Literal

from millrace._compat.jaxpr import Equation, Graph, Var, is_literal, renamed, variables
from millrace.threads.scoped_value import ScopedValue

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


@dataclass(frozen=True, slots=True)
class Segments:
    """A graph cut into segments, to be run in order."""

    graph: Graph
    equations: tuple[tuple[Equation, ...], ...]  # of each segment
    learns: frozenset[Var]  # values of a floating type that depend on a weight
    answered: frozenset[Var]  # those through which a weight could change the targets

    def __len__(self) -> int:
        return len(self.equations)

    def between(self, begin: int, end: int) -> list[Equation]:
        """Returns the equations of the segments from `begin` up to, not including, `end`."""
        return [equation for segment in self.equations[begin:end] for equation in segment]

    def inputs(self, begin: int, end: int) -> list[Var]:
        """Returns the values that the segments `begin..end` take from elsewhere."""
        inside = self.between(begin, end)
        computed = {var for equation in inside for var in equation.outvars}
        taken = dict.fromkeys(var for e in inside for var in variables(e.invars))
        return [var for var in taken if var not in computed and var not in self.graph.constants]

    def outputs(self, begin: int, end: int) -> list[Var]:
        """Returns the values that later segments take from these, or that the graph returns."""
        after = self.between(end, len(self))
        taken = {var for equation in after for var in variables(equation.invars)}
        taken.update(variables(self.graph.outvars))
        inside = self.between(begin, end)
        return [var for equation in inside for var in equation.outvars if var in taken]

    def subgraph(self, begin: int, end: int) -> Graph:
        """Returns the segments from `begin` up to, not including, `end` as one graph."""
        equations = tuple(self.between(begin, end))
        taken = {var for equation in equations for var in variables(equation.invars)}
        return Graph(
            tuple(self.inputs(begin, end)),
            tuple(self.outputs(begin, end)),
            equations,
            {var: value for var, value in self.graph.constants.items() if var in taken},
        )


def cut(
    graph: Graph, weights: Collection[Var], targets: Collection[Var], levels: Sequence[int]
) -> Segments:
    """Cuts a graph into segments.

    Args:
        graph: of a forward.
        weights: the inputs with respect to which the graph is differentiated.
        targets: the results that are differentiated.
        levels: the segment of each equation, as `levels_by_boundaries` returns them.
    """
    segments: list[list[Equation]] = [[] for _ in range(max(levels, default=0) + 1)]
    for equation, level in zip(graph.equations, levels, strict=True):
        segments[level].append(equation)
    learns = _learns(graph, weights)
    answered = set(variables(targets))
    for equation in reversed(graph.equations):
        if any(var in answered for var in equation.outvars):
            answered.update(variables(equation.invars))
    return Segments(
        graph, tuple(map(tuple, segments)), frozenset(learns), frozenset(answered & learns)
    )


def levels_by_boundaries(graph: Graph, weights: Collection[Var]) -> list[int]:
    """Returns for each equation the number of boundaries before it."""
    mixed = follows_from_both(graph, weights)
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
    return dense(pulled(graph, levels))


def follows_from_both(graph: Graph, weights: Collection[Var]) -> list[bool]:
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


def pulled(graph: Graph, levels: Sequence[int | None]) -> list[int]:
    """Gives equations without a level that of the first equation that needs their result."""
    needed: dict[Var, int] = {}
    complete: list[int] = []
    last = max((level for level in levels if level is not None), default=0)
    for equation, level in zip(reversed(graph.equations), reversed(levels), strict=True):
        if level is None:
            level = min((needed[v] for v in equation.outvars if v in needed), default=last)
        complete.append(level)
        for var in variables(equation.invars):
            needed[var] = min(level, needed.get(var, level))
    return complete[::-1]


def dense(levels: Sequence[int]) -> list[int]:
    """Renumbers levels so that none is left out."""
    order = {level: index for index, level in enumerate(sorted(set(levels)))}
    return [order[level] for level in levels]


def _boundaries(graph: Graph) -> dict[str, list[Equation]]:
    groups: dict[str, list[Equation]] = {}
    for equation in graph.equations:
        name = boundary_of(equation)
        if name is not None:
            groups.setdefault(name, []).append(equation)
    return groups


def _learns(graph: Graph, weights: Collection[Var]) -> set[Var]:
    learns = set(weights)
    for equation in graph.equations:
        if any(var in learns for var in variables(equation.invars)):
            learns.update(
                var for var in equation.outvars if jnp.issubdtype(var.aval.dtype, jnp.inexact)
            )
    return learns
