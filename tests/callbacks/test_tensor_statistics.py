"""Statistics of tensors, against the same numbers taken from plain Keras and NumPy."""

import jax
import keras
import numpy as np
import pytest
from keras import layers
from watching import assert_rows, built, column, data, eight, fit, mlp, names, plain, rows, watch


@pytest.mark.parametrize("steps_per_execution", [1, 7, 20])
def test_every_number_of_every_step(strategy, steps_per_execution):
    xy = data(23)
    reference = built()
    activations, _, updates = plain(reference, [r.output for r in reference.layers], xy=xy)
    model = strategy.attach(built(steps_per_execution=steps_per_execution))
    statistics = watch("*", "*")
    fit(model, statistics, xy)
    history = statistics.history
    assert names(history, "activation") == ["hidden", "middle", "out"]
    for place, name in enumerate(["hidden", "middle", "out"]):
        assert_rows(rows(history, "activation", name), [step[place] for step in activations])
    variables = ["hidden/kernel", "hidden/bias", "middle/kernel", "middle/bias", "out/kernel"]
    assert names(history, "gradient") == [*variables, "out/bias"]
    for place, name in enumerate(variables):
        assert_rows(rows(history, "gradient", name), [update[place] for update in updates])
    assert column(history, "step", "activation") == [s for s in range(23) for _ in range(3)]
    assert column(history, "update", "gradient") == [u for u in range(23) for _ in range(6)]


@pytest.mark.parametrize("when", ["before_apply", "after_compute"])
def test_accumulated_gradients(strategy, when):
    xy = data(8)
    _, gradients, updates = plain(reference := built(), reference.outputs, 4, xy)
    model = strategy.attach(built(steps_per_execution=8))
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=4)
    statistics = watch(gradients="hidden/*", when=when)
    fit(model, statistics, xy)
    history = statistics.history
    expected = gradients if when == "after_compute" else updates
    assert_rows(rows(history, name="hidden/kernel"), [values[0] for values in expected])
    assert_rows(rows(history, name="hidden/bias"), [values[1] for values in expected])
    numbers = range(8) if when == "after_compute" else [3, 7]
    assert column(history, "step") == [step for step in numbers for _ in range(2)]
    assert column(history, "update") == [step // 4 for step in numbers for _ in range(2)]


def test_a_layer_that_is_called_twice(strategy):
    def make():
        entry = keras.Input((5,))
        shared = layers.Dense(5, "tanh", name="shared")
        return keras.Model(entry, layers.Dense(1)(shared(shared(entry))))

    reference = built(make)
    shared = reference.get_layer("shared")
    first = shared(reference.inputs[0])
    activations, _, _ = plain(reference, [first, shared(first)])
    statistics = watch("shared")
    fit(strategy.attach(built(make)), statistics)
    assert names(statistics.history, "activation") == ["shared", "shared#1"]
    for place, name in enumerate(["shared", "shared#1"]):
        assert_rows(rows(statistics.history, name=name), [step[place] for step in activations])


def test_a_layer_with_several_outputs(strategy):
    class Both(layers.Layer):
        def call(self, x):
            return {"a": x + 1, "b": keras.ops.cast(x > 0, "int32"), "c": 2 * x}

    def make():
        entry = keras.Input((5,))
        both = Both(name="both")(entry)
        return keras.Model(entry, layers.Dense(1)(both["a"] + both["c"]))

    statistics = watch("both")
    fit(strategy.attach(built(make)), statistics)
    x, _ = data()
    assert names(statistics.history, "activation") == ["both", "both:1"]  # no statistics of ints
    assert_rows(
        rows(statistics.history, name="both:1"), [2 * x[k : k + 4] for k in range(0, 24, 4)]
    )


def convnet():
    return keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            layers.Conv2D(2, 3, activation="relu", name="conv"),
            layers.Flatten(),
            layers.Dense(1, name="out"),
        ]
    )


@pytest.mark.slow
def test_convolutions_which_run_unrolled_on_cpu(strategy):
    xy = data(11, (6, 6, 1))
    reference = built(convnet)
    outputs = [reference.get_layer("conv").output]
    activations, _, updates = plain(reference, outputs, xy=xy)
    statistics = watch("conv", "conv/kernel")
    fit(strategy.attach(built(convnet, steps_per_execution=11)), statistics, xy)
    assert any(record.unrolled for record in strategy.compile_log)
    assert_rows(rows(statistics.history, "activation"), [step[0] for step in activations])
    assert_rows(rows(statistics.history, "gradient"), [update[0] for update in updates])


@pytest.mark.parametrize("when", ["before_apply", "after_compute"])
@pytest.mark.parametrize(
    ("policy", "factor"), [("mixed_bfloat16", None), ("mixed_float16", None), ("float32", 64.0)]
)
def test_mixed_precision_and_scaled_losses(strategy, policy, factor, when):
    keras.config.set_dtype_policy(policy)
    optimizer = keras.optimizers.SGD(0.1, loss_scale_factor=factor)
    before = built().get_weights()
    x, y = data(1)
    hidden = np.asarray(built().get_layer("hidden")(x)).astype("float32")
    model = strategy.attach(built(optimizer=optimizer))
    statistics = watch("hidden", "hidden/kernel", when)
    fit(model, statistics, (x, y))
    history = statistics.history
    assert_rows(rows(history, "activation"), [hidden])
    # Of the loss itself, not of one that an optimizer has scaled: what a step of SGD has changed.
    gradient = (before[0] - model.get_weights()[0]) / 0.1
    mean, std, *_ = eight(gradient)
    found = rows(history, "gradient")[0]
    assert found[:2] == pytest.approx([mean, std], rel=1e-3, abs=1e-5)
    assert found[4] == pytest.approx(np.linalg.norm(gradient), rel=1e-3)


