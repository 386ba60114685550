import keras
import numpy as np
import pytest

import millrace
from millrace.api.own_loops.function import compile as compile_function
from millrace.api.own_loops.gradients import value_and_grad
from millrace.api.own_loops.repeat import repeat, while_loop
from millrace.errors import LoopError, ModelError, TapError
from millrace.layers import MaybeOutfeed, Outfeed
from millrace.programs.feeds.infeed_queue import InfeedQueue
from millrace.programs.taps.maybe_outfeed import MaybeOutfeedQueue
from millrace.programs.taps.outfeed_queue import OutfeedQueue

layers, optimizers = keras.layers, keras.optimizers
STEPS = 12
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((STEPS, 16, 8, 4), dtype=np.float32)
Y = RANDOM.integers(0, 3, (STEPS, 16), dtype=np.int32)


def crossentropy():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def dense():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((8, 4)),
            layers.Flatten(),
            layers.Dense(16, "relu", kernel_regularizer="l2"),
            layers.BatchNormalization(),
            layers.Dropout(0.3, seed=1),
            layers.Dense(3),
        ]
    )


def recurrent():
    keras.utils.set_random_seed(0)
    lstm = layers.LSTM(8, dropout=0.2, recurrent_dropout=0.2, seed=1)
    return keras.Sequential([keras.Input((8, 4)), lstm, layers.Dense(3)])


def functional():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 4))
    x = layers.Conv1D(4, 3, padding="same", activation="gelu")(inputs)
    x = layers.Add()([x, layers.LayerNormalization()(inputs)])
    x = layers.MultiHeadAttention(2, 4, dropout=0.1, seed=2)(x, x)
    return keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling1D()(x)))


CASES = {
    "adam": (dense, lambda: optimizers.Adam(1e-2)),
    "momentum and a schedule": (
        dense,
        lambda: optimizers.SGD(optimizers.schedules.CosineDecay(0.1, 10), momentum=0.9),
    ),
    "clipped, decayed and averaged": (
        dense,
        lambda: optimizers.AdamW(
            1e-2, global_clipnorm=0.5, use_ema=True, ema_overwrite_frequency=4
        ),
    ),
    "accumulating": (dense, lambda: optimizers.Adam(1e-2, gradient_accumulation_steps=3)),
    "scaled": (
        dense,
        lambda: optimizers.LossScaleOptimizer(optimizers.Adam(1e-2), dynamic_growth_steps=4),
    ),
    "recurrent": (recurrent, lambda: optimizers.RMSprop(1e-2)),
    "functional": (functional, lambda: optimizers.Adagrad(1e-1)),
}


SLOW = {"recurrent", "functional", "accumulating"}  # to compile


def train_with_keras(make, optimizer):
    model = make()
    model.compile(optimizer(), crossentropy(), metrics=["accuracy"])
    losses = []
    for x, y in zip(X, Y, strict=True):
        model.reset_metrics()
        losses.append(model.train_on_batch(x, y)[0])
    return model, losses


class Training:
    """The same in a loop of one's own."""

    def __init__(self, make, optimizer):
        self.model, self.optimizer = make(), optimizer()
        self.accuracy = keras.metrics.SparseCategoricalAccuracy()
        self.losses = OutfeedQueue()
        self._loss = crossentropy()

    def step(self, x, y):
        weights = self.model.trainable_variables

        def forward():
            predicted = self.model(x, training=True)
            loss = self._loss(y, predicted) + sum(self.model.losses)
            return self.optimizer.scale_loss(loss), loss, predicted

        (_, loss, predicted), gradients = value_and_grad(forward, weights)
        self.optimizer.apply(gradients, weights)
        self.accuracy.update_state(y, predicted)
        self.losses.enqueue(loss)


