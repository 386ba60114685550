"""The passes of one stage, as graphs: forward, backward, and the two halves of backward.

    forward          weights, state, batch, carried     -> sent, new state, results, residuals
    backward         weights, held, cotangents          -> cotangents, gradients
    backward_input   weights, held, cotangents          -> cotangents, kept
    backward_weight  weights, held, cotangents, kept    -> gradients

`held` are the arrays of a forward that its backward needs: inputs and outputs of the forward, and
the residuals, which only backward reads. Weights are never among them; backward takes the weights
themselves, which do not change before the update.

The halves are a partition of backward: the equations that its cotangents need, and all others. So
no product is computed twice, and both together take the FLOPs of backward (the split is that of
zero bubble, Qi et al. 2023, arXiv 2401.10241).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from millrace._compat.jaxpr import (
    Graph,
    Var,
    as_function,
    inlined,
    pruned,
    renamed,
    spec_of,
    trace,
    used,
    variables,
    with_effects,
)
from millrace.base.pytrees import Spec
from millrace.programs.plan import Recompute
from millrace.programs.recomputation.boundaries import (
    kernels_between_boundaries,
    without_boundaries,
)
from millrace.programs.recomputation.choices import Choices
from millrace.programs.recomputation.joint_graph import Run, joint_graph
from millrace.run.pipelines.programs.split import Arrays, Split, Stage

# Under choice k of a pipeline, the peak of each stage is at most this share to the power of k. All
# stages take the same k, so that a budget has one number to search for; of 16 choices the last is
# a hundredth of the first, and a binary search compiles five or six of them. A choice, not tuned.
STAGE_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class Passes:
    """All passes of one stage in training. Inputs and outputs of a graph are in order."""

    forward: Graph  # inputs of the stage -> sent, new state, results, residuals
    held: tuple[tuple[str, int], ...]  # ("batch" | "carried" | "sent" | "residual", index there)
    cotangents: tuple[tuple[int, int], ...]  # (number of a value, consumer that it comes from)
    returns: tuple[int, ...]  # numbers of the values whose cotangents the stage returns
    backward: Graph
    backward_input: Graph
    backward_weight: Graph
    weight_held: tuple[int, ...]  # indices into `held` of what backward_weight takes
    weight_cotangents: tuple[int, ...]  # indices into `cotangents` of what it takes


def make_passes(
    stage: Stage, split: Split, recompute: Recompute | None = None, platform: str = "cpu"
) -> Passes:
    """Differentiates one stage.

    Args:
        stage: of a step.
        split: the step.
        recompute: the segments of the forward that backward runs again; None: no segment.
        platform: for which the passes will be compiled.
    """
    learning = tuple(n for n in stage.carried if split.values[n].differentiable)
    answered = tuple(n for n in stage.sent if split.values[n].differentiable)
    # From the last consumer to the first, as a sum over the whole graph would meet them.
    cotangents = tuple(
        (number, consumer)
        for number in answered
        for consumer in reversed(split.values[number].consumers)
    )
    run = _forward(stage, learning, answered, recompute, platform)
    forward, num_results, pullback = _trace_forward(stage, run, learning, answered)
    outvars, residuals = forward.outvars[:num_results], forward.outvars[num_results:]
    whole, num_returned = _trace_backward(stage, split, pullback, answered, cotangents)
    received = whole.invars[len(residuals) :]
    # The residuals get their names in forward: so weights, inputs, and several residuals that are
    # one array can be told. Otherwise what is in memory anyway would be stored once more for each
    # micro-batch in flight.
    names = dict(zip(whole.invars, residuals, strict=False))
    whole = pruned(inlined(renamed(whole, names, forward.constants)))
    weights = forward.invars[: len(stage.trainable)]
    whole = _again_from_weights(whole, forward, weights)
    sources = _sources(stage, forward.invars, outvars)
    held: dict[Var, tuple[str, int]] = {}
    for var in whole.invars:
        if var not in weights and var not in received:
            residual = sum(source == "residual" for source, _ in held.values())
            held[var] = sources.get(var, ("residual", residual))
    # Cotangents come first, since earlier stages wait for them and nobody waits for gradients. The
    # weight half takes what the input half has computed instead of computing it again.
    first = used(whole, whole.outvars[:num_returned])
    computed = [var for equation in first.equations for var in equation.outvars]
    second = used(whole, whole.outvars[num_returned:], computed)
    kept = tuple(var for var in second.invars if var in set(computed))
    weight_held = tuple(k for k, var in enumerate(held) if var in second.invars)
    weight_cotangents = tuple(k for k, var in enumerate(received) if var in second.invars)
    only = [var for var, (source, _) in held.items() if source == "residual"]
    # The last stage, too, has forward and backward apart. One program for both could be used by
    # some schedules only, and schedules would differ in bits. Nor is it faster: of four tanh layers
    # of 512, a micro-batch took 8.87 ms in two programs and 9.14 ms in one.
    apart = {len(stage.sent)} if stage.has_loss else set()
    apart |= {len(outvars) - 1} if stage.has_share else set()
    results = [var for k, var in enumerate(outvars) if k not in apart]
    arguments = (*weights, *held, *received)
    # What prints does so in forward, though nothing may follow from it.
    needed = used(forward, (*results, *only), also=with_effects(forward))
    of_second = (
        *weights,
        *(list(held)[k] for k in weight_held),
        *(received[k] for k in weight_cotangents),
        *kept,
    )
    return Passes(
        forward=replace(needed, invars=forward.invars),
        held=tuple(held.values()),
        cotangents=cotangents,
        returns=learning,
        backward=replace(whole, invars=arguments),
        backward_input=replace(first, invars=arguments, outvars=(*first.outvars, *kept)),
        backward_weight=replace(second, invars=of_second),
        weight_held=weight_held,
        weight_cotangents=weight_cotangents,
    )


def _forward(
    stage: Stage,
    learning: Sequence[int],
    answered: Sequence[int],
    recompute: Recompute | None,
    platform: str,
) -> Run:
    """Returns the function of a stage's graph, with the recomputation of its backward."""
    graph, num_weights = stage.graph, len(stage.trainable)
    if recompute is None:
        return as_function(without_boundaries(graph))
    learned = {*range(num_weights), *_carried_inputs(stage, learning)}
    targets = set(_targets(stage, answered))
    learns = [index in learned for index in range(len(graph.invars))]
    is_answered = [index in targets for index in range(len(graph.outvars))]
    if recompute.choice is not None:
        choices = Choices(graph, learns, is_answered, platform)
        kernels = choices.kernels(choices.below(STAGE_SHARE**recompute.choice))
    else:
        kernels = kernels_between_boundaries(
            joint_graph(graph, learns, is_answered),
            num_weights,
            # Backward of the last stage follows its forward at once.
            keeps_last=stage.has_loss,
            is_whole=recompute.whole_stages,
        )
    return kernels.apart(learns, is_answered)


