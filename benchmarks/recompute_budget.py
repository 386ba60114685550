"""Five budgets for each of 24 families of models: is each kept, and at which cost?

Claim: no peak is above its budget, and none that could be kept is refused; a third of the memory
of the activations costs at most 25 % more FLOPs. The peers are plain training, and
`jax.checkpoint` around the whole model with each of JAX's policies.

    temporaries    of the program of a step, as a share of those of plain training
    activations    temporaries without the gradients of weights: measured where all gradients are
                   kept until the update, as plain training and `jax.checkpoint` keep them
    plan           seconds until the program runs, with all compilations, against those of the plain
                   one, or against 6.7 s if that is more

Families are measured side by side, each in a process of its own on one core.
"""

import math
import os
import time
from unittest import mock

import millrace  # isort: skip
import jax
import keras
import numpy as np

import harness
from families import FAMILIES
from millrace._compat.jax_executables import sizes_of
from millrace._compat.jaxpr import inlined, needed, trace
from millrace.programs.plan import Mode, Recompute
from millrace.programs.recomputation.costs import flops_of
from millrace.run.compiled_loop import one_replica
from millrace.run.compiled_loop.budget import OverBudgetError
from millrace.run.fit import functions

BUDGETS = (0.9, 0.8, 0.7, 0.6, 0.4)
CLAIM_FLOPS, CLAIM_SHARE = 1.25, 3.0
POLICIES = ("nothing_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable")


def main() -> None:
    """Prints every budget of every model, and the results of all."""
    options = harness.arguments(__doc__)
    harness.header(f"Budgets of recomputation, {len(BUDGETS)} for each model")
    names = [name for name in FAMILIES if options.only in name]
    if options.small:
        names = [name for name in names if name in ("mlp", "gru")] or names[:1]
    results = list(harness.side_by_side(measure, names))
    print()
    for line in summary(results):
        print(line)


def summary(results):
    """Returns the lines about all families, each with its claim."""
    budgets = len(results) * len(BUDGETS)
    refused = sum(len(result["refused"]) for result in results)
    reached = [result["third"] for result in results if math.isfinite(result["third"])]
    cheap = sum(flops <= CLAIM_FLOPS for flops in reached)
    return [
        f"peaks above their budget = {sum(r['over'] for r in results)}   claim <= 0",
        f"budgets kept, of {budgets} = {budgets - refused}",
        f"families with a third of the activations at {CLAIM_FLOPS}x the FLOPs or less = "
        f"{100 * cheap / len(results):.0f}%   claim >= 90%",
        *spread("FLOPs for a third of the activations / plain", reached),
        *spread("seconds to plan and compile / plain", [result["plan"] for result in results]),
        f"the longest of these = {max(r['plan'] for r in results):.2f}x   claim <= 3x",
        *spread(
            "activations / those of jax.checkpoint at as many FLOPs",
            [result["peer"] for result in results],
        ),
    ]


def spread(name: str, values):
    """Returns a line with the median and the spread over families; none without values."""
    if not values:
        return []
    middle, low, high = np.median(values), min(values), max(values)
    return [f"{name} = {middle:.2f}x ({low:.2f}-{high:.2f}, n={len(values)})"]


