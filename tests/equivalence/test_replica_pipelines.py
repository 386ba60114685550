"""Replicas of pipelines against one device with as many batches in an update."""

import dataclasses
import functools

import cases
import jax
import keras
import numpy as np
import pipeline_cases as pipes
import pytest
import replica_cases as replicas
from replica_cases import REPLICAS, STEPS, momentum

import millrace
from case_marks import slow_but_for

TWO, FOUR = [0, 0, 1, 1, 1, 1], [0, 1, 1, 2, 2, 3]  # stages of `dropouts`
# Its statistics are averaged over replicas; all else is as on one device.
DROPOUTS = cases.Case(
    "dropouts", pipes.dropouts, rows=cases.RAGGED, compile=replicas.optimizer("Adam", 1e-2)
)


def devices_of_stages(laid, replicas):
    return {each.devices for each in laid if len(each.devices) == replicas}


@pytest.mark.slow
def test_eight_devices_are_four_replicas_of_two_stages():
    model = replicas.pipelined(DROPOUTS, 4, TWO, 1)
    found, laid = replicas.fit_and_watch(DROPOUTS, model, 4)
    replicas.assert_same_but_for_statistics(found, pipes.in_one_piece(DROPOUTS, 4))
    assert devices_of_stages(laid, 4) == {(0, 2, 4, 6), (1, 3, 5, 7)}


# Eight devices, each a stage of one of two replicas, unless a mapping says otherwise.
ORDERS = {
    "gpipe": {"pipeline_schedule": "gpipe", "device_mapping": [2, 0, 3, 1]},
    "grouped": {"pipeline_schedule": "grouped", "device_mapping": [0, 0, 0, 0]},
    "sequential": {"pipeline_schedule": "sequential", "device_mapping": [2, 1, 1, 0]},
    "looped": {"pipeline_schedule": "looped", "device_mapping": [0, 1, 0, 1]},
}


def in_order(**options):
    model = replicas.pipelined(DROPOUTS, REPLICAS, FOUR, **options)
    return replicas.fit_and_watch(DROPOUTS, model, REPLICAS)


@functools.cache
def one_forward_one_backward():
    return in_order(pipeline_schedule="1f1b")


@pytest.mark.exhaustive
def test_eight_devices_are_two_replicas_of_four_stages():
    found, laid = one_forward_one_backward()
    expected = pipes.in_one_piece(DROPOUTS, REPLICAS * STEPS)
    replicas.assert_same_but_for_statistics(found, expected)
    assert devices_of_stages(laid, REPLICAS) == {(0, 4), (1, 5), (2, 6), (3, 7)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ORDERS)
def test_schedules_and_devices_change_no_bit(name):
    pipes.assert_bits(in_order(**ORDERS[name])[0], one_forward_one_backward()[0])


@pytest.mark.exhaustive
def test_zero_bubble_changes_rounding_only():
    found, _ = in_order(pipeline_schedule="zero_bubble")
    cases.assert_same(found, one_forward_one_backward()[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zb_v", "v_half", "v_min"])
def test_two_replicas_of_a_v_on_four_devices(name):
    model = replicas.pipelined(DROPOUTS, REPLICAS, FOUR, groups=2, pipeline_schedule=name)
    found, laid = replicas.fit_and_watch(DROPOUTS, model, REPLICAS)
    assert devices_of_stages(laid, REPLICAS) == {(0, 2), (1, 3)}
    pipes.assert_bits(found, in_order(pipeline_schedule="zero_bubble")[0])
    cases.assert_same(found, one_forward_one_backward()[0])


@pytest.mark.exhaustive
def test_statistics_are_those_of_replicas_in_one_piece():
    """Averaged over replicas once per update, in the order of micro-batches before that."""
    expected = pipes.fit(DROPOUTS, replicas.replicated(DROPOUTS))
    cases.assert_same(one_forward_one_backward()[0], expected)


@pytest.mark.exhaustive
def test_a_mapping_with_a_gap_leaves_devices_out():
    """A mapping to devices 2 and 0 takes three for each replica, of which one is idle."""
    case = cases.Case("gap", rows=24, compile=momentum)
    model = replicas.pipelined(case, 2, device_mapping=[2, 0])
    found, laid = replicas.fit_and_watch(case, model, 2)
    cases.assert_same(found, pipes.in_one_piece(case, REPLICAS * STEPS))
    assert devices_of_stages(laid, 2) == {(2, 5), (0, 3)}


@pytest.mark.exhaustive
def test_three_replicas():
    case = cases.Case("three", rows=38, compile=momentum)
    found, _ = replicas.fit_and_watch(case, replicas.pipelined(case, 3, 2, 1), 3)
    cases.assert_same(found, pipes.in_one_piece(case, 3))


@pytest.mark.exhaustive
@pytest.mark.parametrize("rows", [32, 34, 1])
def test_pipelines_train_as_plain_keras_with_their_batches_in_one(rows):
    case = cases.Case("global-batch", rows=rows, compile=momentum)
    found, expected = (
        model.fit(**case.data(rows), batch_size=size, epochs=2, shuffle=False, verbose=0)
        for model, size in (
            (replicas.pipelined(case), 2), (cases.compiled(case), 2 * REPLICAS * STEPS)
        )
    )  # fmt: skip
    cases.assert_same(cases.outcome(found.model, found), cases.outcome(expected.model, expected))


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 4])
def test_each_row_has_the_dropout_mask_that_it_has_on_one_device(number):
    case = replicas.READS_MASKS
    model = replicas.pipelined(case, number, [0, 1], 1, **replicas.SUMS)
    found = pipes.fit(case, model, epochs=1)
    one = pipes.accumulated(case, number, **replicas.SUMS)
    replicas.assert_same_masks(found, pipes.fit(case, one, epochs=1))
    seeds = [
        {name: value for name, value in cases.variables_of(each) if "seed" in name}
        for each in (model, one)
    ]
    for found_seed, seed in zip(seeds[0].values(), seeds[1].values(), strict=True):
        np.testing.assert_array_equal(found_seed, seed)


