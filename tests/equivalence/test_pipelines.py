"""Pipelines against plain Keras, and against the same accumulation in one piece."""

import dataclasses
import functools
import tempfile

import cases
import keras
import numpy as np
import pipeline_cases as pipes
import pytest
from keras import layers

from case_marks import exhaustive, slow, slow_but_for, with_marks
from millrace.errors import ModelError

# Cut evenly where nothing else is said. `nested` calls an inner model twice, whose statistics must
# change at one stage only.
CUTS = {"nested": {2: [0, 0, 0, 0, 0, 1, 1], 3: [0, 1, 1, 1, 1, 2, 2]}}
ONE_STEP = ("own-train-step", "own-test-step")  # refused: see below
# A bias of the keys of attention has a gradient of zero. Adam divides what rounding leaves of it.
MODELS = [
    dataclasses.replace(case, compile=cases.regression_by_sgd) if case.name == "attention" else case
    for case in cases.MODELS
    if case.name not in ONE_STEP
]
momentum = cases.optimizer("SGD", 0.1, momentum=0.9)
TWO_LAYERS = ("deferred", "sequential", "lstm", "stateful-lstm", "regularizers-constraints")


@functools.cache
def plain(case):
    return pipes.run(case, pipes.plain(case))


@pytest.mark.parametrize(
    "case",
    slow_but_for(MODELS, "sequential", "add-loss", "own-compute-loss"),
    ids=lambda case: case.name,
)
def test_two_stages_with_updates_of_one_step_are_plain_keras(case):
    model = pipes.pipelined(case, CUTS.get(case.name, {}).get(2, 2), steps=1, executed=3)
    pipes.assert_same_runs(pipes.run(case, model), plain(case), case.tolerance)


@pytest.mark.parametrize(
    "case",
    slow_but_for(MODELS, "sequential", "regularizers-constraints", "add-loss"),
    ids=lambda case: case.name,
)
def test_stages_accumulate_as_the_model_in_one_piece(case):
    stages = 2 if case.name in TWO_LAYERS else 3
    model = pipes.pipelined(case, CUTS.get(case.name, {}).get(stages, stages), steps=4, executed=1)
    found = pipes.fit(case, model)
    expected = pipes.fit(case, pipes.accumulated(case, steps=4, executed=1))
    cases.assert_same(found, expected, case.tolerance)


@pytest.mark.slow
def test_a_stage_of_layers_that_only_training_runs():
    """Dropout does nothing in evaluate and predict, so its stage has nothing to run there."""
    case = cases.Case("dropout", pipes.dropouts, compile=momentum)
    model = pipes.pipelined(case, [0, 0, 1, 2, 2, 2], steps=1)
    pipes.assert_same_runs(
        pipes.run(case, model), pipes.run(case, pipes.plain(case)), cases.FLOAT32
    )


def test_a_train_step_of_ones_own_is_cut():
    case = cases.Case("own", cases.of(cases.OwnTrainStep))
    found = pipes.fit(case, pipes.pipelined(case, steps=1))
    cases.assert_same(found, pipes.fit(case, pipes.plain(case)))


def test_a_test_step_of_ones_own_is_refused_by_evaluate_only():
    case = cases.Case("own", cases.of(cases.OwnTestStep))
    model = pipes.pipelined(case, steps=1)
    found = pipes.fit(case, model)
    cases.assert_same(found, pipes.fit(case, pipes.plain(case)))
    with pytest.raises(ModelError, match=r"overrides test_step.*reset_pipeline_stage_assignment"):
        model.evaluate(**case.data(8), verbose=0)


def test_statistics_that_two_stages_would_change_are_refused():
    case = cases.Case("nested", cases.nested)
    model = pipes.pipelined(case, [0, 0, 0, 1, 1, 1, 1])
    with pytest.raises(ModelError, match=r"batch_normalization.*stages \[0, 1\].*on one stage"):
        pipes.fit(case, model)


def test_a_dropout_that_two_stages_call_is_refused():
    def build():
        dropout = layers.Dropout(0.2, name="drop")
        inputs = keras.Input((6,))
        hidden = dropout(layers.Dense(6)(inputs))
        return keras.Model(inputs, layers.Dense(1, "sigmoid")(dropout(layers.Dense(6)(hidden))))

    case = cases.Case("dropout", build)
    with pytest.raises(ModelError, match=r"seed.*'drop'.*stages \[0, 1\].*layer of its own"):
        pipes.fit(case, pipes.pipelined(case, [0, 0, 1, 1, 1]))