@pytest.mark.parametrize(
    ("case", "compiled"),
    [
        *(
            pytest.param(case, False, marks=pytest.mark.slow) if case in SLOW else (case, False)
            for case in CASES
        ),
        ("adam", True),
        ("scaled", True),
    ],
)
def test_it_is_the_training_of_keras(case, compiled):
    expected, losses = train_with_keras(*CASES[case])
    training = Training(*CASES[case])
    with InfeedQueue(list(zip(X, Y, strict=True))) as infeed:

        def loop(steps):
            repeat(steps, training.step, infeed=infeed)

        loop = compile_function(loop) if compiled else loop
        loop(5)
        loop(STEPS - 5)
    np.testing.assert_allclose(training.losses.dequeue(), losses, rtol=1e-6)
    for ours, theirs in zip(training.model.weights, expected.weights, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-6, atol=1e-7)
    for ours, theirs in zip(
        training.optimizer.variables, expected.optimizer.variables, strict=True
    ):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-7)
    assert 0 < training.accuracy.result() < 1


def test_it_is_the_epoch_of_fit():
    expected = dense()
    expected.compile(optimizers.Adam(1e-2), crossentropy(), metrics=["accuracy"])
    history = expected.fit(
        X.reshape(-1, 8, 4), Y.reshape(-1), batch_size=16, shuffle=False, verbose=0
    ).history
    training = Training(dense, lambda: optimizers.Adam(1e-2))
    with InfeedQueue(list(zip(X, Y, strict=True))) as infeed:
        repeat(STEPS, training.step, infeed=infeed)
    assert training.losses.dequeue().mean() == pytest.approx(history["loss"][0], rel=1e-6)
    assert float(training.accuracy.result()) == pytest.approx(history["accuracy"][0], rel=1e-6)


