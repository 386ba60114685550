"""Optimizers that look at whole matrices, layers or lists of weights train as in plain Keras.

Stages, replicas with shared state and parts of a batch divide an update; its numbers stay those of
the big batch. Optimizers that a version of Keras lacks are skipped.
"""

from dataclasses import replace

import cases
import keras
import numpy as np
import pytest
from against_keras import MORE_WAYS, WAYS, Subject, built, compare, train_plain, under_strategy
from keras import layers, optimizers

from case_marks import exhaustive, slow, with_marks
from millrace.api.checkpoints.variables import optimizer_facts

# Said of the function that chooses optimizers, which is written into checkpoints.
pytestmark = pytest.mark.filterwarnings("ignore:The object being serialized includes a `lambda`")

NEAR = cases.FLOAT32.rtol
ALL_WAYS = (*WAYS, *MORE_WAYS)
EPSILON = 1e-4  # see test_gradient_accumulation.py


def net():
    """All of its axes can be shared out by two replicas."""
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, "tanh", name="first"),
            layers.Dense(8, "tanh", name="second"),
            layers.Dense(2, name="last"),
        ],
        name="net",
    )


def data():
    x = cases.table(16)["x"]
    return {"x": x, "y": np.sin(x @ np.ones((6, 2), "float32"))}


def of_keras(name):
    """An optimizer that only some versions have."""
    found = getattr(optimizers, name, None)
    if found is None:
        pytest.skip(f"this Keras has no {name}")
    return found


def adam(rate=1e-2, **arguments):
    return optimizers.Adam(rate, epsilon=EPSILON, **arguments)


def several(default, by_layer, **arguments):
    """An optimizer for each layer."""
    by_path = {f".*{layer}/.*": optimizer for layer, optimizer in by_layer.items()}
    mapped = of_keras("OptimizerMap")(default, by_path)
    return of_keras("MultiOptimizer")(mapped, **arguments)


def three(**arguments):
    default = optimizers.SGD(0.05, momentum=0.9)
    return several(default, {"first": adam(), "last": optimizers.Lion(1e-3)}, **arguments)


def chosen_by_a_function():
    matrices, others = optimizers.Muon(1e-2), optimizers.SGD(0.05)
    return of_keras("MultiOptimizer")(lambda v: matrices if "kernel" in v.path else others)


def clipped_apart():
    """Each looks at the norm of its own gradients."""
    rate = optimizers.schedules.CosineDecay(1e-2, 5)
    first = optimizers.AdamW(rate, epsilon=EPSILON, global_clipnorm=0.05)
    return several(optimizers.SGD(0.05, global_clipnorm=0.1), {"first": first})


def scaled(optimizer):
    return optimizers.LossScaleOptimizer(optimizer, initial_scale=16.0, dynamic_growth_steps=2)


class ByLayer(optimizers.Adam):
    """A rate for each layer, in an optimizer of one's own."""

    def update_step(self, gradient, variable, learning_rate):
        factor = 0.1 if "first" in variable.path else 1.0
        super().update_step(gradient, variable, learning_rate * factor)


MAKE = {
    "several": three,
    "several-by-function": chosen_by_a_function,
    "several-clipped": clipped_apart,
    "several-averaged": lambda: several(
        optimizers.SGD(0.05), {"first": adam(use_ema=True, ema_momentum=0.8)}
    ),
    "several-factor": lambda: three(loss_scale_factor=8.0),
    "several-scaled": lambda: scaled(three()),
    "rates-by-layer": lambda: several(adam(), {"first": adam(1e-3)}),
    "rates-by-layer-of-ones-own": lambda: ByLayer(1e-2, epsilon=EPSILON),
    "schedule-free": lambda: of_keras("ScheduleFreeAdamW")(1e-2, epsilon=EPSILON, warmup_steps=3),
    "schedule-free-scaled": lambda: scaled(of_keras("ScheduleFreeAdamW")(1e-2, epsilon=EPSILON)),
    "muon": lambda: optimizers.Muon(1e-2, exclude_layers=["last"]),
    "muon-averaged": lambda: optimizers.Muon(1e-2, use_ema=True, ema_momentum=0.8),
    "muon-scaled": lambda: scaled(optimizers.Muon(1e-2)),
    "lion-scaled": lambda: scaled(optimizers.Lion(1e-3, weight_decay=0.1)),
    "adafactor-scaled": lambda: scaled(optimizers.Adafactor(1e-2)),
    "lamb-clipped": lambda: optimizers.Lamb(1e-2, epsilon=EPSILON, global_clipnorm=0.05),
    "lamb-scaled": lambda: scaled(optimizers.Lamb(1e-2, epsilon=EPSILON)),
    "clipped-scaled": lambda: scaled(optimizers.AdamW(1e-2, epsilon=EPSILON, global_clipnorm=0.05)),
}


def subject(make, **arguments):
    def compiled(**accumulation):
        return {"optimizer": make(), "loss": "mse"}

    return Subject("net", net, data, compiled, by_hand=True, **arguments)