EPSILON = 1e-4  # see test_gradient_accumulation.py

# Of four stages, on devices 0 to 3 unless a mapping says otherwise.
FOUR = [0, 1, 1, 2, 2, 3]


def one_ahead(stages, steps):
    """A schedule of the user's own: each stage is one forward ahead of its backwards."""
    middle = [f"{{s}}F{m} {{s}}B{m - 1}" for m in range(1, steps)]
    row = " ".join(["{s}F0", *middle, f"{{s}}B{steps - 1}"])
    return [row.format(s=stage) for stage in range(stages)]


ORDERS = {
    "gpipe": {"pipeline_schedule": "gpipe", "device_mapping": [2, 0, 3, 1]},
    "grouped": {"pipeline_schedule": "grouped", "device_mapping": [0, 0, 0, 0]},
    "sequential": {"pipeline_schedule": "sequential", "device_mapping": [6, 1, 1, 4]},
    "looped": {"pipeline_schedule": "looped", "device_mapping": [0, 1, 0, 1]},
    "function": {"pipeline_schedule": one_ahead},
    "text": {
        "pipeline_schedule": "\n".join(
            f"{s}F0 {s}F1 {s}B0 {s}F2 {s}F3 {s}B1 {s}B2 {s}B3" for s in range(3)
        )
        + "\n3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3",
        "device_mapping": [1, 1, 0, 0],
    },
    "1f1b": {"device_mapping": [5, 4, 3, 2]},
}  # fmt: skip
TWENTY_UPDATES = cases.Case(
    "twenty-updates", pipes.dropouts, rows=80,
    compile=cases.optimizer("Adam", 1e-2, epsilon=EPSILON),
    fit=lambda data: {"epochs": 4},
)  # fmt: skip


def in_order(**options):
    model = pipes.pipelined(TWENTY_UPDATES, FOUR, steps=4, **options)
    outcome = pipes.fit(TWENTY_UPDATES, model)
    assert int(model.optimizer.iterations) == 20
    return outcome


@functools.cache
def one_forward_one_backward():
    return in_order(pipeline_schedule="1f1b")


@pytest.mark.parametrize("name", with_marks(ORDERS, slow=("gpipe", "function")))
def test_schedules_and_devices_change_no_bit(name):
    pipes.assert_bits(in_order(**ORDERS[name]), one_forward_one_backward())


def test_twenty_updates_are_those_of_the_model_in_one_piece():
    expected = pipes.fit(TWENTY_UPDATES, pipes.accumulated(TWENTY_UPDATES, 4))
    cases.assert_same(one_forward_one_backward(), expected)


@functools.cache
def in_halves():
    return in_order(pipeline_schedule="zero_bubble")


def test_zero_bubble_changes_rounding_only():
    cases.assert_same(in_halves(), one_forward_one_backward())


@pytest.mark.parametrize("name", slow_but_for(["zb_v", "v_half", "v_min"], "v_half"))
def test_a_v_changes_no_bit_of_a_backward_in_halves(name):
    """Four stages on two devices, out and back, without a mapping of the user's."""
    found = in_order(pipeline_schedule=name, devices=2)
    pipes.assert_bits(found, in_halves())
    cases.assert_same(found, one_forward_one_backward())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "name"),
    [
        (cases.RAGGED, "v_min"),
        (68, "zb_v"),
        exhaustive(cases.RAGGED, "zb_v"),
        exhaustive(cases.RAGGED, "v_half"),
        exhaustive(68, "v_half"),
        exhaustive(68, "v_min"),
    ],
)
def test_a_v_with_a_shorter_last_update(name, rows):
    """Of an update of 4 micro-batches, the last one of an epoch has fewer; its rows may be too."""
    case = dataclasses.replace(TWENTY_UPDATES, name=f"short-{rows}", rows=rows)
    found, halves = (
        pipes.fit(case, pipes.pipelined(case, FOUR, 4, pipeline_schedule=each, devices=devices))
        for each, devices in ((name, 2), ("zero_bubble", 4))
    )
    pipes.assert_bits(found, halves)
    cases.assert_same(found, pipes.fit(case, pipes.accumulated(case, 4)))


