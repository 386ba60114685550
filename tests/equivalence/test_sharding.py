"""Replicas that share out what each would hold whole: the same numbers, in a part of the memory."""

import functools

import cases
import keras
import numpy as np
import pipeline_cases as pipes
import pytest
import replica_cases as replicas
from keras import layers
from replica_cases import EPSILON, REPLICAS, STEPS, momentum

import millrace

pytestmark = pytest.mark.slow

STATE = {"replicated_optimizer_state_sharding": True}
WEIGHTS = {"replicated_weight_sharding": True}
BOTH = {**STATE, **WEIGHTS}
SHARDINGS = {"state": STATE, "weights": WEIGHTS, "both": BOTH}


def wide():
    """All of its axes are multiples of eight."""
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(32, "tanh"),
            layers.Dropout(0.2),
            layers.Dense(16, "tanh"),
            layers.Dense(8),
        ]
    )


def eight_numbers(rows):
    x = cases.table(rows)["x"]
    return {"x": x, "y": np.sin(x @ np.ones((6, 8), "float32"))}


def regression(make):
    return cases.binary(optimizer=make, loss="mse", metrics=None)


def adam():
    return keras.optimizers.Adam(1e-2, epsilon=EPSILON)


def loss_scaled():
    return keras.optimizers.LossScaleOptimizer(adam(), initial_scale=16.0, dynamic_growth_steps=2)


OPTIMIZERS = {
    "adam": adam,
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "global-clipnorm": lambda: keras.optimizers.Adam(1e-2, epsilon=EPSILON, global_clipnorm=0.1),
    "clipnorm": lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.1),
    "ema": lambda: keras.optimizers.SGD(
        0.1, momentum=0.9, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2
    ),
    "muon": lambda: keras.optimizers.Muon(1e-2),
    "lamb": lambda: keras.optimizers.Lamb(1e-2, epsilon=EPSILON),
    "adafactor": lambda: keras.optimizers.Adafactor(1e-2),
    "loss-scaling": loss_scaled,
}
WIDE = {
    name: cases.Case(name, wide, eight_numbers, 38, regression(make))
    for name, make in OPTIMIZERS.items()
}


@functools.cache
def unsharded(case, number=REPLICAS, steps=STEPS):
    return pipes.fit(case, replicas.replicated(case, number, steps))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_update_shares_as_they_update_the_whole(name):
    """Clipping, loss scales and matrix optimizers look at more than a share."""
    model = replicas.replicated(WIDE[name], replication=BOTH)
    cases.assert_same(pipes.fit(WIDE[name], model), unsharded(WIDE[name]))


def assert_shares(variables, number):
    """Asserts that no device holds more than its share, and the devices together hold all."""
    held = replicas.bytes_on_each_device(variables)
    whole = sum(variable.value.nbytes for variable in variables)
    assert len(held) == number
    assert whole <= sum(held.values())
    assert max(held.values()) <= whole / number * 1.05


@pytest.mark.parametrize(
    ("number", "sharding"),
    [(number, name) for number in (2, 8) for name in SHARDINGS],
)
def test_each_device_holds_its_share(number, sharding):
    case, options = WIDE["adam"], SHARDINGS[sharding]
    model = replicas.replicated(case, number, 1, replication=options)
    cases.assert_same(pipes.fit(case, model), unsharded(case, number, 1))
    if options.get("replicated_optimizer_state_sharding"):
        assert_shares(model.optimizer.variables, number)
    if options.get("replicated_weight_sharding"):
        assert_shares(model.trainable_variables, number)


@pytest.mark.parametrize("number", [3, 5, 4])
@pytest.mark.exhaustive
def test_axes_that_replicas_do_not_divide(number):
    """Hidden layers of 8 and 1 on four replicas, which leave a vector of one number whole."""
    case = cases.Case("odd", rows=38, compile=regression(adam))
    model = replicas.replicated(case, number, 1, replication=BOTH)
    cases.assert_same(pipes.fit(case, model), unsharded(case, number, 1))


def frozen():
    model = cases.normalized()
    model.layers[0].trainable = False
    return model


