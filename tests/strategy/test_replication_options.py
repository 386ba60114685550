"""What replicas take, keep, say and refuse: their numbers are in tests/equivalence."""

import keras
import numpy as np
import pytest
from keras import layers

import millrace
from millrace.errors import OptionError, PlanError


def data(rows=16):
    x = np.random.default_rng(0).normal(size=(rows, 4)).astype("float32")
    return x, x[:, :1]


def build(devices=4, cls=keras.Sequential, steps=1, **compile_options):
    with millrace.Strategy(devices=devices).scope():
        model = cls([keras.Input((4,)), layers.Dense(4), layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"], **compile_options)
    if steps > 1:
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=steps)
    return model


def pipelined(devices=4, steps=1, stages=(0, 1), **compile_options):
    model = build(devices, **compile_options)
    model.set_pipeline_stage_assignment(list(stages))
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=steps)
    return model


def fit(model, rows=16, **arguments):
    arguments = {"batch_size": 2, "verbose": 0, "shuffle": False, **arguments}
    return model.fit(*data(rows), **arguments)


@pytest.mark.parametrize("given", ["median", "", 1, True])
def test_the_reduction_of_metrics_is_one_of_four(given):
    message = r"replicated_metric_reduction_method must be one of .*Received: "
    with pytest.raises(OptionError, match=message) as caught:
        build().set_replication_options(replicated_metric_reduction_method=given)
    assert all(name in str(caught.value) for name in ("none", "list", "sum", "mean"))
    assert repr(given) in str(caught.value)


@pytest.mark.parametrize("given", ["list", "LIST", "List"])
def test_the_reduction_of_metrics_is_named_in_any_case(given):
    model = build(2)
    model.set_replication_options(replicated_metric_reduction_method=given)
    assert np.shape(fit(model).history["mae"]) == (1, 2)


@pytest.mark.parametrize(
    "name", ["replicated_optimizer_state_sharding", "replicated_weight_sharding"]
)
@pytest.mark.parametrize("setter", ["set_replication_options", "set_pipelining_options"])
def test_sharding_is_true_or_false(setter, name):
    with pytest.raises(OptionError, match=f"{name} must be True or False. Received: 'yes'"):
        getattr(build(), setter)(**{name: "yes"})


def test_an_unknown_option():
    with pytest.raises(OptionError, match="Did you mean replicated_weight_sharding"):
        build().set_replication_options(replicated_weights_sharding=True)


@pytest.mark.parametrize(
    ("devices", "stages", "mapping", "fitting"),
    [
        (8, (0, 1, 2), None, r"8.*6 or 9"),
        (3, (0, 1, 1), None, r"3.*2 or 4"),
        (8, (0, 0, 1), [4, 0], r"8.*5 or 10"),
    ],
)
def test_devices_are_whole_replicas(devices, stages, mapping, fitting):
    with millrace.Strategy(devices=devices).scope():
        model = keras.Sequential(
            [keras.Input((4,)), layers.Dense(4), layers.Dense(4), layers.Dense(1)]
        )
    model.compile("sgd", "mse", steps_per_execution=2)
    model.set_pipeline_stage_assignment(list(stages))
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=1, device_mapping=mapping)
    size = max(mapping or stages) + 1
    for call in (fit, lambda m: m.evaluate(*data(), verbose=0)):
        with pytest.raises(PlanError, match=rf"{size} devices.*{fitting}"):
            call(model)


@pytest.mark.parametrize("make", [build, pipelined])
def test_executions_are_whole_updates_of_all_replicas(make):
    """With four devices, a model in one piece is four replicas, and two stages are two."""
    replicas = 4 if make is build else 2
    window = 3 * replicas
    model = make(4, steps=3, steps_per_execution=window + 2)
    message = (
        rf"steps_per_execution={window + 2}.*3 x {replicas} = {window} steps.*"
        rf"epoch has 20 steps.*Set steps_per_execution={window}"
    )
    with pytest.raises(PlanError, match=message):
        fit(model, rows=40)