def prepared(name: str):
    """Returns a strategy, a compiled model and the specs of a batch."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    strategy = millrace.Strategy(devices=1)
    with strategy.scope():
        model, shapes = FAMILIES[name]()
    model.compile(keras.optimizers.SGD(0.01), "mse")
    x = [(shape, "float32") for shape in shapes]
    rows = shapes[0][0]
    outputs = model.outputs if hasattr(model, "outputs") and model.built else None
    if outputs is None or not outputs:
        y = [((rows, 1), "float32")]
    else:
        y = [((rows, *output.shape[1:]), "float32") for output in outputs]
    return strategy, model, (x if len(x) > 1 else x[0], y if len(y) > 1 else y[0])


def report_of(strategy, model, batch):
    """Returns the memory of training on a device, and the seconds that took."""
    begin = time.perf_counter()
    device = strategy.memory_report(model, batch).devices[0]
    return device, time.perf_counter() - begin


def measure(name: str) -> dict:
    """Tries all budgets on one model."""
    strategy, model, batch = prepared(name)
    plain, plain_seconds = report_of(strategy, model, batch)
    gradients = sum(4 * math.prod(v.shape) for v in model.trainable_variables)
    activations = plain.stages[0].temporaries - gradients
    print(
        f"{name}: plain peak {plain.peak / 2**20:.1f} MiB, activations "
        f"{activations / 2**20:.1f}, compiled in {plain_seconds:.1f} s",
        flush=True,
    )
    over, refused, slowest = 0, [], 0.0
    for share in BUDGETS:
        strategy, model, batch = prepared(name)
        model.set_recomputation_options(budget=share)
        begin = time.perf_counter()
        try:
            device, seconds = report_of(strategy, model, batch)
        except OverBudgetError as error:
            refused.append(share)
            print(f"    {share}: refused, the least is {error.least / plain.peak:.3f} of plain "
                  f"({time.perf_counter() - begin:.1f} s)", flush=True)  # fmt: skip
            continue
        slowest = max(slowest, seconds / max(plain_seconds, 20 / 3))
        over += device.peak > share * plain.peak
        (choice,) = strategy.statistics().budgets
        kept = device.stages[0].temporaries / plain.stages[0].temporaries
        print(
            f"    {share}: peak {device.peak / plain.peak:.3f}, temporaries {kept:.3f}, "
            f"FLOPs {1 + choice.extra_flops:.3f}x, {seconds:.1f} s",
            flush=True,
        )
    third, at_most = of_a_third(name, activations, gradients)
    peer = of_peers(name, at_most)
    return {"name": name, "over": over, "refused": refused, "third": third, "plan": slowest,
            "peer": peer}  # fmt: skip


def compiled_choice(name: str, number: int):
    """Returns the memory of a device under a choice, and all choices. Updates come last."""
    strategy, model, batch = prepared(name)
    chosen = Recompute(choice=number, is_trial=True)
    with (
        mock.patch.object(functions, "recompute_of", return_value=chosen),
        mock.patch.object(one_replica, "has_choice", return_value=False),  # updates wait
    ):
        model.set_recomputation_options()
        device, _ = report_of(strategy, model, batch)
    executables = model._millrace.functions.compiled[Mode.TRAIN]._chooser.executables
    return device, next(filter(None, executables._choices.values()))


def of_a_third(name: str, activations: int, gradients: int):
    """Returns the FLOPs of the first choice with a third of the activations, and a function.

    The function returns the activations of the first choice with at most some FLOPs.
    """
    peaks: dict[int, int] = {}

    def kept(number: int) -> int:
        if number not in peaks:
            peaks[number] = compiled_choice(name, number)[0].stages[0].temporaries - gradients
        return peaks[number]

    choices = compiled_choice(name, 1)[1]
    last = len(choices.choices) - 1
    low, high = 0, last + 1  # choice `low` keeps more than a third, `high` does not
    while high - low > 1:
        middle = (low + high) // 2
        fits = kept(middle) * CLAIM_SHARE <= activations
        low, high = (low, middle) if fits else (middle, high)
    flops = 1 + choices.extra(high) if high <= last else math.inf
    least = kept(last) / activations
    print(f"    a third of the activations: {flops:.3f}x the FLOPs; the least is {least:.3f}",
          flush=True)  # fmt: skip

    def at_most(more: float) -> float:
        number = max(k for k in range(last + 1) if 1 + choices.extra(k) <= more + 0.005)
        return kept(number) / activations if number else 1.0

    return flops, at_most


def of_peers(name: str, at_most) -> float:
    """Compares with `jax.checkpoint`: activations at as many FLOPs, the median of all policies."""
    _, model, batch = prepared(name)
    x, y = (part if isinstance(part, list) else [part] for part in batch)
    specs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in (*x, *y)]
    weights = [_spec(v) for v in model.trainable_variables]
    others = [_spec(v) for v in model.non_trainable_variables]

    def loss(weights, others, *arrays):
        inputs, targets = arrays[: len(x)], arrays[len(x) :]
        inputs = inputs if len(x) > 1 else inputs[0]
        outputs, new = model.stateless_call(weights, others, inputs, training=True)
        found = jax.tree.leaves(outputs)
        errors = [((a - b) ** 2).mean() for a, b in zip(found, targets, strict=True)]
        return sum(errors), new

    ratios, plain = [], None
    for policy in (None, *POLICIES):
        function = loss
        if policy is not None:
            rule = getattr(jax.checkpoint_policies, policy)
            function = jax.checkpoint(loss, policy=rule)
        gradient = jax.value_and_grad(function, has_aux=True)
        options = {"xla_disable_hlo_passes": "cse_barrier_expander"} if policy else {}
        compiled = jax.jit(gradient).lower(weights, others, *specs).compile(options)
        kept = sizes_of(compiled).temporary_bytes
        graph = needed(inlined(trace(gradient, weights, others, *specs)[0]))
        flops = sum(map(flops_of, graph.equations))
        plain = plain or (kept, flops)
        share, more = kept / plain[0], flops / plain[1]
        if policy is None:
            continue
        ours = at_most(more)
        print(f"    jax.checkpoint, {policy}: activations {share:.3f}, FLOPs {more:.3f}x; "
              f"here {ours:.3f}", flush=True)  # fmt: skip
        ratios.append(ours / share)
    return float(np.median(ratios))


def _spec(variable) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(variable.shape, variable.dtype)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
