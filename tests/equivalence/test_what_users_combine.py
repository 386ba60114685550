"""What users of Keras do around `fit`: each scene gives the numbers of plain Keras.

A scene is given `build(layers=..., **compilation)`, which makes a compiled model, and returns
numbers. Three steps per execution divide none of its epochs.
"""

import contextlib

import jax
import keras
import numpy as np
import pytest
from keras import callbacks, layers, ops

from case_marks import with_marks

RTOL = ATOL = 2e-6
RANDOM = np.random.default_rng(2)
X = RANDOM.normal(size=(22, 3)).astype("float32")
Y = (X.sum(axis=1, keepdims=True) > 0).astype("float32")
DATA = {"batch_size": 4, "verbose": 0}


def stack():
    return [layers.Dense(3, "tanh", name="low"), layers.Dense(1, "sigmoid", name="top")]


def learning_rate_set_by_a_callback(build):
    class Halves(callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.optimizer.learning_rate = 0.1 / (epoch + 2)

    model = build()
    history = model.fit(X, Y, epochs=3, callbacks=[Halves()], **DATA).history
    return history, model.get_weights(), float(model.optimizer.learning_rate)


def layers_frozen_between_fits(build):
    model, found = build(), []
    for trainable in (True, False, True):
        model.get_layer("low").trainable = trainable
        model.compile("adam", "mse", steps_per_execution=model.steps_per_execution)
        found += [model.fit(X, Y, **DATA).history, model.get_weights()]
    return found


def layers_frozen_without_compiling(build):
    """Keras continues with the step that it has compiled; so do the weights that it trains."""
    model = build()
    model.get_layer("low").trainable = False
    before = model.get_layer("low").get_weights()
    history = model.fit(X, Y, epochs=2, **DATA).history
    return (
        history,
        model.get_weights(),
        [
            np.abs(a - b).max()
            for a, b in zip(before, model.get_layer("low").get_weights(), strict=True)
        ],
    )


def a_callback_that_stops(build):
    class Stops(callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch == 2

    model, found = build(), []
    for _ in range(2):  # the second fit starts anew
        found.append(model.fit(X, Y, epochs=9, callbacks=[Stops()], **DATA).history)
    return found, model.get_weights()


def epochs_that_go_on(build):
    model = build()
    histories = [
        model.fit(
            X, Y, initial_epoch=e, epochs=e + 2, validation_freq=2, validation_split=0.2, **DATA
        )
        for e in (0, 2)
    ]
    return [(h.history, h.epoch) for h in histories], model.get_weights()


def validation_at_chosen_epochs(build):
    model = build()
    valid = (X[:5], Y[:5], np.linspace(0, 1, 5))
    return model.fit(
        X,
        Y,
        epochs=4,
        validation_freq=[2, 3],
        validation_data=valid,
        validation_batch_size=2,
        **DATA,
    ).history


def class_weight_and_a_ragged_batch(build):
    model = build(weighted_metrics=["mae"])
    history = model.fit(X, Y, epochs=2, class_weight={0: 1.0, 1: 3.0}, **DATA).history
    return history, model.evaluate(X, Y, return_dict=True, **DATA)


def a_metric_with_state(build):
    area = keras.metrics.AUC(num_thresholds=8, name="area")
    model = build(metrics=[area, "accuracy"])
    history = model.fit(X, Y, epochs=2, validation_data=(X[:6], Y[:6]), **DATA).history
    return history, model.evaluate(X, Y, **DATA)


def fits_in_a_loop(build):
    model = build()
    return [model.fit(X[:n], Y[:n], **DATA).history for n in (22, 8, 22, 3)], model.get_weights()


def predictions_of_a_dict(build):
    model = build(two_inputs)
    x = {"a": X[:, :2], "b": X[:, 2:]}
    history = model.fit(x, Y, epochs=2, **DATA).history
    return history, model.predict(x, **DATA), model.predict_on_batch(x)


def two_inputs():
    entries = {"a": keras.Input((2,), name="a"), "b": keras.Input((1,), name="b")}
    return keras.Model(entries, layers.Dense(1)(layers.concatenate(list(entries.values()))))


def several_outputs(build):
    def outputs():
        entry = keras.Input((3,))
        hidden = layers.Dense(3, "tanh")(entry)
        return keras.Model(
            entry, {"p": layers.Dense(1, name="p")(hidden), "q": layers.Dense(2, name="q")(hidden)}
        )

    model = build(
        outputs,
        loss={"p": "mse", "q": "mae"},
        loss_weights={"p": 1.0, "q": 0.3},
        metrics={"q": ["mae"]},
    )
    y = {"p": Y, "q": np.tile(Y, 2)}
    history = model.fit(X, y, epochs=2, validation_split=0.25, **DATA).history
    return history, model.evaluate(X, y, return_dict=True, **DATA), model.predict(X, **DATA)


class Penalty(layers.Layer):
    def call(self, x):
        self.add_loss(1e-2 * ops.mean(ops.square(x)))
        return x


def losses_added_by_layers(build):
    model = build([layers.Dense(3, kernel_regularizer="l2"), Penalty(), layers.Dense(1)])
    return model.fit(X, Y, epochs=2, **DATA).history, model.evaluate(X, Y, **DATA)


class OwnStep(keras.Sequential):
    """By Keras's stateless interface."""

    def train_step(self, state, data):
        trainable, non_trainable, slots, metrics = state
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)

        def loss_of(trainable, non_trainable):
            y_pred, non_trainable = self.stateless_call(trainable, non_trainable, x, training=True)
            return ops.mean(ops.square(y_pred - y)), (y_pred, non_trainable)

        (loss, (_, non_trainable)), gradients = jax.value_and_grad(loss_of, has_aux=True)(
            trainable, non_trainable
        )
        trainable, slots = self.optimizer.stateless_apply(slots, gradients, trainable)
        return {"own": loss}, (trainable, non_trainable, slots, metrics)


def a_step_of_the_users_own(build):
    """Its logs are those of the last step, which no metric adds up."""
    model = build(lambda: OwnStep([keras.Input((3,)), *stack()]))
    return model.fit(X, Y, epochs=2, **DATA).history, model.get_weights()


class Forwards(keras.Sequential):
    """Steps that hand on what they are given."""

    def train_step(self, *args):
        return super().train_step(*args)

    def predict_step(self, *args):
        return super().predict_step(*args)


def steps_that_hand_on_their_arguments(build):
    model = build(lambda: Forwards([keras.Input((3,)), *stack()]))
    return model.fit(X, Y, **DATA).history, model.predict(X, **DATA)


def averaged_weights(build):
    model = build(optimizer=keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.8))
    swap = callbacks.SwapEMAWeights(swap_on_epoch=True)
    history = model.fit(X, Y, epochs=3, callbacks=[swap], validation_data=(X, Y), **DATA).history
    return history, model.get_weights()