NAMES = (
    "lstm", "masked-embedding", "convnet", "attention", "dict-inputs-outputs", "nested",
    "seed-generators", "subclassed", "regularizers-constraints",
)  # fmt: skip
MODELS = [replicas.without_magnified_rounding(case) for case in cases.MODELS if case.name in NAMES]


@pytest.mark.parametrize(
    "case",
    slow_but_for(MODELS, "subclassed"),
    ids=lambda case: case.name,
)
@pytest.mark.exhaustive
def test_models(case):
    stages = [0, 0, 0, 0, 0, 1, 1] if case.name == "nested" else 2
    model = replicas.pipelined(case, REPLICAS, stages)
    found, _ = replicas.fit_and_watch(case, model, REPLICAS)
    expected = pipes.in_one_piece(case, REPLICAS * STEPS)
    if case.name in ("nested", "convnet"):
        replicas.assert_same_but_for_statistics(found, expected, case.tolerance)
    else:
        cases.assert_same(found, expected, case.tolerance)


TIED = {
    "dense": (
        cases.Case("tied-dense", pipes.tied_dense, compile=cases.optimizer("SGD", 0.1)),
        pipes.TIED_DENSE,
    ),
    "embedding": (
        cases.Case(
            "tied-embedding", pipes.tied_embedding, pipes.next_words, compile=pipes.word_scores
        ),
        [0, 1, 1, 2],
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mapping"),
    [
        ("dense", [0, 1, 2]),
        ("dense", [0, 1, 0]),
        ("embedding", [0, 1, 2]),
        ("embedding", [0, 1, 0]),
    ],
)
def test_tied_weights(name, mapping):
    case, stages = TIED[name]
    model = replicas.pipelined(case, REPLICAS, stages, device_mapping=mapping)
    replicas.assert_as_one_device(case, model)


@pytest.mark.exhaustive
def test_a_subclassed_model_with_stages_in_its_call():
    case = cases.Case("gpt", pipes.TinyGpt, pipes.next_words, compile=pipes.word_scores)
    model = replicas.pipelined(case, REPLICAS, None, groups=3)
    replicas.assert_as_one_device(case, model)


OPTIMIZERS = {
    "global-clipnorm": cases.optimizer("SGD", 0.1, global_clipnorm=0.05),
    "ema": cases.optimizer(
        "SGD", 0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2
    ),
    "muon": cases.optimizer("Muon", 1e-2),
    "loss-scaling-clipped": cases.binary(
        optimizer=lambda: keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.1, global_clipnorm=0.05),
            initial_scale=16.0,
            dynamic_growth_steps=3,
        )
    ),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    case = cases.Case(name, rows=38, compile=OPTIMIZERS[name])
    replicas.assert_as_one_device(case, replicas.pipelined(case))


@pytest.mark.exhaustive
def test_an_infinity_in_one_stage_of_one_replica_skips_the_update_of_all():
    def with_large_value(rows):
        data = cases.table(rows)
        data["x"][21, 0] = 60.0  # in a batch of the second update
        return data

    def optimizer():
        return cases.loss_scaled(initial_scale=2.0)

    case = cases.Case(
        "infinity", pipes.explosive, with_large_value, 38, cases.binary(optimizer=optimizer)
    )
    model = replicas.pipelined(case, REPLICAS, [0, 0, 1])
    found, _ = replicas.fit_and_watch(case, model, REPLICAS)
    cases.assert_same(found, pipes.in_one_piece(case, REPLICAS * STEPS))
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert float(model.optimizer.dynamic_scale) < 2.0


