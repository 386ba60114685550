"""Replicas against one device with as many batches in an update, and against plain Keras."""

import dataclasses
import functools

import cases
import jax
import keras
import numpy as np
import pipeline_cases as pipes
import pytest
import replica_cases as replicas
from keras import layers
from replica_cases import EPSILON, REPLICAS, STEPS, momentum

import millrace
from case_marks import slow, slow_but_for

# Replicas, and steps of each in an update. 18 batches are whole updates of some, and leave replicas
# without a batch in the last update of others.
SHAPES = [slow(2, 1), slow(2, 3), slow(3, 2), slow(4, 1), (8, 2)]
NOISY = cases.Case(
    "noisy", cases.noisy, rows=70, compile=replicas.optimizer("Adam", 1e-2)
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("number", "steps"), SHAPES)
def test_replicas_train_as_one_device(number, steps):
    model = replicas.replicated(NOISY, number, steps)
    replicas.assert_as_one_device(NOISY, model, number * steps)
    replicas.assert_copies_agree(model, number)
    assert int(model.optimizer.iterations) == cases.EPOCHS * -(-18 // (number * steps))


# Their state is that of a batch, or their step is refused: see below.
OTHERS = ("own-train-step", "own-test-step", "stateful-lstm", "own-compute-metrics")
MODELS = [
    replicas.without_magnified_rounding(case) for case in cases.MODELS if case.name not in OTHERS
]
WITH_STATISTICS = ("batchnorm-dropout", "nested", "convnet")


@pytest.mark.slow
@pytest.mark.parametrize("case", MODELS, ids=lambda case: case.name)
def test_models(case):
    model = replicas.replicated(case)
    found = pipes.fit(case, model)
    expected = pipes.in_one_piece(case, REPLICAS * STEPS)
    if case.name in WITH_STATISTICS:
        replicas.assert_same_but_for_statistics(found, expected, case.tolerance)
    else:
        cases.assert_same(found, expected, case.tolerance)
    replicas.assert_copies_agree(model, REPLICAS)


def fit_in_order(model, case, batch_size, **arguments):
    arguments = {"epochs": cases.EPOCHS, **arguments}
    history = model.fit(
        **case.data(case.rows), batch_size=batch_size, shuffle=False, verbose=0, **arguments
    )
    return cases.outcome(model, history)


@pytest.mark.parametrize("rows", [slow(24), slow(26), 29, 1])
@pytest.mark.exhaustive
def test_replicas_train_as_plain_keras_with_their_batches_in_one(rows):
    """Batches of 2 rows, 8 in an update; of 29 rows the last update has 2 batches and 1 row."""
    case = cases.Case("global-batch", rows=rows, compile=momentum)
    found = fit_in_order(replicas.replicated(case), case, 2)
    cases.assert_same(found, fit_in_order(cases.compiled(case), case, 2 * REPLICAS * STEPS))


@pytest.mark.slow
def test_replicas_without_accumulation_train_as_plain_keras():
    case = cases.Case("global-batch", rows=27, compile=momentum)
    model = cases.compiled(case, pipes.strategy(4), 8)  # no option is set at all
    found = fit_in_order(model, case, 2)
    cases.assert_same(found, fit_in_order(cases.compiled(case), case, 8))


@pytest.mark.exhaustive
def test_all_devices_of_the_platform_are_replicas():
    case = cases.Case("all", rows=24, compile=momentum)
    model = cases.compiled(case, millrace.Strategy())
    fit_in_order(model, case, 2)
    replicas.assert_copies_agree(model, len(jax.devices()))


def test_replicas_are_on_the_devices_of_the_strategy():
    devices = jax.devices()[3:6]
    case = cases.Case("devices", rows=24, compile=momentum)
    model = cases.compiled(case, millrace.Strategy(devices))
    fit_in_order(model, case, 2)
    for _, value in replicas.values_of(model):
        assert [shard.device for shard in value.addressable_shards] == devices


def test_one_device_has_no_replicas():
    case = cases.Case("one", rows=24, compile=momentum)
    model = cases.compiled(case, millrace.Strategy(devices=1), 3)
    cases.assert_same(fit_in_order(model, case, 4), fit_in_order(cases.compiled(case), case, 4))
    assert int(model.optimizer.iterations) == cases.EPOCHS * 6


@pytest.mark.parametrize(("number", "steps"), [slow(2, 1), slow(8, 1), (3, 2)])
def test_each_row_has_the_dropout_mask_that_it_has_on_one_device(number, steps):
    """Also in the last update, where some replicas have no batch and one has a smaller one."""
    case = replicas.READS_MASKS
    model = replicas.replicated(case, number, steps, **replicas.SUMS)
    found = pipes.fit(case, model, epochs=1)
    one = pipes.fit(case, pipes.accumulated(case, number * steps, **replicas.SUMS), epochs=1)
    replicas.assert_same_masks(found, one)
    # Of the second epoch, too: the seed has advanced as on one device.
    keras.utils.set_random_seed(2)
    for outcome in (found, one):
        fit_in_order(outcome.model, case, cases.BATCH_SIZE, epochs=1)
    replicas.assert_same_masks(found, one)


def statistics_first():
    """What is normalized are the data themselves, so that statistics can be computed by hand."""
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.BatchNormalization(momentum=0.8),
            layers.Dense(1, "sigmoid"),
        ]
    )