def test_layers_and_optimizers_that_are_not_built_yet():
    model = keras.Sequential([layers.Flatten(), layers.Dense(3)])
    optimizer, loss_of = optimizers.Adam(1e-2), crossentropy()

    def step(x, y):
        loss, gradients = value_and_grad(lambda: loss_of(y, model(x)), model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    with InfeedQueue(list(zip(X, Y, strict=True))) as infeed:
        last = repeat(STEPS, lambda _, x, y: step(x, y), inputs=0.0, infeed=infeed)
    assert model.built
    assert int(optimizer.iterations) == STEPS
    assert len(optimizer.variables) == 2 + 2 * 2
    assert np.isfinite(last)


def test_an_optimizer_that_cannot_be_built_while_it_is_traced():
    training = Training(dense, lambda: optimizers.Nadam(1e-2))
    with InfeedQueue(list(zip(X, Y, strict=True))) as infeed:
        with pytest.raises(ModelError, match=r"optimizer\.build\(model\.trainable_variables\)"):
            repeat(STEPS, training.step, infeed=infeed)
        infeed.close()
        training = Training(dense, lambda: optimizers.Nadam(1e-2))
        training.optimizer.build(training.model.trainable_variables)
        repeat(STEPS, training.step, infeed=infeed)
    assert int(training.optimizer.iterations) == STEPS


def test_mixed_precision():
    keras.config.set_dtype_policy("mixed_bfloat16")
    training = Training(dense, lambda: optimizers.Adam(1e-2))
    _, losses = train_with_keras(dense, lambda: optimizers.Adam(1e-2))
    with InfeedQueue(list(zip(X, Y, strict=True))) as infeed:
        repeat(STEPS, training.step, infeed=infeed)
    np.testing.assert_allclose(training.losses.dequeue()[0], losses[0], rtol=1e-2)
    assert all(v.dtype == "float32" for v in training.model.trainable_variables)


@pytest.mark.slow
def test_a_model_trained_in_a_loop_goes_on_in_fit(strategy):
    with strategy.scope():
        training = Training(dense, lambda: optimizers.Adam(1e-2))
        with InfeedQueue(list(zip(X, Y, strict=True))) as infeed:
            repeat(STEPS, training.step, infeed=infeed)
    model = training.model
    model.compile(optimizers.Adam(1e-2), crossentropy(), steps_per_execution=4)
    x, y = X.reshape(-1, 8, 4), Y.reshape(-1)
    before = model.evaluate(x, y, verbose=0)
    model.fit(x, y, epochs=3, verbose=0)
    assert model.evaluate(x, y, verbose=0) < before
    with InfeedQueue(list(zip(X, Y, strict=True))) as infeed:
        repeat(STEPS, training.step, infeed=infeed)
    assert int(training.optimizer.iterations) == 2 * STEPS


def test_a_weight_trained_until_the_loss_is_small():
    weight, optimizer = keras.Variable(0.0), optimizers.SGD(0.1)

    def body(loss):
        loss, gradients = value_and_grad(lambda: (weight - 3.0) ** 2, [weight])
        optimizer.apply(gradients, [weight])
        return loss

    loss = while_loop(lambda loss: loss > 1e-4, body, inputs=np.inf)
    assert loss <= 1e-4
    assert weight.numpy() == pytest.approx(3, abs=0.01)


def test_value_and_grad_outside_of_a_loop():
    weight, seen = keras.Variable(3.0), keras.Variable(0)

    def squared(factor, *, offset=0.0):
        seen.assign_add(1)
        return factor * weight**2 + offset

    loss, gradients = value_and_grad(squared, [weight], 2.0, offset=1.0)
    assert (float(loss), [float(g) for g in gradients]) == (19.0, [12.0])
    assert seen.numpy() == 1
    assert weight.numpy() == 3


def test_value_and_grad_returns_what_the_function_returns():
    weight = keras.Variable([1.0, 2.0])
    (loss, twice), gradients = value_and_grad(lambda: (keras.ops.sum(weight), 2 * weight), [weight])
    assert float(loss) == 3
    np.testing.assert_array_equal(twice, [2, 4])
    np.testing.assert_array_equal(gradients[0], [1, 1])
    with pytest.raises(LoopError, match=r"fn returned float32\[2\]. Return a scalar loss"):
        value_and_grad(lambda: 2 * weight, [weight])


def test_a_queue_takes_values_under_differentiation():
    queue, weight = OutfeedQueue(), keras.Variable(3.0)

    def loss():
        queue.enqueue(weight * 1)
        return weight**2

    repeat(2, lambda: (value_and_grad(loss, [weight]), None)[1])
    np.testing.assert_array_equal(queue.dequeue(), [3, 3])
    with pytest.raises(TapError, match="no program is being traced"):
        value_and_grad(loss, [weight])


def test_conditionals_of_keras_assign():
    even, odd = keras.Variable(0), keras.Variable(0)

    def body(i):
        keras.ops.cond(i % 2 == 0, lambda: even.assign_add(1), lambda: odd.assign_add(1))
        return i + 1

    repeat(5, body, inputs=0)
    assert (int(even.numpy()), int(odd.numpy())) == (3, 2)


@pytest.mark.slow
def test_a_model_of_several_devices_runs_on_the_first():
    strategy = millrace.Strategy(devices="cpu:2")
    with strategy.scope():
        training = Training(dense, lambda: optimizers.Adam(1e-2))
        training.model.compile(optimizers.Adam(1e-2), crossentropy())
        training.model.fit(X.reshape(-1, 8, 4), Y.reshape(-1), batch_size=16, verbose=0)
        with InfeedQueue(list(zip(X, Y, strict=True))) as infeed:
            repeat(STEPS, training.step, infeed=infeed)
    assert len(training.losses.dequeue()) == STEPS


def test_layers_that_enqueue_do_so_in_a_loop():
    queue, maybe = OutfeedQueue(), MaybeOutfeedQueue()
    model = keras.Sequential(
        [
            keras.Input((4,)),
            Outfeed(queue, name="inputs"),
            MaybeOutfeed(maybe, final_outfeed=True, name="too"),
            layers.Dense(1),
        ]
    )
    optimizer = optimizers.SGD(0.01)

    def step(x):
        weights = model.trainable_variables
        _, gradients = value_and_grad(lambda: keras.ops.mean(model(x) ** 2), weights)
        optimizer.apply(gradients, weights)

    with InfeedQueue(X[:, :, 0]) as infeed:
        repeat(STEPS, step, infeed=infeed)
    np.testing.assert_array_equal(queue.dequeue()["inputs"], X[:, :, 0])
    np.testing.assert_array_equal(maybe.maybe_dequeue()["too"], X[:, :, 0])