@pytest.mark.exhaustive
def test_sum_adds_the_gradients_of_all_batches():
    case = cases.Case("sum", rows=32, compile=cases.optimizer("SGD", 0.02))
    model = replicas.pipelined(case, **replicas.SUMS)
    replicas.assert_as_one_device(case, model, **replicas.SUMS)


MEASURED = cases.Case(
    "measured", rows=cases.RAGGED,
    compile=cases.binary(
        optimizer=lambda: keras.optimizers.SGD(0.1),
        metrics=lambda: ["accuracy", keras.metrics.AUC(name="auc")],
        weighted_metrics=lambda: ["mae"],
    ),
    fit=lambda data: {"sample_weight": cases.weights_of_rows(data)},
)  # fmt: skip


@pytest.mark.slow
def test_fit_with_validation_evaluate_and_predict():
    expected = pipes.run(MEASURED, pipes.accumulated(MEASURED, REPLICAS * STEPS))
    found = pipes.run(MEASURED, replicas.pipelined(MEASURED))
    pipes.assert_same_runs(found, expected, cases.FLOAT32)


@pytest.mark.exhaustive
@pytest.mark.parametrize("rows", [3, 20, 34])
def test_evaluate_and_predict_give_what_plain_keras_gives(rows):
    """Without a number of micro-batches, and of any number of batches."""
    case, arguments = cases.Case("evaluate", cases.normalized), {"batch_size": 4, "verbose": 0}
    plain, (model, data) = cases.compiled(case), (evaluated_only(), case.data(rows))
    cases.assert_close(model.evaluate(**data, **arguments), plain.evaluate(**data, **arguments))
    cases.assert_close(model.predict(data["x"], **arguments), plain.predict(data["x"], **arguments))


@functools.cache
def evaluated_only():
    model = cases.compiled(cases.Case("evaluate", cases.normalized), pipes.strategy(8), 8)
    pipes.cut(model, 2)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("method", ["none", "list", "sum", "mean"])
def test_metrics_of_replicas(method):
    case, rows = replicas.STILL, cases.RAGGED
    model = replicas.pipelined(
        case, 2, 2, 1, replication={"replicated_metric_reduction_method": method}
    )
    data = case.data(rows)
    arguments = {"batch_size": cases.BATCH_SIZE, "verbose": 0}
    history = model.fit(**data, shuffle=False, epochs=2, **arguments).history
    expected = replicas.metrics_by_hand(case, rows, 2, method)
    for epoch in range(2):
        replicas.assert_metrics({name: v[epoch] for name, v in history.items()}, expected)
    found = model.evaluate(**data, return_dict=True, **arguments)
    replicas.assert_metrics(found, expected)


@pytest.mark.exhaustive
def test_single_batches_are_updates_of_their_own():
    case = cases.Case("on-batch", cases.normalized)
    model, reference = replicas.pipelined(case), pipes.plain(case)
    x, y = case.data(4).values()
    for _ in range(2):
        for method, arguments in (
            ("train_on_batch", (x, y)), ("test_on_batch", (x, y)), ("predict_on_batch", (x,))
        ):  # fmt: skip
            found = getattr(model, method)(*arguments)
            cases.assert_close(found, getattr(reference, method)(*arguments))
    cases.assert_same_variables(cases.variables_of(model), cases.variables_of(reference))
    cases.assert_close(np.array(model(x)), np.array(reference(x)))


@pytest.mark.exhaustive
def test_batches_of_changing_numbers_of_rows():
    case = cases.Case("rows", cases.noisy, rows=24, compile=momentum)
    sizes = [3, 1, 3, 3, 1, 3]
    outcomes = []
    for model in (
        replicas.pipelined(case, REPLICAS, 2), pipes.accumulated(case, REPLICAS * STEPS)
    ):  # fmt: skip
        batches = replicas.Batches(case.data(24), sizes)
        outcomes.append(cases.outcome(model, model.fit(batches, shuffle=False, verbose=0)))
    cases.assert_same(*outcomes)


@pytest.mark.exhaustive
def test_a_generator_and_a_second_fit_that_compiles_nothing():
    case = cases.Case("generated", rows=38, compile=momentum)
    strategy = millrace.Strategy(devices=4)
    model = cases.compiled(case, strategy, 8)
    pipes.cut(model, 2)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=STEPS)
    one = pipes.accumulated(case, REPLICAS * STEPS)
    compiled = []
    for _ in range(2):
        found, expected = (
            cases.outcome(
                each, each.fit(replicas.generated(case.data(38)), shuffle=False, verbose=0)
            )
            for each in (model, one)
        )
        cases.assert_same(found, expected)
        compiled.append(len(strategy.compile_log))
    assert compiled[0] == compiled[1]