def statistics_by_hand(x, replicas, steps):
    """Returns moving mean and variance after an epoch: averaged over replicas after each update."""
    batches = [
        x[begin : begin + cases.BATCH_SIZE].astype("float64")
        for begin in range(0, len(x), cases.BATCH_SIZE)
    ]
    mean, variance = np.zeros(6), np.ones(6)
    for begin in range(0, len(batches), replicas * steps):
        window = batches[begin : begin + replicas * steps]
        copies = []
        for replica in range(min(replicas, len(window))):  # of those that have a batch
            own_mean, own_variance = mean, variance
            for batch in window[replica::replicas]:
                own_mean = 0.8 * own_mean + 0.2 * batch.mean(axis=0)
                own_variance = 0.8 * own_variance + 0.2 * batch.var(axis=0)
            copies.append((own_mean, own_variance))
        mean, variance = np.mean(copies, axis=0)
    return [mean, variance]


@pytest.mark.parametrize(
    ("number", "steps", "rows"),
    [slow(2, 1, 24), slow(4, 1, 32), (2, 2, 32), (2, 1, 20), slow(2, 1, 22)],
    ids=["two", "four", "accumulated", "one-without-a-batch", "one-with-a-smaller-batch"],
)
def test_moving_statistics_are_averaged_over_replicas_once_per_update(number, steps, rows):
    case = cases.Case("statistics", statistics_first, rows=rows, compile=momentum)
    model = replicas.replicated(case, number, steps)
    found = fit_in_order(model, case, cases.BATCH_SIZE, epochs=1)
    expected = statistics_by_hand(case.data(rows)["x"], number, steps)
    layer = model.layers[0]
    cases.assert_close([np.array(layer.moving_mean), np.array(layer.moving_variance)], expected)
    one = fit_in_order(pipes.accumulated(case, number * steps), case, cases.BATCH_SIZE, epochs=1)
    replicas.assert_same_but_for_statistics(found, one)
    replicas.assert_copies_agree(model, number)


def shares():
    """Its gradient and its output are NaN for rows of zeros."""
    normalize = layers.Lambda(lambda x: x / keras.ops.sum(keras.ops.abs(x), axis=-1, keepdims=True))
    return keras.Sequential(
        [keras.Input((6,)), normalize, layers.BatchNormalization(), layers.Dense(1, "sigmoid")]
    )


@pytest.mark.slow
def test_what_replicas_without_a_batch_compute_counts_nowhere():
    case = cases.Case("shares", shares, rows=20, compile=momentum)
    model = replicas.replicated(case, 8, 1)
    found = fit_in_order(model, case, cases.BATCH_SIZE)
    one = fit_in_order(pipes.accumulated(case, 8), case, cases.BATCH_SIZE)
    replicas.assert_same_but_for_statistics(found, one)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert np.isfinite(model.evaluate(**case.data(20), batch_size=4, verbose=0)).all()
    assert np.isfinite(model.predict(case.data(20)["x"], batch_size=4, verbose=0)).all()


def loss_scaled():
    optimizer = keras.optimizers.Adam(1e-2, epsilon=EPSILON)
    return keras.optimizers.LossScaleOptimizer(
        optimizer, initial_scale=64.0, dynamic_growth_steps=3
    )