def _carried_inputs(stage: Stage, learning: Sequence[int]) -> list[int]:
    """Returns the indices of carried values among a stage's inputs."""
    first_carried = len(stage.graph.invars) - len(stage.carried)
    return [first_carried + stage.carried.index(number) for number in learning]


def _targets(stage: Stage, answered: Sequence[int]) -> list[int]:
    """Returns the indices of the differentiated values among a stage's results."""
    targets = [stage.sent.index(number) for number in answered]
    return [*targets, len(stage.sent)] if stage.has_loss else targets


class _Pullback(NamedTuple):
    """The function that turns cotangents of a stage into gradients, as JAX flattens it."""

    tree: jax.tree_util.PyTreeDef
    leaves: list[Spec]
    loss: list[Spec]  # of the stage, if it has one
    # The last leaf: the share of values that the loss counts, with which it is to be multiplied.
    has_share: bool


def _trace_forward(
    stage: Stage,
    run: Run,
    learning: Sequence[int],
    answered: Sequence[int],
) -> tuple[Graph, int, _Pullback]:
    """Returns forward, whose last results are the leaves of its pullback, with that pullback.

    The number is that of the results before these leaves.
    """
    num_weights = len(stage.trainable)
    indices, targets = _carried_inputs(stage, learning), _targets(stage, answered)
    tree: jax.tree_util.PyTreeDef | None = None

    def forward(*arguments: jax.Array) -> tuple[Arrays, Arrays]:
        def differentiable(weights: Arrays, carried: Arrays) -> tuple[Arrays, Arrays]:
            values = [*weights, *arguments[num_weights:]]
            for index, value in zip(indices, carried, strict=True):
                values[index] = value
            results = run(*values)
            return [results[k] for k in targets], results

        # The pullback is a tree of arrays: flattened, they can leave this trace as results, and
        # backward is traced from them by itself. So JAX differentiates, and nobody here does.
        nonlocal tree
        weights = list(arguments[:num_weights])
        carried = [arguments[index] for index in indices]
        _, pullback, results = jax.vjp(differentiable, weights, carried, has_aux=True)
        leaves, tree = jax.tree.flatten(pullback)
        return results, leaves + results[-1:] * stage.has_share

    graph, (results, leaves) = trace(forward, *map(spec_of, stage.graph.invars))
    loss = [results[len(stage.sent)]] if stage.has_loss else []
    assert tree is not None  # noqa: S101 - the trace has set it
    return graph, len(results), _Pullback(tree, leaves, loss, stage.has_share)