SLOW = (
    "several-by-function",
    "several-clipped",
    "several-scaled",
    "schedule-free-scaled",
    "muon",
    "adafactor-scaled",
    "lamb-clipped",
)
OTHERS = [name for name in MAKE if name not in (*SLOW, "several")]


@pytest.mark.parametrize("name", with_marks(MAKE, slow=SLOW, exhaustive=OTHERS))
def test_trains_as_with_the_big_batch(name):
    ways = ("cut, sharded",) if name == "several" else ALL_WAYS
    for way, found in compare(subject(MAKE[name]), ways).items():
        assert max(found.losses, found.weights) < NEAR, way


def test_a_function_that_chooses_optimizers_resumes():
    """The optimizers in its closure have other names and rates in the program that resumes."""
    saved, now = chosen_by_a_function(), chosen_by_a_function()
    for variable in keras.Variable([[1.0]], name="kernel"), keras.Variable([1.0], name="bias"):
        now._optimizer_map(variable).learning_rate = 0.5
    assert optimizer_facts(now) == optimizer_facts(saved)


class Halves(keras.callbacks.Callback):
    """Halves the rate of each optimizer."""

    def on_epoch_begin(self, epoch, logs=None):
        for optimizer in self.model.optimizer.optimizers:
            optimizer.learning_rate = 0.5 * float(optimizer.learning_rate)


AVERAGED = {
    "one": lambda: adam(use_ema=True, ema_momentum=0.8),
    "scaled": lambda: scaled(adam(use_ema=True, ema_momentum=0.8)),
    "several": lambda: several(
        optimizers.SGD(0.05, use_ema=True, ema_momentum=0.8),
        {"first": adam(use_ema=True, ema_momentum=0.8)},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("on_epoch", [exhaustive(False), True])
@pytest.mark.parametrize("name", with_marks(AVERAGED, exhaustive=("one", "scaled")))
def test_averages_that_a_callback_swaps_in(name, on_epoch):
    def with_swap():
        swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=on_epoch)
        values = data()
        return {**values, "validation_data": tuple(values.values()), "callbacks": [swap]}

    swapped = replace(subject(AVERAGED[name]), data=with_swap, fit={"validation_batch_size": 8})
    for way, found in compare(swapped, ALL_WAYS[:-1]).items():
        assert max(found.losses, found.weights) < NEAR, way


@pytest.mark.parametrize("name", with_marks(AVERAGED, slow=("scaled", "several")))
def test_training_goes_on_after_averages_became_weights(name):
    of = subject(AVERAGED[name])
    models = [built(of), under_strategy(of, "one piece")]
    models[0].compile(**of.compile())
    histories = []
    for model in models:
        keras.utils.set_random_seed(1)
        fits = []
        for _ in range(2):
            fits.append(model.fit(**data(), batch_size=4, shuffle=False, verbose=0).history)
            if model is models[0]:  # whose next fit fails in plain Keras: arrays of their own
                for variable in model.optimizer.variables:
                    variable.assign(np.array(variable))
        histories.append([loss for fit in fits for loss in fit["loss"]])
    assert histories[1] == pytest.approx(histories[0], rel=1e-6)


@pytest.mark.slow
def test_a_callback_sets_the_rate_of_each_optimizer():
    halved = Subject(
        **{**vars(subject(three)), "data": lambda: {**data(), "callbacks": [Halves()]}}
    )
    kept = train_plain(subject(three))
    for way, found in compare(halved, ALL_WAYS[:-1]).items():
        assert max(found.losses, found.weights) < NEAR, way
    assert train_plain(halved).history != kept.history


TURNS = [["first"], ["second", "last"], []]  # what is frozen, in turn


def play(model, batch_size, make):
    """Returns losses of each turn; the optimizer is made anew for what it trains."""
    losses = []
    for frozen in TURNS:
        for layer in model.layers:
            layer.trainable = layer.name not in frozen
        model.compile(make(), "mse", steps_per_execution=model.steps_per_execution)
        history = model.fit(**data(), batch_size=batch_size, shuffle=False, verbose=0)
        losses += history.history["loss"]
    return losses


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", with_marks(ALL_WAYS[:-1], exhaustive=("replicas", "sharded", "cut"))
)
@pytest.mark.parametrize("make", [exhaustive(adam), three])
def test_layers_are_frozen_by_turns(make, way):
    model = under_strategy(subject(make), way)
    plain = keras.models.clone_model(model)
    plain.set_weights(model.get_weights())
    plain.compile(steps_per_execution=1)
    whole = 4 if way in ("one piece", "parts") else 8
    found, expected = play(model, 4, make), play(plain, whole, make)
    cases.assert_close(found, expected)
    cases.assert_close(model.get_weights(), plain.get_weights())


@pytest.mark.parametrize("way", ["cut", slow("one piece"), slow("sharded")])
def test_an_optimizer_does_not_get_other_weights_than_it_was_made_for(way):
    """Keras's own error, in stages, too: the optimizer has values for the layer that is frozen."""
    model = under_strategy(subject(adam), way)
    model.fit(**data(), batch_size=4, verbose=0)
    model.layers[0].trainable = False
    with pytest.raises(ValueError, match="4 whereas the optimizer was built with 6"):
        model.fit(**data(), batch_size=4, verbose=0)