OPTIMIZERS = {
    "global-clipnorm": cases.optimizer("SGD", 0.1, global_clipnorm=0.05),
    "decay": cases.schedule("ExponentialDecay", 0.1, 2, 0.5),
    "ema": cases.optimizer(
        "SGD", 0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2
    ),
    "loss-scaling": cases.binary(optimizer=loss_scaled),
}  # fmt: skip


@pytest.mark.parametrize("name", slow_but_for(OPTIMIZERS, "global-clipnorm"))
@pytest.mark.exhaustive
def test_optimizers(name):
    case = cases.Case(name, rows=38, compile=OPTIMIZERS[name])
    model = replicas.replicated(case)
    replicas.assert_as_one_device(case, model)
    replicas.assert_copies_agree(model, REPLICAS)


@pytest.mark.slow
def test_an_infinity_of_one_replica_skips_the_update_of_all():
    def with_infinity(rows):
        data = cases.table(rows)
        data["x"][21, 0] = np.inf  # in a batch of the second update
        return data

    case = cases.Case(
        "infinity", data=with_infinity, rows=38,
        compile=cases.binary(optimizer=loss_scaled, metrics=None),
    )  # fmt: skip
    model = replicas.replicated(case)
    replicas.assert_as_one_device(case, model)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    replicas.assert_copies_agree(model, REPLICAS)


@pytest.mark.slow
def test_sum_adds_the_gradients_of_all_batches():
    case = cases.Case("sum", rows=32, compile=cases.optimizer("SGD", 0.02))
    model = replicas.replicated(case, **replicas.SUMS)
    replicas.assert_as_one_device(case, model, **replicas.SUMS)
    factor = REPLICAS * STEPS
    plain = cases.compiled(case, optimizer=keras.optimizers.SGD(0.02 * factor))
    keras.utils.set_random_seed(2)
    plain.fit(**case.data(32), batch_size=cases.BATCH_SIZE * factor, epochs=2, verbose=0)
    cases.assert_close(model.get_weights(), plain.get_weights())


FITS = {
    "sample-weight": lambda data: {"sample_weight": cases.weights_of_rows(data)},
    "class-weight": lambda data: {"class_weight": {0: 1.0, 1: 3.0}},
    "validation-split": lambda data: {"validation_split": 0.4},
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FITS)
def test_weights_of_rows_and_validation(name):
    compile_ = cases.binary(
        optimizer=lambda: keras.optimizers.SGD(0.1),
        metrics=lambda: [keras.metrics.AUC(name="auc")],
        weighted_metrics=lambda: ["mae"],
    )
    case = cases.Case(name, rows=38, compile=compile_, fit=FITS[name])
    replicas.assert_as_one_device(case, replicas.replicated(case))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_half_precision_policies(name):
    (case,) = (case for case in cases.OPTIONS if case.name == name)
    replicas.assert_as_one_device(case, replicas.replicated(case))


def three_classes():
    return {**cases.three_classes(), "optimizer": keras.optimizers.SGD(0.1, momentum=0.9)}


def plain_convnet():
    return keras.Sequential(
        [keras.Input((6, 6, 1)), layers.Conv2D(2, 3, activation="relu"), layers.Flatten(),
         layers.Dense(3, "softmax")]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("number", "steps", "rows"),
    [(2, 2, 35), slow(2, 16, 140), slow(4, 1, 70)],
)
@pytest.mark.exhaustive
def test_convnets(number, steps, rows):
    """Unrolled on CPU: updates of 2 several to a call, of 16 in parts."""
    case = cases.Case("convnet", plain_convnet, cases.images, rows, three_classes)
    replicas.assert_as_one_device(case, replicas.replicated(case, number, steps), number * steps)


MEASURED = cases.Case(
    "measured", rows=cases.RAGGED,
    compile=cases.binary(
        optimizer=lambda: keras.optimizers.SGD(0.1),
        metrics=lambda: ["accuracy", keras.metrics.AUC(name="auc")],
        weighted_metrics=lambda: ["mae"],
    ),
    fit=lambda data: {"sample_weight": cases.weights_of_rows(data)},
)  # fmt: skip