@pytest.mark.slow
@pytest.mark.parametrize("stages", [2, 6])
def test_a_v_of_other_lengths(stages):
    cut = [0, 0, 0, 1, 1, 1] if stages == 2 else [0, 1, 2, 3, 4, 5]
    outcomes = []
    for name, devices in (("zb_v", stages // 2), ("v_min", stages // 2), ("zero_bubble", stages)):
        model = pipes.pipelined(TWENTY_UPDATES, cut, 4, pipeline_schedule=name, devices=devices)
        outcomes.append(pipes.fit(TWENTY_UPDATES, model))
    for each in outcomes[:-1]:
        pipes.assert_bits(each, outcomes[-1])


def skips():
    """Values that pass over stages, and come back to the device that they left."""
    inputs = keras.Input((6,))
    first = layers.Dense(6, "tanh")(inputs)
    second = layers.Dense(6, "relu")(first)
    third = layers.Dense(6, "tanh")(second)
    joined = layers.Concatenate()([layers.Add()([first, second, third]), inputs])
    return keras.Model(inputs, layers.Dense(1, "sigmoid")(joined))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zb_v", "v_half", "v_min"])
def test_skips_and_shared_layers_in_a_v(name):
    options = {"pipeline_schedule": name, "devices": 2, "recomputation_mode": "auto"}
    pipes.assert_as_accumulated(cases.Case("skips", skips), [0, 1, 2, 3, 3, 3], 4, **options)
    tied = cases.Case("tied-v", pipes.tied_dense)
    pipes.assert_as_accumulated(tied, [0, 1, 2, 3, 3], 4, **options)


@pytest.mark.slow
def test_a_v_validates_evaluates_and_predicts_as_one_piece():
    model = pipes.pipelined(TWENTY_UPDATES, FOUR, 4, pipeline_schedule="v_half", devices=2)
    expected = pipes.run(TWENTY_UPDATES, pipes.accumulated(TWENTY_UPDATES, 4))
    pipes.assert_same_runs(pipes.run(TWENTY_UPDATES, model), expected, cases.FLOAT32)


OPTIMIZERS = {
    "adam": cases.optimizer("Adam", 1e-2, epsilon=EPSILON),
    "adamw": cases.optimizer("AdamW", 1e-2, weight_decay=0.1, epsilon=EPSILON),
    "momentum-decay": cases.schedule("ExponentialDecay", 0.1, 3, 0.5),
    "global-clipnorm": cases.optimizer("SGD", 0.1, global_clipnorm=0.05),
    "clipnorm": cases.optimizer("SGD", 0.1, clipnorm=0.05),
    "clipvalue": cases.optimizer("SGD", 0.1, clipvalue=0.01),
    "ema": cases.optimizer(
        "SGD", 0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3
    ),
    "adafactor": cases.optimizer("Adafactor", 1e-2),
    "lamb": cases.optimizer("Lamb", 1e-2, epsilon=EPSILON),
    "muon": cases.optimizer("Muon", 1e-2),
    "lion": cases.optimizer("Lion", 1e-3),
    "nadam": cases.optimizer("Nadam", 1e-2, epsilon=EPSILON),
    "loss-scaling": cases.binary(
        optimizer=lambda: cases.loss_scaled(initial_scale=16.0, dynamic_growth_steps=3)
    ),
    "loss-scaling-clipped": cases.binary(
        optimizer=lambda: keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.1, global_clipnorm=0.05)
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    with_marks(
        OPTIMIZERS,
        slow=(
            "momentum-decay",
            "adafactor",
            "lamb",
            "muon",
            "nadam",
            "loss-scaling",
            "loss-scaling-clipped",
            "adamw",
            "clipvalue",
            "lion",
        ),
    ),
)
def test_optimizers_update_each_stage_as_one_model(name):
    """Clipping, loss scales and moving averages look at the weights of all stages."""
    case = cases.Case(name, compile=OPTIMIZERS[name])
    model = pipes.assert_as_accumulated(case)
    assert int(model.optimizer.iterations) == cases.EPOCHS * 3


HALF = [case for case in cases.OPTIONS if case.name in ("bfloat16", "float16")]


@pytest.mark.parametrize("case", with_marks(HALF, slow=("float16",)), ids=lambda case: case.name)
def test_half_precision_policies(case):
    pipes.assert_as_accumulated(case)


def test_updates_whose_scaled_gradients_overflow_are_skipped():
    def optimizer():
        return cases.loss_scaled(initial_scale=2.0**19)

    case = cases.Case(
        "overflows", rows=64, compile=cases.binary(optimizer=optimizer),
        policy="mixed_float16", tolerance=cases.FLOAT16,
    )  # fmt: skip
    model = pipes.assert_as_accumulated(case)
    assert float(model.optimizer.dynamic_scale) < 2.0**19
    assert 0 < int(model.optimizer.inner_optimizer.iterations) < cases.EPOCHS * 8


def test_an_infinity_in_the_first_stage_skips_the_update_of_all():
    def with_large_value(rows):
        data = cases.table(rows)
        data["x"][9, 0] = 60.0  # in the second update
        return data

    def optimizer():
        return cases.loss_scaled(initial_scale=2.0)

    case = cases.Case(
        "infinity", pipes.explosive, with_large_value, compile=cases.binary(optimizer=optimizer)
    )
    model = pipes.assert_as_accumulated(case, [0, 0, 1])
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert float(model.optimizer.dynamic_scale) < 2.0
    assert 0 < int(model.optimizer.inner_optimizer.iterations) < cases.EPOCHS * 3


SHARED = cases.Case("tied-dense", pipes.tied_dense, compile=cases.optimizer("SGD", 0.1))


@pytest.mark.slow
@pytest.mark.parametrize("mapping", [[0, 1, 0], [0, 1, 2]])
def test_a_layer_that_two_stages_call(mapping):
    pipes.assert_as_accumulated(SHARED, pipes.TIED_DENSE, device_mapping=mapping)


def test_the_penalty_of_a_shared_weight_counts_once():
    """A loss of zero but for the penalty, so that a second one would double the update."""

    def nothing(y_true, y_pred):
        return 0.0 * y_pred

    optimizer = {"optimizer": lambda: keras.optimizers.SGD(0.1), "metrics": None}
    case = cases.Case(
        "penalty", pipes.tied_dense, compile=cases.binary(loss=lambda: nothing, **optimizer)
    )
    model = pipes.pipelined(case, pipes.TIED_DENSE, steps=1, device_mapping=[0, 1, 2])
    before = np.array(model.get_layer("tied").kernel)
    outcome = pipes.fit(case, model, epochs=1, batch_size=20)
    cases.assert_close(outcome.history["loss"], [0.01 * np.sum(before**2)])
    cases.assert_close(np.array(model.get_layer("tied").kernel), before * (1 - 0.1 * 0.02))


@pytest.mark.slow
@pytest.mark.parametrize("mapping", [[0, 1, 0], [0, 1, 2]])
def test_an_embedding_that_the_last_stage_reads_too(mapping):
    case = cases.Case(
        "tied-embedding", pipes.tied_embedding, pipes.next_words, compile=pipes.word_scores
    )
    pipes.assert_as_accumulated(case, [0, 1, 1, 2], device_mapping=mapping)


@pytest.mark.slow
@pytest.mark.parametrize("mapping", [None, [0, 1, 0]])
def test_a_subclassed_model_with_stages_in_its_call(mapping):
    case = cases.Case("gpt", pipes.TinyGpt, pipes.next_words, compile=pipes.word_scores)
    devices = 3 if mapping is None else 2
    model = pipes.assert_as_accumulated(case, None, device_mapping=mapping, devices=devices)
    assert model.embedding.embeddings.shape == (11, 4)


def frozen(count):
    def build():
        model = pipes.dropouts()
        for layer in model.layers[:count]:
            layer.trainable = False
        return model

    return build


FROZEN = {count: cases.Case("frozen", frozen(count), compile=momentum) for count in (2, 5)}


@pytest.mark.parametrize(
    ("count", "pipeline_schedule"),
    [(2, "zero_bubble"), slow(2, "1f1b"), slow(5, "1f1b"), slow(5, "zero_bubble")],
)
def test_frozen_stages(count, pipeline_schedule):
    """Of the first stage, and of all but the last."""
    model = pipes.assert_as_accumulated(
        FROZEN[count], [0, 0, 1, 1, 2, 2], pipeline_schedule=pipeline_schedule
    )
    start = cases.compiled(FROZEN[count]).layers[0].get_weights()
    cases.assert_close(model.layers[0].get_weights(), start, cases.Tolerance(0, 0))


FITS = {
    "sample-weight": lambda data: {"sample_weight": cases.weights_of_rows(data)},
    "class-weight": lambda data: {"class_weight": {0: 1.0, 1: 3.0}},
    "validation-weights": lambda data: {
        "validation_data": (*cases.first(data, 8), cases.weights_of_rows(data)[:8])
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FITS)
def test_weights_of_rows(name):
    compile_ = cases.binary(optimizer=lambda: keras.optimizers.SGD(0.1), weighted_metrics=["mae"])
    pipes.assert_as_accumulated(cases.Case(name, compile=compile_, fit=FITS[name]))


@pytest.mark.slow
def test_sums():
    case = cases.Case("sum", compile=cases.optimizer("SGD", 0.02))
    sums = {"gradient_accumulation_reduction_method": "sum"}
    model = pipes.assert_as_accumulated(case, options=sums, **sums)
    mean = pipes.fit(case, pipes.pipelined(case))
    assert np.abs(model.get_weights()[0] - mean.model.get_weights()[0]).max() > 1e-3


@pytest.mark.parametrize("dtype", [slow(None), "float32"])
def test_the_dtype_of_accumulators(dtype):
    case = cases.Case(
        "narrow", compile=momentum, rows=64, policy="bfloat16", tolerance=cases.BFLOAT16
    )
    pipes.assert_as_accumulated(
        case, steps=16, options={"dtype": dtype}, gradient_accumulation_dtype=dtype, executed=1
    )


EXECUTED = cases.Case("executed", rows=30, compile=momentum)


@pytest.mark.parametrize("executed", [slow(1), slow(2), 50])
def test_updates_of_an_execution_change_no_result(executed):
    """30 rows are 8 batches: two updates of three and one of two, whose last batch is smaller."""
    model = pipes.assert_as_accumulated(EXECUTED, steps=3, executed=executed)
    assert int(model.optimizer.iterations) == cases.EPOCHS * 3


class Steps(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.logs = []

    def on_train_batch_end(self, batch, logs=None):
        self.logs.append((batch, dict(logs)))

    def on_test_batch_end(self, batch, logs=None):
        self.logs.append((batch, dict(logs)))


@pytest.mark.slow
def test_asynchronous_callbacks_see_every_step():
    case = cases.Case("steps", compile=momentum)
    logs = []
    for model in (pipes.accumulated(case, executed=1), pipes.pipelined(case)):
        model.set_asynchronous_callbacks(True)
        callback = Steps()
        arguments = {"callbacks": [callback], "validation_data": cases.first(case.data(8), 8)}
        logs.append((pipes.fit(case, model, **arguments), callback.logs))
    cases.assert_same(logs[1][0], logs[0][0])
    assert [step for step, _ in logs[1][1]] == [step for step, _ in logs[0][1]]
    assert len(logs[1][1]) == cases.EPOCHS * (5 + 2)
    cases.assert_close(logs[1][1], logs[0][1])


class Halves(keras.callbacks.Callback):
    """Reads the weights after each execution, and changes them after the first epoch."""

    def __init__(self):
        super().__init__()
        self.sums = []

    def on_train_batch_end(self, batch, logs=None):
        self.sums.append([weight.sum() for weight in self.model.get_weights()])

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            self.model.set_weights([0.5 * weight for weight in self.model.get_weights()])


def test_callbacks_between_executions():
    """They read and set weights and the learning rate while these are with the pipeline."""

    def trained(model, path):
        halves = Halves()
        callbacks = [
            halves,
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / (1 + epoch)),
            keras.callbacks.ModelCheckpoint(path, save_weights_only=True),
            keras.callbacks.EarlyStopping(
                "val_loss", patience=1, mode="max", restore_best_weights=True
            ),
        ]
        validation = cases.first(case.data(8), 8)
        outcome = pipes.fit(case, model, epochs=6, callbacks=callbacks, validation_data=validation)
        final = model.get_weights()
        model.load_weights(path.format(epoch=2))
        return outcome, halves.sums, final, model.get_weights()

    case = cases.Case("callbacks", compile=momentum)
    made = (pipes.pipelined(case, executed=1), pipes.accumulated(case, executed=1))
    with tempfile.TemporaryDirectory() as folder:
        found, expected = (
            trained(model, f"{folder}/{k}-{{epoch}}.weights.h5") for k, model in enumerate(made)
        )
    cases.assert_same(found[0], expected[0])
    assert len(found[0].epochs) < 6
    cases.assert_close(found[1:], expected[1:])


@pytest.mark.slow
def test_single_batches():
    case = cases.Case("on-batch", cases.normalized)
    model, reference = pipes.pipelined(case), pipes.plain(case)
    x, y = case.data(4).values()
    for _ in range(3):
        for method, arguments in (
            ("train_on_batch", (x, y)), ("test_on_batch", (x, y)), ("predict_on_batch", (x,))
        ):  # fmt: skip
            found = getattr(model, method)(*arguments)
            cases.assert_close(found, getattr(reference, method)(*arguments))
    cases.assert_same_variables(cases.variables_of(model), cases.variables_of(reference))
    cases.assert_close(np.array(model(x)), np.array(reference(x)))


@pytest.mark.slow
def test_the_stages_change_between_fits():
    """Weights and the optimizer's state move to where they now belong."""
    case = cases.Case("changes", cases.normalized, compile=momentum)
    model = pipes.pipelined(case, [0, 0, 0, 1, 1], device_mapping=[0, 3])
    reference = pipes.accumulated(case)
    cases.assert_same(pipes.fit(case, model), pipes.fit(case, reference))
    pipes.cut(model, [0, 1, 1, 1, 2])
    model.set_pipelining_options(device_mapping=[3, 1, 0])
    cases.assert_same(pipes.fit(case, model), pipes.fit(case, reference))


@pytest.mark.slow
def test_a_pipeline_becomes_one_piece_between_fits():
    case = cases.Case("changes", cases.normalized, compile=momentum)
    model = pipes.pipelined(case, [0, 0, 0, 1, 1], device_mapping=[0, 0])
    reference = pipes.accumulated(case)
    cases.assert_same(pipes.fit(case, model), pipes.fit(case, reference))
    model.reset_pipeline_stage_assignment()
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=pipes.STEPS)
    cases.assert_same(pipes.fit(case, model), pipes.fit(case, reference))


@pytest.mark.slow
def test_a_trained_pipeline_is_a_keras_model_like_any_other(tmp_path):
    case = cases.Case("uses", compile=momentum)
    model, reference = pipes.pipelined(case), pipes.accumulated(case)
    for each in (model, reference):
        pipes.fit(case, each)
    x = case.data(8)["x"]
    cases.assert_close(np.array(model(x)), np.array(reference(x)))
    cases.assert_close(model.get_weights(), reference.get_weights())
    model.save(tmp_path / "model.keras")
    with pipes.strategy(2).scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    calls = loaded.get_pipeline_stage_assignment()
    assert [call.pipeline_stage for call in calls] == [0, 1]
    cases.assert_close(loaded.get_weights(), model.get_weights())
    cases.assert_close(loaded.predict(x, verbose=0), reference.predict(x, verbose=0))
    # Not with `reference` itself: plain Keras, too, trains a loaded model on to other weights.
    reference.save(tmp_path / "reference.keras")
    with pipes.strategy(1).scope():
        loaded_reference = keras.models.load_model(tmp_path / "reference.keras")
    cases.assert_same(pipes.fit(case, loaded), pipes.fit(case, loaded_reference))


@pytest.mark.slow
def test_a_resnet_cut_in_the_middle():
    def build():
        return keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), classes=10)

    def pictures(rows):
        random = np.random.default_rng(8)
        x = random.normal(size=(rows, 32, 32, 3)).astype("float32")
        return {"x": x, "y": random.integers(0, 10, size=(rows,)).astype("int32")}

    # Fifty layers of statistics over few values make gradients of hundreds, and rounding errors of
    # 1e-2 in them; this learning rate keeps the errors below the tolerance, and the steps above.
    compile_ = cases.binary(
        optimizer=lambda: keras.optimizers.SGD(1e-5),
        loss="sparse_categorical_crossentropy",
    )
    case = cases.Case("resnet", build, pictures, rows=8, compile=compile_)
    model = pipes.pipelined(case, None, executed=1, devices=2)
    stage, assignment = 0, model.get_pipeline_stage_assignment()
    for call in assignment:
        call.pipeline_stage = stage
        if call.layer.name.startswith("conv4_block2_add"):
            stage = 1
    assert stage == 1
    model.set_pipeline_stage_assignment(assignment)
    start = model.get_weights()[0]
    found = pipes.fit(case, model, epochs=1)
    assert np.abs(model.get_weights()[0] - start).max() > 1e-4
    cases.assert_same(found, pipes.fit(case, pipes.accumulated(case, executed=1), epochs=1))
