"""Boundaries: values that a model's author marked, between which backward runs forward again.

In a trace each is an equation `name` per value, which computes nothing.
"""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

from millrace._compat.jaxpr import Equation, Graph, Var, is_literal, renamed

_PREFIX = "mr.boundary."
_numbers = itertools.count()


def mark_boundary(tensors: Any) -> Any:
    """Returns a structure of arrays unchanged, all of which one boundary marks."""
    name = f"{_PREFIX}{next(_numbers)}"
    if _here.found is not None:
        _here.found.append(name)
    return jax.tree.map(lambda leaf: checkpoint_name(leaf, name), tensors)


def boundary_of(equation: Equation) -> str | None:
    """Returns the name of the boundary that an equation marks, None if it marks none."""
    if equation.primitive.name != "name":
        return None
    name = equation.params["name"]
    return name if name.startswith(_PREFIX) else None


def without_boundaries(graph: Graph) -> Graph:
    """Returns `graph` as it would be without marks.

    A marked value has another name than the same value before its mark: where nothing runs again,
    backward might keep both.
    """
    names: dict[Var, Any] = {}
    equations = []
    for equation in graph.equations:
        if boundary_of(equation) is None:
            equations.append(equation)
        else:
            (marked,), (result,) = equation.invars, equation.outvars
            names[result] = marked if is_literal(marked) else names.get(marked, marked)
    plain = Graph(graph.invars, graph.outvars, tuple(equations), graph.constants)
    return renamed(plain, names, {}) if names else graph


class _Here(threading.local):
    found: list[str] | None = None


_here = _Here()


@contextmanager
def boundaries_found() -> Iterator[list[str]]:
    """Yields a list that fills with the names of the boundaries that are marked inside."""
    before, _here.found = _here.found, []
    try:
        yield _here.found
    finally:
        _here.found = before