@functools.cache
def plain_measured():
    return pipes.run(MEASURED, pipes.accumulated(MEASURED, 4))


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [2, 4])
def test_fit_with_validation_evaluate_and_predict(number):
    model = replicas.replicated(MEASURED, number, 4 // number)
    pipes.assert_same_runs(pipes.run(MEASURED, model), plain_measured(), cases.FLOAT32)


PREDICTS = cases.Case(
    "dict", cases.named_functional, cases.named, compile=cases.two_outputs(optimizer="sgd")
)


@pytest.mark.parametrize("steps_per_execution", [1, slow(4), slow(100)])
@pytest.mark.exhaustive
def test_evaluate_and_predict_give_what_plain_keras_gives(steps_per_execution):
    """Of any number of batches, and in the order of the data."""
    plain = cases.compiled(PREDICTS)
    model = cases.compiled(PREDICTS, pipes.strategy(4), steps_per_execution)
    for rows, batch_size in ((3, 4), (34, 4)):
        data, arguments = PREDICTS.data(rows), {"batch_size": batch_size, "verbose": 0}
        cases.assert_close(
            model.predict(data["x"], **arguments), plain.predict(data["x"], **arguments)
        )
        cases.assert_close(
            model.evaluate(**data, return_dict=True, **arguments),
            plain.evaluate(**data, return_dict=True, **arguments),
        )


@pytest.mark.slow
def test_single_batches_are_updates_of_their_own():
    """One replica has the batch; the others' statistics, seeds and counters stay out of it."""
    case = cases.Case("on-batch", cases.normalized)
    model, reference = replicas.replicated(case), pipes.plain(case)
    for rows in (4, 4):
        x, y = case.data(rows).values()
        for method, arguments in (
            ("train_on_batch", (x, y)), ("test_on_batch", (x, y)), ("predict_on_batch", (x,))
        ):  # fmt: skip
            found = getattr(model, method)(*arguments)
            cases.assert_close(found, getattr(reference, method)(*arguments))
    cases.assert_same_variables(cases.variables_of(model), cases.variables_of(reference))
    replicas.assert_copies_agree(model, REPLICAS)
    cases.assert_close(np.array(model(x)), np.array(reference(x)))


SIZES = [3, 1, 4, 3, 1, 4, 4]


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [SIZES, SIZES[:-1], [3, 1, 4, 2, 2, 2, 5, 4]])
def test_batches_of_changing_numbers_of_rows(sizes):
    """Within an update, and within a step of the replicas."""
    case = cases.Case("rows", cases.noisy, rows=24, compile=momentum)
    outcomes = []
    for model in (replicas.replicated(case), pipes.accumulated(case, REPLICAS * STEPS)):
        history = model.fit(
            replicas.Batches(case.data(sum(sizes)), sizes), shuffle=False, epochs=2, verbose=0
        )
        outcomes.append(cases.outcome(model, history))
    cases.assert_same(*outcomes)


def embedded():
    return keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            layers.Embedding(11, 4, mask_zero=True),
            layers.GlobalAveragePooling1D(),
            layers.Dropout(0.2),
            layers.Dense(1, "sigmoid"),
        ]
    )


@pytest.mark.exhaustive
def test_batches_of_changing_lengths():
    """As sentences have that are padded to the longest of their batch."""
    case = cases.Case("lengths", embedded, cases.words, rows=24, compile=momentum)
    sizes, lengths = [4, 4, 4, 4, 4, 3], [6, 4, 4, 4, 6, 6]
    outcomes = []
    for model in (replicas.replicated(case), pipes.accumulated(case, REPLICAS * STEPS)):
        batches = replicas.Batches(case.data(24), sizes, lengths)
        history = model.fit(batches, shuffle=False, epochs=2, verbose=0)
        outcomes.append(cases.outcome(model, history))
    cases.assert_same(*outcomes)


@pytest.mark.exhaustive
def test_a_generator_without_a_known_end():
    case = cases.Case("generated", cases.noisy, rows=38, compile=momentum)
    outcomes = []
    for model in (replicas.replicated(case), pipes.accumulated(case, REPLICAS * STEPS)):
        for _ in range(2):
            history = model.fit(replicas.generated(case.data(38)), shuffle=False, verbose=0)
        outcomes.append(cases.outcome(model, history))
    cases.assert_same(*outcomes)


@pytest.mark.exhaustive
def test_evaluate_and_predict_from_a_generator():
    case = cases.Case("generated", rows=38)
    model, plain = replicas.replicated(case), cases.compiled(case)
    data, arguments = case.data(38), {"batch_size": cases.BATCH_SIZE, "verbose": 0}
    found = model.evaluate(replicas.generated(data), verbose=0)
    cases.assert_close(found, plain.evaluate(**data, **arguments))
    found = model.predict(replicas.generated(data), verbose=0)
    cases.assert_close(found, plain.predict(data["x"], **arguments))