def test_executions_of_evaluate_and_predict_are_rounds_of_all_replicas():
    model = build(4, steps_per_execution=6)
    message = r"steps_per_execution=6.*replicas = 4.*epoch has 8 steps.*Set steps_per_execution=4"
    with pytest.raises(PlanError, match=message):
        model.evaluate(*data(), batch_size=2, verbose=0)
    with pytest.raises(PlanError, match=message):
        model.predict(data()[0], batch_size=2, verbose=0)


@pytest.mark.slow
def test_an_execution_of_a_whole_epoch_need_not_be_whole_updates():
    model = build(4, steps=3, steps_per_execution=50)
    fit(model, rows=40)
    assert int(model.optimizer.iterations) == 2  # of 12 steps and of 8
    model.evaluate(*data(14), batch_size=2, verbose=0)
    assert model.predict(data(14)[0], batch_size=2, verbose=0).shape == (14, 1)


@pytest.mark.parametrize("make", [build, pipelined])
def test_the_default_of_one_step_is_one_update(make):
    model = make(4, steps=3)
    assert model.steps_per_execution == 1
    fit(model, rows=40)
    window = 12 if make is build else 6
    assert int(model.optimizer.iterations) == -(-20 // window)
    assert model.predict(data(14)[0], batch_size=2, verbose=0).shape == (14, 1)


class OwnTrainStep(keras.Sequential):
    def train_step(self, state, data):
        return super().train_step(state, data)


@pytest.mark.parametrize(
    ("make", "replicas"), [(build, 4), (pipelined, 2)], ids=["one-piece", "pipeline"]
)
def test_fit_says_once_how_many_replicas_there_are(make, replicas, caplog):
    model = make(4, steps=3)
    with caplog.at_level("INFO", "millrace"):
        fit(model, rows=40, epochs=2, validation_data=data(8))
    said = [r.getMessage() for r in caplog.records if f"{replicas} replicas" in r.getMessage()]
    assert len(said) == 1
    assert str(3 * replicas) in said[0]  # steps of an update
    assert str(3 * replicas * 2) in said[0]  # rows of the global batch


def test_one_device_says_nothing_of_replicas(caplog):
    with caplog.at_level("INFO", "millrace"):
        fit(build(1), rows=8)
    assert "one update takes" not in caplog.text


@pytest.mark.slow
def test_options_travel_with_the_model(tmp_path):
    model = build(2)
    model.set_replication_options(
        replicated_metric_reduction_method="list",
        replicated_optimizer_state_sharding=True,
        replicated_weight_sharding=True,
    )
    fit(model)
    model.save(tmp_path / "model.keras")
    with millrace.Strategy(devices=2).scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded._millrace.setup.options == model._millrace.setup.options
    assert np.shape(fit(loaded).history["mae"]) == (1, 2)
    stock = keras.models.load_model(tmp_path / "model.keras")  # outside of a scope
    found, expected = (each.predict(data()[0], batch_size=2, verbose=0) for each in (stock, loaded))
    assert found.shape == expected.shape
    assert np.shape(stock.fit(*data(), verbose=0).history["mae"]) == (1,)


def test_pipelining_options_travel_with_the_model(tmp_path):
    model = pipelined(4, steps=2)
    model.set_pipelining_options(
        replicated_optimizer_state_sharding=True, replicated_weight_sharding=True
    )
    model.set_replication_options(replicated_metric_reduction_method="sum")
    model.save(tmp_path / "model.keras")
    with millrace.Strategy(devices=4).scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded._millrace.setup.options == model._millrace.setup.options


def test_options_apply_to_the_next_fit_and_do_nothing_on_one_device():
    model = build(1)
    model.set_replication_options(
        replicated_metric_reduction_method="sum", replicated_weight_sharding=True
    )
    plain = fit(build(1)).history
    found = fit(model).history
    assert set(found) == set(plain)