def _trace_backward(
    stage: Stage,
    split: Split,
    pullback: _Pullback,
    answered: Sequence[int],
    cotangents: Sequence[tuple[int, int]],
) -> tuple[Graph, int]:
    """Returns backward as a graph of the pullback's leaves and the cotangents."""

    def backward(leaves: Arrays, received: Arrays) -> tuple[Arrays, Arrays]:
        sums: dict[int, jax.Array] = {}
        for (number, _), cotangent in zip(cotangents, received, strict=True):
            sums[number] = sums[number] + cotangent if number in sums else cotangent
        targets = [sums[number] for number in answered]
        leaves, share = (leaves[:-1], leaves[-1:]) if pullback.has_share else (leaves, [])
        seeds = share or [jnp.ones(())]
        targets += [seeds[0].astype(spec.dtype) for spec in pullback.loss]
        gradients, returned = jax.tree.unflatten(pullback.tree, leaves)(targets)
        return returned, [*gradients, *share]

    received = [
        jax.ShapeDtypeStruct(split.values[number].shape, split.values[number].dtype)
        for number, _ in cotangents
    ]
    graph, (returned, _) = trace(backward, pullback.leaves, received)
    return graph, len(returned)


def _again_from_weights(whole: Graph, forward: Graph, weights: Sequence[Var]) -> Graph:
    """Moves values that follow from weights alone, such as their cast to bfloat16, into backward.

    As residuals they would be a copy of the weights for each micro-batch in flight.
    """
    # The weights are the same until the update, so backward gets the same values again, for the
    # price of a pass over the weights.
    follows = {*weights, *forward.constants}
    computed: set[Var] = set()
    for equation in forward.equations:
        if follows.issuperset(variables(equation.invars)):
            follows.update(equation.outvars)
            computed.update(equation.outvars)
    cheap = [var for var in whole.invars if var in computed]
    if not cheap:
        return whole
    prelude = used(forward, cheap)
    invars = dict.fromkeys((*(v for v in whole.invars if v not in set(cheap)), *prelude.invars))
    constants = {**prelude.constants, **whole.constants}
    return Graph(tuple(invars), whole.outvars, prelude.equations + whole.equations, constants)


def _sources(
    stage: Stage, invars: Sequence[Var], outvars: Sequence[Var | Literal]
) -> dict[Var, tuple[str, int]]:
    """Returns the name and index under which the runtime finds inputs and outputs of forward.

    The state is not among them: forward gives its memory to the new state.
    """
    sources: dict[Var, tuple[str, int]] = {}
    first_carried = len(invars) - len(stage.carried)
    first_batch = first_carried - len(stage.batch)
    for k, var in enumerate(outvars[: len(stage.sent)]):
        sources[var] = ("sent", k)
    for k, var in enumerate(invars[first_batch:first_carried]):
        sources[var] = ("batch", k)
    for k, var in enumerate(invars[first_carried:]):
        sources[var] = ("carried", k)
    return sources