@pytest.mark.exhaustive
def test_epochs_that_end_within_an_update():
    """Epochs of 5 batches out of one generator: updates of 4 and of 1."""
    case = cases.Case("steps", rows=40, compile=momentum)
    outcomes = []
    for model in (replicas.replicated(case), pipes.accumulated(case, REPLICAS * STEPS)):
        history = model.fit(
            replicas.generated(case.data(40)),
            steps_per_epoch=5,
            epochs=2,
            shuffle=False,
            verbose=0,
        )
        outcomes.append(cases.outcome(model, history))
        assert int(model.optimizer.iterations) == 4
    cases.assert_same(*outcomes)


@pytest.mark.parametrize("bytes_of_block", [slow(1), 5 * 112, slow(2**20)])
@pytest.mark.exhaustive
def test_blocks_change_no_result(bytes_of_block):
    """Of one batch, of five, of all; and read again in every epoch."""
    case = dataclasses.replace(NOISY, rows=38)
    model = replicas.replicated(case)
    model.set_infeed_queue_options(max_block_bytes=bytes_of_block, max_resident_bytes=0)
    replicas.assert_as_one_device(case, model)


@pytest.mark.exhaustive
@pytest.mark.parametrize("executed", [1, 50])
def test_updates_of_an_execution_change_no_result(executed):
    case = dataclasses.replace(NOISY, rows=38)
    replicas.assert_as_one_device(case, replicas.replicated(case, executed=executed))


@pytest.mark.parametrize(
    ("number", "method"),
    [
        (2, "list"), slow(4, "none"), slow(2, "none"), slow(2, "sum"), slow(2, "mean"),
        slow(4, "list"), slow(4, "sum"), slow(4, "mean"),
    ],
)  # fmt: skip
def test_metrics_of_replicas(number, method, capsys):
    """Each over its own batches since the epoch began: here of 12 and 10 rows, or 8, 6, 4 and 4."""
    case, rows = replicas.STILL, cases.RAGGED
    model = replicas.replicated(
        case, number, 1, replication={"replicated_metric_reduction_method": method}
    )
    data = case.data(rows)
    validation = cases.first(data, 16)
    arguments = {"batch_size": cases.BATCH_SIZE, "shuffle": False, "epochs": 2}
    history = model.fit(**data, validation_data=validation, verbose=2, **arguments)
    expected = replicas.metrics_by_hand(case, rows, number, method)
    validated = replicas.metrics_by_hand(case, 16, number, method)
    expected |= {f"val_{name}": value for name, value in validated.items()}
    for epoch in range(2):
        replicas.assert_metrics({k: v[epoch] for k, v in history.history.items()}, expected)
    found = model.evaluate(**data, batch_size=cases.BATCH_SIZE, return_dict=True, verbose=1)
    replicas.assert_metrics(found, replicas.metrics_by_hand(case, rows, number, method))
    model.fit(**data, verbose=1, **arguments)
    assert "mae" in capsys.readouterr().out


@pytest.mark.exhaustive
def test_the_reduction_of_metrics_changes_between_fits():
    case = replicas.STILL
    model = replicas.replicated(case)
    for method in ("mean", "sum", "NONE", "List"):
        model.set_replication_options(replicated_metric_reduction_method=method)
        history = fit_in_order(model, case, cases.BATCH_SIZE, epochs=1).history
        replicas.assert_metrics(
            {name: values[0] for name, values in history.items()},
            replicas.metrics_by_hand(case, cases.RAGGED, REPLICAS, method.lower()),
        )


@pytest.mark.slow
def test_a_test_step_and_a_predict_step_of_ones_own():
    class Own(cases.OwnTestStep):
        def predict_step(self, state, data):
            outputs, state = super().predict_step(state, data)
            return 2 * outputs, state

    case = cases.Case("own", cases.of(Own), rows=32)
    model, plain = replicas.replicated(case), cases.compiled(case)
    replicas.assert_as_one_device(case, model)
    plain.set_weights(model.get_weights())
    data, arguments = case.data(32), {"batch_size": 4, "verbose": 0}
    cases.assert_close(
        model.evaluate(**data, return_dict=True, **arguments),
        plain.evaluate(**data, return_dict=True, **arguments),
    )
    cases.assert_close(model.predict(data["x"], **arguments), plain.predict(data["x"], **arguments))


