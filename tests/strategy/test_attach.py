"""Attachment leaves the model a stock one in every other respect."""

import copy
import gc
import inspect
import pickle
import weakref
import zipfile

import keras
import numpy as np
import pytest

import millrace
from millrace.api.strategy.attach import detach
from millrace.api.strategy.saving import OPTIONS_FILE
from millrace.errors import PlanError


@keras.saving.register_keras_serializable("millrace_tests")
class Own(keras.Model):
    def __init__(self, width=3, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.dense = keras.layers.Dense(width)

    def call(self, x, training=False):
        return self.dense(x)

    def get_config(self):
        return {**super().get_config(), "width": self.width}


def sequential():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])


def deferred():
    return keras.Sequential([keras.layers.Dense(3)])


def functional():
    x = keras.Input((4,))
    return keras.Model(x, keras.layers.Dense(3)(x))


BUILDERS = [sequential, deferred, functional, Own]


def data(rows=12):
    return np.ones((rows, 4), np.float32), np.ones((rows, 3), np.float32)


def is_attached(model):
    return hasattr(model, "set_gradient_accumulation_options")


@pytest.fixture(params=BUILDERS, ids=lambda build: build.__name__)
def build(request):
    return request.param


def trained(model):
    model.compile("adam", "mse", steps_per_execution=2)
    model.fit(*data(), batch_size=4, verbose=0)
    return model


def test_every_kind_of_model_is_attached_in_a_scope_only(strategy, build):
    assert not is_attached(build())
    with strategy.scope():
        model = build()
    assert is_attached(model)
    assert not is_attached(build())
    trained(model)
    assert strategy.statistics().infeed.steps == 3


def test_class_config_and_summary_are_the_stock_ones(strategy, build):
    stock, model = build(), strategy.attach(build())
    assert type(model) is type(stock)
    assert isinstance(model, keras.Model)
    configs = [m.get_config() if m.built else None for m in (stock, model)]
    names = [c and {k: v for k, v in c.items() if k == "trainable"} for c in configs]
    assert names[0] == names[1]
    trained(model)
    lines = []
    model.summary(print_fn=lines.append)
    assert "dense" in "\n".join(map(str, lines))
    assert str(inspect.signature(model.fit)) == str(inspect.signature(stock.fit))
    assert model.fit.__doc__ == stock.fit.__doc__


def test_saved_with_options_and_loaded_in_a_scope(strategy, build, tmp_path):
    model = strategy.attach(build())
    model.set_gradient_accumulation_options(
        gradient_accumulation_steps_per_replica=2,
        gradient_accumulation_reduction_method="sum",
        dtype="float32",
    )
    model.set_infeed_queue_options(prefetch_depth=5)
    model.set_asynchronous_callbacks(True)
    trained(model)
    path = tmp_path / "model.keras"
    model.save(path)
    with strategy.scope():
        loaded = keras.models.load_model(path)
    assert loaded._millrace.setup.options == model._millrace.setup.options
    for ours, theirs in zip(model.variables, loaded.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    loaded.fit(*data(), batch_size=4, verbose=0)


def test_loaded_outside_a_scope_it_is_a_stock_model(strategy, build, tmp_path):
    model = trained(strategy.attach(build()))
    path = tmp_path / "model.keras"
    model.save(path)
    assert any(name.endswith(OPTIONS_FILE) for name in zipfile.ZipFile(path).namelist())
    loaded = keras.models.load_model(path)
    assert not is_attached(loaded)
    np.testing.assert_allclose(
        loaded.predict(data()[0], verbose=0), model.predict(data()[0], verbose=0), rtol=1e-6
    )
    loaded.fit(*data(), batch_size=4, verbose=0)


def test_a_stock_file_loads_in_a_scope_with_the_default_options(strategy, build, tmp_path):
    path = tmp_path / "stock.keras"
    trained(build()).save(path)
    with strategy.scope():
        loaded = keras.models.load_model(path)
    assert is_attached(loaded)
    assert loaded._millrace.setup.options == millrace.base.options.Options()


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), copy.copy]
)
def test_copies_keep_weights_and_train(strategy, duplicate):
    model = trained(strategy.attach(functional()))
    with strategy.scope():
        other = duplicate(model)
    np.testing.assert_array_equal(model.get_weights()[0], other.get_weights()[0])
    trained(other)


def test_clones_are_attached_in_a_scope_only(strategy):
    model = strategy.attach(functional())
    assert not is_attached(keras.models.clone_model(model))
    with strategy.scope():
        assert is_attached(keras.models.clone_model(model))


def test_weights_are_saved_and_loaded(strategy, tmp_path):
    model = trained(strategy.attach(functional()))
    path = tmp_path / "model.weights.h5"
    model.save_weights(path)
    other = functional()
    other.load_weights(path)
    np.testing.assert_array_equal(model.get_weights()[0], other.get_weights()[0])


def test_attaching_twice_keeps_the_options(strategy):
    model = strategy.attach(functional())
    model.set_infeed_queue_options(prefetch_depth=7)
    assert strategy.attach(model) is model
    assert model._millrace.setup.options.feed.prefetch_depth == 7


def test_options_and_stages_go_with_a_model_to_another_strategy():
    first, second = millrace.Strategy(devices="cpu:2"), millrace.Strategy(devices="cpu:2")
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3, name="a"), keras.layers.Dense(3, name="b")]
    )
    first.attach(model)
    model.compile("sgd", "mse", steps_per_execution=2)
    model.set_infeed_queue_options(prefetch_depth=7)
    model.set_pipeline_stage_assignment([0, 1])
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=2)
    before = model._millrace.setup.options
    second.attach(model)
    assert model._millrace.setup.options == before
    x, y = data(rows=8)
    model.fit(x, y, batch_size=2, verbose=0)
    assert int(model.optimizer.iterations) == 2
    assert first.statistics().executions == 0
    assert len(second.statistics().pipeline.last_in_flight) == 2  # stages
    millrace.Strategy(devices=1).attach(model)
    with pytest.raises(PlanError, match="Set devices to 2 or more"):
        model.fit(x, y, batch_size=2, verbose=0)


def test_a_model_attached_after_it_trained_goes_on(strategy):
    plain, model = trained(functional()), functional()
    model.set_weights(functional().get_weights())
    trained(model)
    strategy.attach(model)
    model.set_weights(plain.get_weights())
    for m in (plain, model):
        m.compile("sgd", "mse")
        m.fit(*data(), batch_size=4, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], plain.get_weights()[0], rtol=1e-6)


def test_detached_it_is_a_stock_model(strategy):
    model = trained(strategy.attach(functional()))
    detach(model)
    assert not is_attached(model)
    assert vars(model).keys() == vars(trained(functional())).keys()
    before = strategy.statistics()
    model.fit(*data(), batch_size=4, verbose=0)
    assert strategy.statistics() == before


def test_a_model_that_nobody_holds_trains_and_is_collected(strategy):
    history = strategy.attach(trained(functional())).fit(*data(), batch_size=4, verbose=0)
    assert len(history.history["loss"]) == 1
    model = trained(strategy.attach(functional()))
    alive = weakref.ref(model)
    del model, history
    keras.backend.clear_session()
    gc.collect()
    assert alive() is None
