"""The stage of each equation in a traced step.

    scope of the equation               stage
    mr.model/mr.L4/dense_2              that of layer call 4
    mr.model/mr.S1                      1: a `PipelineStage(1)` within a subclassed `call`
    mr.model                            the latest stage of its inputs
    (outside the model)                 the last: loss and metrics

Three kinds of equations get no stage from these rules, but from their neighbours. Values that
follow from weights alone, such as the penalty of a regularizer, are computed where these weights
live. Values that follow from the batch alone, such as a cast, or from state outside of every layer,
such as the random numbers of a model's own seed generator, are computed where they are first
needed. The next value of such state is computed where the present one is used.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace._compat.jaxpr import (
    Equation,
    Graph,
    Var,
    first_needs,
    inner_scopes,
    scope,
    variables,
)
from millrace.errors import ModelError

MODEL_SCOPE = "mr.model"
NO_STATE: Mapping[Var, Var] = {}

_MARK = re.compile(r"mr\.([LS])(\d+)")


@dataclass(frozen=True, slots=True)
class Marks:
    """The stages and names that the scopes in a traced step stand for."""

    stages: Sequence[int] | None  # of each layer call; None where the model's `call` has the scopes
    num_stages: int
    names: Sequence[str]  # of each layer call, for messages

    def stage(self, name: str) -> int | None:
        """Returns the stage of the innermost scope that gives one; None if none does."""
        for kind, number in reversed(_MARK.findall(name)):
            if kind == "S" and self.stages is None:
                return int(number)
            if kind == "L" and self.stages is not None:
                return self.stages[int(number)]
        return None

    def name(self, name: str) -> str:
        """Returns the layer of a scope, for a message."""
        calls = [int(number) for kind, number in _MARK.findall(name) if kind == "L"]
        return f"Layer {self.names[calls[-1]]!r}" if calls else f"An operation in {name!r}"


def stages_of_equations(
    graph: Graph, weights: Sequence[Var], marks: Marks, state: Mapping[Var, Var] = NO_STATE
) -> list[int]:
    """Returns the stage of each equation.

    Args:
        graph: one step, without unused equations.
        weights: variables of the graph that are weights or other state of the model.
        marks: the meaning of its scopes.
        state: for each output that is the next value of a changing state, its present value.

    Raises:
        ModelError: if a stage takes a value of a later one, or one equation spans several stages.
    """
    marked = [_mark(equation, marks) for equation in graph.equations]
    last = marks.num_stages - 1
    home = _first_uses(graph, set(weights), marked)
    stages: list[int | None] = []
    made_in: dict[Var, int] = {}  # stage of a variable that an equation made
    follows: dict[Var, frozenset[Var]] = {weight: frozenset({weight}) for weight in weights}
    for equation, mark in zip(graph.equations, marked, strict=True):
        inputs = list(variables(equation.invars))
        latest = max((made_in[var] for var in inputs if var in made_in), default=None)
        stage = mark
        if mark is not None:
            _check_order(equation, inputs, made_in, mark, marks)
        elif sources := _only_weights(graph, inputs, follows):
            stage = max((home[weight] for weight in sources if weight in home), default=None)
            follows.update(dict.fromkeys(equation.outvars, sources))
        elif latest is not None:
            stage = latest if MODEL_SCOPE in scope(equation) else last
        stages.append(stage)
        if stage is not None:
            made_in.update(dict.fromkeys(equation.outvars, stage))
    return _with_first_uses(graph, stages, last, state)


def _mark(equation: Equation, marks: Marks) -> int | None:
    own = marks.stage(scope(equation))
    if own is not None:
        return own
    inner = {stage for name in inner_scopes(equation) if (stage := marks.stage(name)) is not None}
    if len(inner) > 1:
        raise ModelError(
            f"One operation ({equation.primitive.name}) spans the stages {sorted(inner)}: layers "
            "of several stages are called inside one loop, one jax.jit or one recomputed part. "
            "Put these layers on one stage, or call them outside of it."
        )
    return inner.pop() if inner else None


def _first_uses(graph: Graph, weights: set[Var], marked: Sequence[int | None]) -> Mapping[Var, int]:
    """Returns the first stage that uses each weight directly."""
    home: dict[Var, int] = {}
    for equation, stage in zip(graph.equations, marked, strict=True):
        if stage is not None:
            for var in variables(equation.invars):
                if var in weights:
                    home[var] = min(stage, home.get(var, stage))
    return home


def _only_weights(
    graph: Graph, inputs: Sequence[Var], follows: Mapping[Var, frozenset[Var]]
) -> frozenset[Var]:
    """Returns the weights that an equation follows from; none if it also takes other values."""
    if any(var not in follows and var not in graph.constants for var in inputs):
        return frozenset()
    return frozenset().union(*(follows[var] for var in inputs if var in follows))


def _check_order(
    equation: Equation,
    inputs: Sequence[Var],
    made_in: Mapping[Var, int],
    stage: int,
    marks: Marks,
) -> None:
    for var in inputs:
        if made_in.get(var, stage) > stage:
            raise ModelError(
                f"{marks.name(scope(equation))} on stage {stage} takes a value that stage "
                f"{made_in[var]} makes, and data only goes to later stages. Put it on stage "
                f"{made_in[var]} or later."
            )


def _with_first_uses(
    graph: Graph, stages: Sequence[int | None], last: int, state: Mapping[Var, Var]
) -> list[int]:
    """Puts equations that still have no stage where their results are first needed."""
    results = {var: last for var in variables(graph.outvars) if var not in state}
    used, _ = first_needs(graph, stages, results)
    renewed = {new: used.get(old, last) for new, old in state.items()}
    _, complete = first_needs(graph, stages, {**results, **renewed})
    return [last if stage is None else stage for stage in complete]