class Steps(keras.callbacks.Callback):
    """Notes the numbers of steps, and the last logs."""

    def __init__(self):
        super().__init__()
        self.calls, self.logs = [], {}

    def on_train_batch_begin(self, batch, logs=None):
        self.calls.append(("begin", batch))

    def on_train_batch_end(self, batch, logs=None):
        self.calls.append(("end", batch))
        self.logs = dict(logs)

    def on_test_batch_end(self, batch, logs=None):
        self.calls.append(("test", batch))

    def on_predict_batch_end(self, batch, logs=None):
        self.calls.append(("predict", batch))

    def steps(self, kind):
        return [batch for name, batch in self.calls if name == kind]


@pytest.mark.parametrize(
    ("steps_per_execution", "begins", "ends", "rounds"),
    [
        (8, [0, 8, 16], [7, 15, 19], [7, 15, 19]),
        slow(100, [0], [19], [19]),
        # Keras's default stands for one update, and for one step of each replica.
        (1, range(0, 20, 4), range(3, 20, 4), range(1, 20, 2)),
    ],
)
def test_callbacks_see_the_steps_of_all_replicas(steps_per_execution, begins, ends, rounds):
    case = cases.Case("steps", rows=40, compile=momentum)
    strategy = millrace.Strategy(devices=REPLICAS)
    model = cases.compiled(case, strategy, steps_per_execution)
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=STEPS)
    steps = Steps()
    arguments = {"batch_size": 2, "callbacks": [steps], "verbose": 0}
    model.fit(**case.data(40), **arguments)
    assert steps.steps("begin") == list(begins)
    assert steps.steps("end") == list(ends)
    assert int(model.optimizer.iterations) == 5
    statistics = strategy.statistics()
    assert statistics.executions == len(begins)
    assert statistics.infeed.steps == 20
    model.evaluate(**case.data(40), **arguments)
    model.predict(case.data(40)["x"], **arguments)
    assert steps.steps("test") == steps.steps("predict") == list(rounds)


@pytest.mark.exhaustive
def test_asynchronous_callbacks_see_every_step():
    case = cases.Case("steps", rows=38, compile=momentum)
    model = replicas.replicated(case)
    model.set_asynchronous_callbacks(True)
    steps = Steps()
    outcome = replicas.assert_as_one_device(case, model, callbacks=[steps])
    epoch = [(name, step) for step in range(10) for name in ("begin", "end")]
    assert steps.calls == cases.EPOCHS * epoch
    last = {name: values[-1] for name, values in outcome.history.items()}
    cases.assert_close(steps.logs, last)
    arguments = {"batch_size": cases.BATCH_SIZE, "callbacks": [steps], "verbose": 0}
    evaluated = model.evaluate(**case.data(38), **arguments)
    predicted = model.predict(case.data(38)["x"], **arguments)
    assert steps.steps("test") == steps.steps("predict") == list(range(10))
    model.set_asynchronous_callbacks(False)
    del arguments["callbacks"]
    cases.assert_close(evaluated, model.evaluate(**case.data(38), **arguments))
    cases.assert_close(predicted, model.predict(case.data(38)["x"], **arguments))


@pytest.mark.exhaustive
def test_callbacks_change_weights_between_executions(tmp_path):
    class Halves(keras.callbacks.Callback):
        """Reads the weights after each execution, and changes them after the first epoch."""

        def on_train_batch_end(self, batch, logs=None):
            sums.append([weight.sum() for weight in self.model.get_weights()])

        def on_epoch_end(self, epoch, logs=None):
            if epoch == 0:
                self.model.set_weights([0.5 * weight for weight in self.model.get_weights()])

    def trained(model, path):
        sums.clear()
        callbacks = [
            Halves(),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / (1 + epoch)),
            keras.callbacks.ModelCheckpoint(path, save_weights_only=True),
            keras.callbacks.EarlyStopping(
                "val_loss", patience=1, mode="max", restore_best_weights=True
            ),
        ]
        validation = cases.first(case.data(12), 12)
        outcome = pipes.fit(case, model, epochs=6, callbacks=callbacks, validation_data=validation)
        final = model.get_weights()
        model.load_weights(path.format(epoch=2))
        return outcome, list(sums), final, model.get_weights()

    sums = []
    case = cases.Case("callbacks", rows=38, compile=momentum)
    models = (
        replicas.replicated(case, executed=1),
        pipes.accumulated(case, REPLICAS * STEPS, executed=1),
    )
    found, expected = (
        trained(model, str(tmp_path / f"{k}-{{epoch}}.weights.h5"))
        for k, model in enumerate(models)
    )
    cases.assert_same(found[0], expected[0])
    assert len(found[0].epochs) < 6
    cases.assert_close(found[1:], expected[1:])