def test_zeros_of_a_relu(strategy):
    statistics = watch("*")
    fit(strategy.attach(built()), statistics)
    zeros = {name: rows(statistics.history, name=name)[:, 5] for name in ("hidden", "out")}
    assert (zeros["hidden"] > 0).all()
    assert (zeros["out"] == 0).all()


def test_nans_and_infinities_are_counted(strategy):
    x, y = data(2)
    x[0, :2], x[1, 0] = np.nan, np.inf
    x[5, 1] = -np.inf
    model = keras.Sequential(
        [keras.Input((5,)), layers.Activation("linear", name="same"), layers.Dense(1)]
    )
    model.compile(keras.optimizers.SGD(0.0), "mse")
    statistics = watch("same")
    fit(strategy.attach(model), statistics, (x, y))
    assert column(statistics.history, "nans") == [2, 0]
    assert column(statistics.history, "infs") == [1, 1]
    assert np.isnan(statistics.history["mean"][0])
    assert statistics.history["min"][1] == -np.inf


def recomputing(mode):
    with keras.RematScope(mode=mode):
        return mlp()


@pytest.mark.parametrize("mode", ["full", "activations"])
def test_recomputed_layers_count_once(strategy, mode):
    """Forward of such a layer runs again in the backward pass."""
    reference = built()
    activations, _, _ = plain(reference, [layer.output for layer in reference.layers])
    model = strategy.attach(built(lambda: recomputing(mode), steps_per_execution=6))
    statistics = watch("*")
    fit(model, statistics)
    for place, name in enumerate(["hidden", "middle", "out"]):
        assert_rows(rows(statistics.history, name=name), [step[place] for step in activations])


def test_each_micro_batch_counts_where_a_callback_of_jax_is_dropped(strategy):
    """JAX issue 16637: a callback in a differentiated loop of five runs once."""
    calls = []

    def seen_by_jax(x):
        def turn(carry, _):
            jax.debug.callback(lambda value: calls.append(float(value)), x)
            return carry * x, None

        return jax.lax.scan(turn, x, None, length=5)[0]

    jax.jit(jax.grad(seen_by_jax))(2.0).block_until_ready()
    jax.effects_barrier()
    model = strategy.attach(built(steps_per_execution=5))
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=5)
    statistics = watch("out")
    fit(model, statistics, data(5))
    assert (len(calls), len(statistics.history["step"])) == (1, 5)


@pytest.mark.parametrize("steps_per_execution", [1, 8])
def test_every_third_update(strategy, steps_per_execution):
    xy = data(8)
    reference = built()
    activations, _, updates = plain(reference, reference.outputs, xy=xy)
    statistics = watch("out", "out/kernel", every=3)
    fit(strategy.attach(built(steps_per_execution=steps_per_execution)), statistics, xy)
    history = statistics.history
    assert column(history, "step") == [0, 0, 3, 3, 6, 6]
    assert_rows(rows(history, "activation"), [activations[k][0] for k in (0, 3, 6)])
    assert_rows(rows(history, "gradient"), [updates[k][4] for k in (0, 3, 6)])


def test_validation_is_not_training(strategy):
    model = strategy.attach(built(steps_per_execution=6))
    statistics = watch("out", "out/bias")
    fit(model, statistics, epochs=2, validation_data=data(3), validation_batch_size=4)
    assert column(statistics.history, "step", "activation") == list(range(12))
    assert column(statistics.history, "step", "gradient") == list(range(12))


def test_weights_are_the_same_bit_by_bit(strategy):
    fit(alone := strategy.attach(built(optimizer="adam", steps_per_execution=6)), epochs=3)
    model = strategy.attach(built(optimizer="adam", steps_per_execution=6))
    fit(model, watch("*", "*"), epochs=3)
    for value, expected in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_without_it_programs_are_those_of_a_model_never_watched(
    strategy, compiled_texts, accumulation
):
    def make():
        model = strategy.attach(built(steps_per_execution=6))
        model.set_gradient_accumulation_options(
            gradient_accumulation_steps_per_replica=accumulation
        )
        return model

    fit(make())
    never = list(compiled_texts)
    model = make()
    fit(model, statistics := watch("*", "*"))
    compiled_texts.clear()
    fit(model)
    assert compiled_texts == never
    fit(model, statistics)
    fit(model)
    assert len(compiled_texts) == len(never)  # both are kept


def test_a_failed_fit_leaves_nothing_behind(strategy, compiled_texts):
    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                raise RuntimeError("in the third step")

    model = strategy.attach(built())
    fit(model)
    compiled_texts.clear()
    statistics = watch("out", "out/bias")
    x, y = data()
    with pytest.raises(RuntimeError, match="in the third step"):
        model.fit(x, y, batch_size=4, verbose=0, callbacks=[statistics, Fails()])
    assert column(statistics.history, "step", "activation") == [0, 1, 2]
    watched = len(compiled_texts)
    fit(model)
    assert len(compiled_texts) == watched  # it runs what it ran before
    assert len(statistics.history["step"]) == 6
    fit(model, statistics)
    assert column(statistics.history, "step", "activation") == list(range(9))
    assert column(statistics.history, "update", "gradient") == list(range(9))


def test_with_callbacks_for_every_step(strategy):
    model = strategy.attach(built(steps_per_execution=6))
    model.set_asynchronous_callbacks(True)
    statistics = watch("out", "out/bias")
    fit(model, statistics, epochs=2)
    assert column(statistics.history, "step", "activation") == list(range(12))