MODELS = {
    "normalized": cases.Case("normalized", cases.normalized, rows=cases.RAGGED, compile=momentum),
    "frozen": cases.Case("frozen", frozen, compile=momentum),
    "tied": cases.Case("tied", pipes.tied_dense, compile=momentum),
    "embedding": cases.Case(
        "embedding", pipes.tied_embedding, pipes.next_words, compile=pipes.word_scores
    ),
    "convnet": cases.Case("convnet", cases.convnet, cases.images, compile=cases.three_classes),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    case = MODELS[name]
    model = replicas.replicated(case, replication=BOTH)
    cases.assert_same(pipes.fit(case, model), unsharded(case))


@pytest.mark.exhaustive
def test_fit_with_validation_evaluate_and_predict():
    case = cases.Case("run", wide, eight_numbers, cases.RAGGED, regression(adam))
    found = pipes.run(case, replicas.replicated(case, replication=BOTH))
    expected = pipes.run(case, replicas.replicated(case))
    pipes.assert_same_runs(found, expected, cases.FLOAT32)


@pytest.mark.exhaustive
def test_single_batches_and_callbacks():
    class Halves(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.set_weights([0.5 * weight for weight in self.model.get_weights()])

    case = cases.Case("halves", rows=38, compile=regression(adam))
    outcomes = []
    for options in (BOTH, {}):
        model = replicas.replicated(case, replication=options)
        pipes.fit(case, model, callbacks=[Halves()])
        model.optimizer.learning_rate = 0.02
        logs = model.train_on_batch(*case.data(4).values(), return_dict=True)
        outcomes.append((logs, [value for _, value in cases.variables_of(model)]))
    cases.assert_close(*outcomes)


@pytest.mark.exhaustive
def test_the_sharding_changes_between_fits():
    case = WIDE["adam"]
    model, reference = replicas.replicated(case), replicas.replicated(case)
    for options in (STATE, BOTH, dict.fromkeys(BOTH, False)):
        model.set_replication_options(**options)
        cases.assert_same(pipes.fit(case, model), pipes.fit(case, reference))
    replicas.assert_copies_agree(model, REPLICAS)


@pytest.mark.exhaustive
def test_a_trained_model_is_a_keras_model_like_any_other(tmp_path):
    case = WIDE["adam"]
    model = replicas.replicated(case, replication=BOTH)
    pipes.fit(case, model)
    x, expected = case.data(8)["x"], unsharded(case).model
    cases.assert_close(np.array(model(x)), np.array(expected(x)))
    cases.assert_close(model.get_weights(), expected.get_weights())
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    stock = keras.models.load_model(tmp_path / "model.keras")
    cases.assert_close(stock.predict(x, verbose=0), np.array(expected(x)))
    with pipes.strategy(REPLICAS).scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    pipes.fit(case, loaded)
    assert_shares(loaded.optimizer.variables, REPLICAS)
    assert_shares(loaded.trainable_variables, REPLICAS)
    loaded.load_weights(tmp_path / "model.weights.h5")
    cases.assert_close(loaded.get_weights(), expected.get_weights())


PIPELINE = cases.Case("pipeline", wide, eight_numbers, 38, regression(adam))


@pytest.mark.parametrize("setter", ["replication", "pipelining"])
def test_pipelines_share_out_each_stage(setter):
    options = {"replication": BOTH} if setter == "replication" else BOTH
    model = replicas.pipelined(PIPELINE, **options)
    found, laid = replicas.fit_and_watch(PIPELINE, model, REPLICAS)
    cases.assert_same(found, unsharded(PIPELINE))
    for devices in ((0, 2), (1, 3)):  # of each stage
        stage = [each for each in laid if each.devices == devices]
        whole = sum(each.whole for each in stage)
        assert whole > 0
        assert sum(each.held for each in stage) <= whole / REPLICAS * 1.05


@pytest.mark.parametrize("name", ["global-clipnorm", "ema", "muon", "loss-scaling"])
@pytest.mark.exhaustive
def test_optimizers_of_pipelines(name):
    model = replicas.pipelined(WIDE[name], replication=BOTH)
    cases.assert_same(pipes.fit(WIDE[name], model), unsharded(WIDE[name]))


@pytest.mark.exhaustive
@pytest.mark.parametrize("sharding", ["state", "weights"])
@pytest.mark.parametrize("schedule", ["gpipe", "sequential", "zero_bubble"])
def test_schedules_of_pipelines(schedule, sharding):
    model = replicas.pipelined(
        PIPELINE, replication=SHARDINGS[sharding], pipeline_schedule=schedule
    )
    cases.assert_same(pipes.fit(PIPELINE, model), unsharded(PIPELINE))


@pytest.mark.exhaustive
@pytest.mark.parametrize("mapping", [[0, 1, 0], [0, 1, 2]])
def test_tied_weights_of_pipelines(mapping):
    case = MODELS["tied"]
    model = replicas.pipelined(
        case, REPLICAS, pipes.TIED_DENSE, device_mapping=mapping, replication=BOTH
    )
    cases.assert_same(pipes.fit(case, model), unsharded(case))


@pytest.mark.parametrize("sharding", ["state", "both"])
def test_gradients_cross_replicas_once_per_update(monkeypatch, sharding):
    """A share of the sum goes to each replica, and the new weights come back from it."""

    def exchanges(steps):
        case = cases.Case("exchanges", wide, eight_numbers, 8 * steps, regression(adam))
        strategy = millrace.Strategy(devices=4)
        model = cases.compiled(case, strategy, 4 * steps)
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=steps)
        model.set_replication_options(**SHARDINGS[sharding])
        with monkeypatch.context() as patch:
            programs = replicas.watch_programs(patch, strategy)
            pipes.fit(case, model, epochs=1, batch_size=2)
        return {name: replicas.collectives(text) for name, text in programs()}

    few, many = exchanges(1), exchanges(8)
    assert few == many
    (found,) = many.values()
    assert max(depth for _, depth in found) <= 1