@pytest.mark.exhaustive
def test_a_trained_model_is_a_keras_model_like_any_other(tmp_path):
    """Also on another number of replicas: four of one step, and then two of two."""
    case = cases.Case("uses", rows=38, compile=momentum)
    model, reference = replicas.replicated(case, 4, 1), pipes.accumulated(case, 4)
    for each in (model, reference):
        pipes.fit(case, each)
    x = case.data(8)["x"]
    cases.assert_close(np.array(model(x)), np.array(reference(x)))
    cases.assert_close(model.get_weights(), reference.get_weights())
    for trained, name in ((model, "model"), (reference, "reference")):
        trained.save(tmp_path / f"{name}.keras")
    stock = keras.models.load_model(tmp_path / "model.keras")
    cases.assert_close(stock.predict(x, verbose=0), reference.predict(x, verbose=0))
    with pipes.strategy(1).scope():
        expected = keras.models.load_model(tmp_path / "reference.keras")
    expected = pipes.fit(case, expected)
    with pipes.strategy(2).scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    loaded.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
    cases.assert_same(pipes.fit(case, loaded), expected)


def test_a_second_fit_compiles_nothing():
    case = cases.Case("twice", rows=38, compile=momentum)
    strategy = millrace.Strategy(devices=REPLICAS)
    model = cases.compiled(case, strategy, 8)
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=STEPS)
    pipes.fit(case, model)
    compiled = len(strategy.compile_log)
    pipes.fit(case, model)
    assert len(strategy.compile_log) == compiled


def exchanges(monkeypatch, build, data, number, steps):
    """Returns how often which collective stands in how many loops of each training program."""
    case = cases.Case("exchanges", build, data, 4 * number * steps, three_classes)
    strategy = millrace.Strategy(devices=number)
    model = cases.compiled(case, strategy, number * steps)
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=steps)
    with monkeypatch.context() as patch:
        programs = replicas.watch_programs(patch, strategy)
        pipes.fit(case, model, epochs=1, batch_size=2)
    return {name: replicas.collectives(text) for name, text in programs()}


def classifier():
    return keras.Sequential(
        [keras.Input((6, 6, 1)), layers.Flatten(), layers.Dense(8, "relu"), layers.Dropout(0.1),
         layers.Dense(3, "softmax")]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("build", "number", "most"),
    [(classifier, 4, 8), (plain_convnet, 2, 4)],
    ids=["loop", "unrolled"],
)
def test_gradients_cross_replicas_once_per_update(monkeypatch, build, number, most):
    few = exchanges(monkeypatch, build, cases.images, number, 1)
    many = exchanges(monkeypatch, build, cases.images, number, most)
    assert few == many
    (found,) = many.values()  # whole updates, one program
    assert found
    assert max(depth for _, depth in found) <= 1  # the loop over updates, not that within one


def test_one_device_exchanges_nothing(monkeypatch):
    assert not any(exchanges(monkeypatch, classifier, cases.images, 1, 2).values())


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(6))
def test_random_numbers_of_everything(seed):
    """Replicas, accumulation, rows, batch and block sizes at random: as one device."""
    random = np.random.default_rng(seed)
    number, steps, executed = (int(random.integers(2, 9)), *map(int, random.integers(1, 4, 2)))
    rows, batch_size = int(random.integers(1, 120)), int(random.integers(1, 7))
    case = dataclasses.replace(
        NOISY, rows=rows, fit=lambda data: {"batch_size": batch_size, "epochs": 3}
    )
    model = replicas.replicated(case, number, steps, executed)
    model.set_infeed_queue_options(
        max_block_bytes=int(random.integers(1, 2000)), max_resident_bytes=0
    )
    replicas.assert_as_one_device(case, model, number * steps)
    replicas.assert_copies_agree(model, number)