def schedules_of_both_kinds(build):
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 12, warmup_target=0.2, warmup_steps=4)
    model = build(optimizer=keras.optimizers.SGD(schedule, momentum=0.9))
    by_hand = build(optimizer=keras.optimizers.SGD(0.1))
    slower = callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.7)
    plateau = callbacks.ReduceLROnPlateau("loss", 0.1, patience=1, min_delta=0.5)
    first = model.fit(X, Y, epochs=3, **DATA).history
    second = by_hand.fit(X, Y, epochs=3, callbacks=[slower, plateau], **DATA).history
    return first, second, model.get_weights()


def loss_scaling(build):
    wrapped = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**10)
    model = build(optimizer=wrapped)
    return model.fit(X, Y, epochs=2, **DATA).history, [np.asarray(v) for v in wrapped.variables]


def numbers_of_unusual_dtypes(build):
    model = build()
    x = (np.abs(X) * 20).astype("uint8")
    history = model.fit(x, Y > 0.5, **DATA).history
    return (
        history,
        model.predict(x.astype("int64"), **DATA),
        model.evaluate(x.astype("f2"), Y, **DATA),
    )


def weights_set_within_training(build):
    class Shrinks(callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.set_weights([0.5 * w for w in self.model.get_weights()])

    model = build()
    return model.fit(X, Y, epochs=3, callbacks=[Shrinks()], **DATA).history, model.get_weights()


def evaluations_within_training(build):
    class Evaluates(callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["extra"] = self.model.evaluate(X[:5], Y[:5], verbose=0)
            self.model.predict(X[:3], verbose=0)

    model = build()
    return model.fit(X, Y, epochs=3, callbacks=[Evaluates()], **DATA).history, model.get_weights()


def a_model_cut_out_of_a_trained_one(build):
    model = build()
    model.fit(X, Y, **DATA)
    inner = keras.Model(model.inputs[0], model.get_layer("low").output)
    return inner.predict(X, **DATA), inner(X[:2])


def clones_of_a_trained_model(build):
    model = build(optimizer=keras.optimizers.Adam(0.05))
    model.fit(X, Y, **DATA)
    copied = keras.models.clone_model(model)
    copied.set_weights(model.get_weights())
    copied.compile("sgd", "mse")
    return copied.fit(X, Y, **DATA).history, model.fit(X, Y, **DATA).history


def an_epoch_smaller_than_a_batch(build):
    model = build()
    found = model.fit(X[:2], Y[:2], batch_size=64, epochs=2, verbose=0).history
    return found, model.evaluate(X[:1], Y[:1], verbose=0), model.predict(X[:1], verbose=0)


def sample_weights_of_zero(build):
    model = build()
    weights = np.zeros(22, "float32")
    weights[3] = 2
    history = model.fit(X, Y, sample_weight=weights, epochs=2, **DATA).history
    return history, model.get_weights()


SCENES = [
    steps_that_hand_on_their_arguments,
    learning_rate_set_by_a_callback, layers_frozen_between_fits, layers_frozen_without_compiling,
    a_callback_that_stops, epochs_that_go_on, validation_at_chosen_epochs,
    class_weight_and_a_ragged_batch, a_metric_with_state, fits_in_a_loop, predictions_of_a_dict,
    several_outputs, losses_added_by_layers, a_step_of_the_users_own, averaged_weights,
    schedules_of_both_kinds, loss_scaling, numbers_of_unusual_dtypes, weights_set_within_training,
    evaluations_within_training, a_model_cut_out_of_a_trained_one,
    clones_of_a_trained_model, an_epoch_smaller_than_a_batch,
    sample_weights_of_zero,
]  # fmt: skip


def builder(strategy, steps):
    def build(of=stack, **compilation):
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            made = of() if callable(of) else of
            is_model = isinstance(made, keras.Model)
            model = made if is_model else keras.Sequential([keras.Input((3,)), *made])
        model.compile(
            **{"optimizer": "sgd", "loss": "mse", "steps_per_execution": steps} | compilation
        )
        return model

    return build


def run(scene, strategy, steps=1):
    keras.utils.set_random_seed(4)
    return jax.tree.map(np.asarray, scene(builder(strategy, steps)))


SLOW = (
    "steps_that_hand_on_their_arguments",
    "layers_frozen_between_fits",
    "class_weight_and_a_ragged_batch",
    "a_metric_with_state",
    "several_outputs",
    "numbers_of_unusual_dtypes",
    "clones_of_a_trained_model",
    "predictions_of_a_dict",
    "averaged_weights",
    "schedules_of_both_kinds",
    "loss_scaling",
)


@pytest.mark.parametrize("scene", with_marks(SCENES, slow=SLOW), ids=lambda scene: scene.__name__)
def test_scene(scene, strategy):
    expected = run(scene, None)
    found = run(scene, strategy, 3)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, RTOL, ATOL)