@pytest.mark.exhaustive
def test_asynchronous_callbacks_see_every_step():
    class Steps(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.steps, self.logs = [], {}

        def on_train_batch_end(self, batch, logs=None):
            self.steps.append(batch)
            self.logs = dict(logs)

    case = cases.Case("steps", rows=38, compile=momentum)
    model, steps = replicas.pipelined(case), Steps()
    model.set_asynchronous_callbacks(True)
    outcome = replicas.assert_as_one_device(case, model, callbacks=[steps])
    assert steps.steps == cases.EPOCHS * list(range(10))
    cases.assert_close(steps.logs, {name: v[-1] for name, v in outcome.history.items()})


@pytest.mark.exhaustive
def test_stages_replicas_and_one_piece_follow_each_other():
    """Four devices: two replicas of two stages, one of four, four in one piece. The same update."""
    case = cases.Case("changes", cases.noisy, rows=38, compile=momentum)
    model = replicas.pipelined(case, 2, 2)
    reference = pipes.accumulated(case, 4)
    cases.assert_same(pipes.fit(case, model), pipes.fit(case, reference))
    pipes.cut(model, 4)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    cases.assert_same(pipes.fit(case, model), pipes.fit(case, reference))
    model.reset_pipeline_stage_assignment()
    cases.assert_same(pipes.fit(case, model), pipes.fit(case, reference))
    replicas.assert_copies_agree(model, 4)


@pytest.mark.exhaustive
def test_a_trained_pipeline_is_a_keras_model_like_any_other(tmp_path):
    case = cases.Case("uses", rows=38, compile=momentum)
    model, reference = replicas.pipelined(case), pipes.accumulated(case, REPLICAS * STEPS)
    for each in (model, reference):
        pipes.fit(case, each)
    x = case.data(8)["x"]
    cases.assert_close(np.array(model(x)), np.array(reference(x)))
    cases.assert_close(model.get_weights(), reference.get_weights())
    model.save(tmp_path / "model.keras")
    reference.save(tmp_path / "reference.keras")
    stock = keras.models.load_model(tmp_path / "model.keras")
    cases.assert_close(stock.predict(x, verbose=0), reference.predict(x, verbose=0))
    with pipes.strategy(4).scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    with pipes.strategy(1).scope():
        expected = keras.models.load_model(tmp_path / "reference.keras")
    cases.assert_same(pipes.fit(case, loaded), pipes.fit(case, expected))


def test_micro_batches_exchange_nothing_between_replicas(monkeypatch):
    """Whatever their number: only programs that run once per update do."""

    def exchanges(steps):
        case = cases.Case("exchanges", cases.normalized, rows=4 * steps, compile=momentum)
        strategy = millrace.Strategy(devices=4)
        model = cases.compiled(case, strategy, 2 * steps)
        pipes.cut(model, 2)
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=steps)
        with monkeypatch.context() as patch:
            programs = replicas.watch_programs(patch, strategy)
            pipes.fit(case, model, epochs=1, batch_size=2)
        return {name: replicas.collectives(text) for name, text in programs()}

    few, many = exchanges(1), exchanges(8)
    assert sum(map(len, many.values())) > 0
    for name, found in many.items():
        if "forward" in name or "backward" in name:
            assert not found, name
        assert found == few.get(name, found), name


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(6))
def test_random_numbers_of_everything(seed):
    """Replicas, stages, schedule, accumulation, rows and batch size at random: as one device."""
    random = np.random.default_rng(seed)
    stages = sorted(int(stage) for stage in random.integers(0, 3, 6))
    stages = [sorted(set(stages)).index(stage) for stage in stages]
    if max(stages) == 0:
        stages[-1] = 1
    number = int(random.integers(2, len(jax.devices()) // (max(stages) + 1) + 1))
    steps, rows = int(random.integers(1, 5)), int(random.integers(1, 90))
    batch_size = int(random.integers(2, 6))
    schedule = str(random.choice(["1f1b", "gpipe", "grouped", "sequential", "zero_bubble"]))
    case = dataclasses.replace(
        DROPOUTS, rows=rows, fit=lambda data: {"batch_size": batch_size, "epochs": 3}
    )
    model = replicas.pipelined(case, number, stages, steps, pipeline_schedule=schedule)
    found, _ = replicas.fit_and_watch(case, model, number)
    expected = pipes.in_one_piece(case, number * steps)
    replicas.assert_same_but_for_statistics(found, expected)
