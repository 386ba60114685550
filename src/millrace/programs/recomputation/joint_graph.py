"""Forward and backward of a graph as one graph, and the update of the weights with them.

x, w, cotangents -> results, gradients      one trace of a function and its pullback
x, w, m, cotangents -> results, w', m'      where the update (with values m of an optimizer) joins
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import jax

from millrace._compat.jaxpr import (
    Atom,
    Graph,
    Var,
    as_function,
    inlined,
    needed,
    renamed,
    spec_of,
    trace,
)

Run = Callable[..., list[jax.Array]]  # of the values of a graph's inputs
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Joint:
    """Forward and backward of a graph."""

    graph: Graph  # inputs of the forward, cotangents -> results, gradients
    cotangents: tuple[Var, ...]  # of the results that are differentiated
    results: tuple[Atom, ...]  # of the forward
    gradients: tuple[Atom, ...]  # of the inputs that it is differentiated by; or new values
    replaced: Mapping[Var, Var] = field(default_factory=dict)  # by new values: inputs

    @property
    def inputs(self) -> tuple[Var, ...]:
        """The inputs of the forward."""
        return self.graph.invars[: len(self.graph.invars) - len(self.cotangents)]


def joint_graph(graph: Graph, learns: Sequence[bool], answered: Sequence[bool]) -> Joint:
    """Differentiates a graph.

    Args:
        graph: of a forward.
        learns: for each input, whether the graph is differentiated with respect to it.
        answered: for each result, whether it is differentiated.
    """
    function = as_function(graph)

    def forward_and_backward(
        inputs: list[jax.Array], cotangents: list[jax.Array]
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        learned, others = partition(learns, inputs)

        def targets(learned: list[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
            results = function(*combine(learns, learned, others))
            return select(results, answered), results

        _, pullback, results = jax.vjp(targets, learned, has_aux=True)
        return results, pullback(cotangents)[0]

    received = [spec_of(var) for var in select(graph.outvars, answered)]
    traced, _ = trace(forward_and_backward, list(map(spec_of, graph.invars)), received)
    whole = needed(inlined(traced))
    num_inputs, num_results = len(graph.invars), len(graph.outvars)
    return Joint(
        graph=whole,
        cotangents=whole.invars[num_inputs:],
        results=whole.outvars[:num_results],
        gradients=whole.outvars[num_results:],
    )


@dataclass(frozen=True, slots=True)
class Update:
    """An update of weights: a function of weights, an optimizer's values and gradients.

    Its graph returns the new weights, then the new values of the optimizer.
    """

    graph: Graph
    num_weights: int

    @property
    def values(self) -> tuple[Var, ...]:
        """The optimizer's values among the inputs."""
        return self.graph.invars[self.num_weights : -self.num_weights]


def with_update(joint: Joint, update: Update) -> Joint:
    """Returns a joint graph that ends with the update of the inputs that it is differentiated by.

    Args:
        joint: whose first inputs are the weights, and no others have gradients.
        update: its results take the place of the gradients, and its values come before cotangents.
    """
    count = update.num_weights
    graph = inlined(update.graph)
    weights = joint.inputs[:count]
    taken = dict(zip(graph.invars, (*weights, *update.values, *joint.gradients), strict=True))
    graph = renamed(graph, taken, joint.graph.constants)
    whole = Graph(
        (*joint.inputs, *update.values, *joint.cotangents),
        (*joint.results, *graph.outvars),
        (*joint.graph.equations, *graph.equations),
        {**joint.graph.constants, **graph.constants},
    )
    whole = needed(whole)
    new = whole.outvars[len(joint.results) :]
    made = {var for equation in whole.equations for var in equation.outvars}
    replaced = {
        var: old for var, old in zip(new, (*weights, *update.values), strict=True) if var in made
    }
    return Joint(whole, joint.cotangents, joint.results, new, replaced)


def select(values: Sequence[T], which: Sequence[bool]) -> list[T]:
    """Returns the values whose entry in `which` is true."""
    return [value for value, is_selected in zip(values, which, strict=True) if is_selected]


def partition(learns: Sequence[bool], values: Sequence[T]) -> tuple[list[T], list[T]]:
    """Splits values into learned ones, which the graph is differentiated by, and all others."""
    return select(values, learns), select(values, [not learned for learned in learns])


def combine(learns: Sequence[bool], learned: Sequence[T], others: Sequence[T]) -> list[T]:
    """Reverses `partition`: returns all values in their order."""
    remaining, remaining_others = iter(learned), iter(others)
    return [next(remaining if is_learned else remaining_others) for is_learned in learns]
