"""Twenty budgets for three models: does each peak stay below, and at which cost?

Claim: no peak is above its budget, and a larger budget never means more FLOPs or a lower peak; a
third of the activation memory costs at most 20 % more FLOPs. The peer is plain training.

    choices   0      1      2      3   ...   n      compiled once each
    budgets   |..|..|..|..|..|..|..|..|..|..|       20, evenly from the least peak to that of 0
"""

import time
from itertools import pairwise

import millrace  # isort: skip
import keras
import numpy as np
from keras import layers

import harness
from millrace.compiled_loop.budget import find_choice
from millrace.fit import functions
from millrace.plan import Mode, Recompute

BUDGETS, CLAIM_FLOPS, CLAIM_SHARE = 20, 0.20, 3.0


def lstm():
    """One layer over 2048 steps."""
    return (
        keras.Sequential(
            [keras.Input((2048, 32)), layers.LSTM(256, use_cudnn=False), layers.Dense(1)]
        ),
        (64, 2048, 32),
    )


def resnet():
    """Images of 64 px."""
    model = keras.applications.ResNet50(
        weights=None, input_shape=(64, 64, 3), classes=1, classifier_activation=None
    )
    return model, (8, 64, 64, 3)


def transformer(blocks: int = 12, width: int = 128):
    """Blocks of attention and dense layers, with Dropout."""
    x = inputs = keras.Input((128, width))
    for _ in range(blocks):
        hidden = layers.LayerNormalization()(x)
        hidden = layers.MultiHeadAttention(4, width // 4)(hidden, hidden)
        x = x + layers.Dropout(0.1)(hidden)
        hidden = layers.Dense(4 * width, "gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dropout(0.1)(layers.Dense(width)(hidden))
    return keras.Model(inputs, layers.Dense(1)(layers.Flatten()(x))), (16, 128, width)


def small_transformer():
    """Two narrow blocks."""
    return transformer(2, 32)


def main() -> None:
    """Prints every choice of every model, and the results of the budgets."""
    options = harness.arguments(__doc__)
    harness.header(f"Budgets of recomputation, {BUDGETS} for each model")
    models = {"LSTM-2048": lstm, "ResNet50": resnet, "transformer-12": transformer}
    if options.small:
        models = {"transformer-2": small_transformer}
    lines = [line for name, build in models.items() if options.only in name
             for line in measure(name, build)]  # fmt: skip
    lines.append(planning(20 if options.small else 100))
    print()
    for line in lines:
        print(line)


def measure(name, build) -> list[str]:
    """Compiles all choices of one model, and tries the budgets on them."""
    strategy = millrace.Strategy(devices=1)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model, shape = build()
    model.compile(keras.optimizers.SGD(0.001), "mse")
    batch = (shape, "float32"), ((shape[0], 1), "float32")
    found, chain, number = [], None, 0
    while chain is None or number < len(chain.choices):
        recompute = Recompute(choice=number) if number else None
        functions.recompute_of = lambda *given, recompute=recompute: recompute
        model.set_recomputation_options()  # makes the next report build its programs again
        begin = time.perf_counter()
        device = strategy.memory_report(model, batch).devices[0]
        seconds = time.perf_counter() - begin
        function = model._millrace.functions.compiled[Mode.TRAIN]
        chain = next(filter(None, function._executables._chains.values()), chain)
        found.append(device)
        extra = chain.extra(number) if chain else 0.0
        print(
            f"  {name:<16} choice {number:>2}: peak {device.peak / 2**20:8.1f} MiB, temporary "
            f"{device.stages[0].temporaries / 2**20:8.1f}, FLOPs +{extra:6.1%}, {seconds:.1f} s"
        )
        number += 1
    return report(name, model, chain, found)


def report(name, model, chain, found) -> list[str]:
    """Returns the lines of one model."""
    peaks = [device.peak for device in found]
    predicted = [choice.peak_bytes for choice in chain.choices]
    budgets = np.linspace(min(peaks), peaks[0], BUDGETS).astype(int)
    chosen = [find_choice(predicted, int(b), None, peaks.__getitem__) for b in budgets]
    over = sum(peaks[k] > b for k, b in zip(chosen, budgets, strict=True))
    dearer = sum(later > earlier for earlier, later in pairwise(chosen))
    less = sum(peaks[later] < peaks[earlier] for earlier, later in pairwise(chosen))
    gradients = sum(4 * int(np.prod(v.shape)) for v in model.trainable_variables)
    activations = [d.stages[0].temporaries - gradients for d in found]
    third = [k for k, size in enumerate(activations) if size * CLAIM_SHARE <= activations[0]]
    cheapest = min((chain.extra(k) for k in third), default=float("nan"))
    return [
        f"{name}: peaks above their budget {over} of {BUDGETS}, steps to a larger budget that "
        f"cost more {dearer}, that took less memory {less}   claim 0, 0, 0",
        f"{name}: least peak / plain peak = {min(peaks) / peaks[0]:.3f}x",
        f"{name}: a third of the activation memory takes {1 + cheapest:.3f}x the FLOPs   "
        f"claim <= {1 + CLAIM_FLOPS:.2f}x",
    ]


def planning(depth: int) -> str:
    """Times the plan for a deep model, without the compiler."""
    strategy = millrace.Strategy(devices=1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((64,))])
        for _ in range(depth):
            model.add(layers.Dense(64, "tanh"))
    model.compile("sgd", "mse")
    spec = ((256, 64), "float32")
    functions.recompute_of = lambda *given: None
    strategy.memory_report(model, (spec, spec))
    plain = strategy.compile_log[-1].trace_seconds
    functions.recompute_of = lambda *given: Recompute(choice=3)
    model.set_recomputation_options()
    strategy.memory_report(model, (spec, spec))
    planned = strategy.compile_log[-1].trace_seconds
    return (
        f"{depth} layers: planned and traced in {planned:.1f} s, traced alone in {plain:.1f} s   "
        "claim <= 10 s"
    )


if __name__ == "__main__":
    main()
