"""A detached model is a stock one and trains on with Keras's numbers; Keras is stock as well."""

import copy
import gc
import pathlib
import pickle
import subprocess
import sys
import threading

import jax
import keras
import numpy as np
import pytest

import millrace
from case_marks import slow
from millrace._compat import patches
from millrace._compat.patch_table import EPOCH_ITERATOR, FIT
from millrace._compat.patches import While, patches_in
from millrace.errors import MillraceError, ModelError
from millrace.run.fit.controller import controller_of
from millrace_ipu.ipu.ipu_strategy import IPUStrategy

X = np.linspace(-1, 1, 48, dtype="float32").reshape(12, 4)
Y = np.linspace(0, 1, 36, dtype="float32").reshape(12, 3)


def make(name="m"):
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(5),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(3),
        ],
        name=name,
    )
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"])
    return model


def losses(model, epochs=1):
    history = model.fit(X, Y, batch_size=4, epochs=epochs, shuffle=False, verbose=0)
    return np.array([*history.history["loss"], *history.history["mae"]])


def give_values(model, of):
    values = [*of.variables, *of.optimizer.variables]
    for mine, other in zip([*model.variables, *model.optimizer.variables], values, strict=True):
        mine.assign(np.array(other))  # a copy: Keras donates what it trains on


def model_patches():
    return {patch for patch in patches_in() if patch.during is While.MODELS}


@pytest.fixture
def alone():
    """No model of another test, so that Keras can be stock."""
    gc.collect()
    before = set(patches._holders)
    for holder in before:
        patches.release(holder)
    yield
    assert not model_patches()
    patches._holders.update(before)


def test_training_goes_on_with_the_numbers_of_plain_keras(strategy):
    plain, model = make(), strategy.attach(make())
    attached = losses(model, 2)
    np.testing.assert_allclose(attached, losses(plain, 2), rtol=1e-6)
    assert strategy.detach(model) is model
    give_values(plain, model)
    np.testing.assert_array_equal(losses(model, 2), losses(plain, 2))
    assert strategy.statistics().executions == 6  # of the first fit only


def test_nothing_is_left_on_the_model(strategy, alone):
    model, stock = strategy.attach(make()), make()
    losses(model), losses(stock)
    strategy.detach(model)
    assert vars(model).keys() == vars(stock).keys()
    assert vars(model._functional).keys() == vars(stock._functional).keys()
    assert model.fit.__func__ is stock.fit.__func__


@pytest.mark.parametrize("kind", ["functional", *map(slow, ("sequential", "subclassed"))])
def test_nothing_of_ipu_is_left(kind, alone):
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, x):
            return self.dense(x)

    def build():
        if kind == "subclassed":
            return Own()
        inputs = keras.Input((4,))
        model = keras.Sequential([inputs, keras.layers.Dense(3)])
        return keras.Model(inputs, model.layers[-1](inputs)) if kind == "functional" else model

    strategy = IPUStrategy()
    with strategy.scope():
        model = build()
    stock = build()
    assert hasattr(model, "set_pipelining_options")
    strategy.detach(model)
    gc.collect()  # the model that a functional one was made of is attached, and nobody has it
    for each in (model, stock):
        each.compile("sgd", "mse")
        each.fit(X, Y, verbose=0)
    assert vars(model).keys() == vars(stock).keys()
    # What Keras itself puts on each model is its own again.
    assert model.build.__qualname__ == stock.build.__qualname__
    del model


@pytest.mark.parametrize("kind", ["pipelined", "replicated"])
def test_a_model_on_other_devices_trains_on_with_the_same_numbers(kind):
    plain = make()
    strategy = millrace.Strategy(devices=jax.devices()[1:3], cache_dir=None)
    model = strategy.attach(make())
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"], steps_per_execution=2
    )
    if kind == "pipelined":
        model.set_pipeline_stage_assignment([0, 0, 1])
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=2)
    model.fit(X[:8], Y[:8], batch_size=4, verbose=0)
    strategy.detach(model)
    assert {d for v in model.variables for d in v.value.devices()} == {jax.devices()[0]}
    model.steps_per_execution = 1
    losses(plain)
    give_values(plain, model)
    np.testing.assert_allclose(losses(model), losses(plain), rtol=1e-6)


def test_keras_is_stock_without_models_and_scopes(strategy, alone):
    with strategy.scope():
        first, second = make("a"), make("b")
        assert FIT in patches_in()
    losses(first)
    strategy.detach(first)
    assert FIT in patches_in()  # for the other
    with strategy.scope():
        strategy.detach(second)
        assert FIT in patches_in()
    assert not model_patches()


def test_a_model_that_nobody_has_lets_go_of_keras(strategy, alone):
    model = strategy.attach(make())
    assert FIT in patches_in()
    del model
    gc.collect()
    assert not model_patches()


def test_a_scope_without_a_model_leaves_nothing(strategy, alone):
    with pytest.raises(KeyError), strategy.scope():
        raise KeyError
    assert not model_patches()


@pytest.mark.slow
def test_attached_again_it_trains_with_its_stages(strategy, alone):
    model = strategy.attach(make())
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=3)
    for _ in range(3):
        strategy.detach(model)
        strategy.attach(model)
    assert controller_of(model).setup.options == millrace.base.options.Options()
    plain = make()
    np.testing.assert_allclose(losses(model), losses(plain), rtol=1e-6)
    assert strategy.statistics().executions == 3
    strategy.detach(model)


def refused(strategy, model):
    with pytest.raises(ModelError, match=r"cannot be detached while its fit.*stop_training = True"):
        strategy.detach(model)


def test_not_while_it_trains(strategy):
    model = strategy.attach(make())

    class Detach(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            refused(strategy, model)
            thread = threading.Thread(target=refused, args=(strategy, model))
            thread.start()
            thread.join()
            with pytest.raises(ModelError, match="cannot be detached"):
                millrace.Strategy(devices=1, cache_dir=None).attach(model)

    model.fit(X, Y, batch_size=4, verbose=0, callbacks=[Detach()])
    strategy.detach(model)


def test_after_a_fit_that_failed(strategy, alone):
    model = strategy.attach(make())

    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyError("no")

    with pytest.raises(KeyError):
        model.fit(X, Y, batch_size=4, verbose=0, callbacks=[Fails()])
    strategy.detach(model)
    assert np.isfinite(losses(model)).all()


def test_a_model_of_another_strategy_and_a_stock_one(strategy):
    model = millrace.Strategy(devices=1, cache_dir=None).attach(make())
    with pytest.raises(ModelError, match=r"attached to another one\. Call detach\(\) of that"):
        strategy.detach(model)
    with pytest.raises(ModelError, match=r"attached to none\. It is a stock model"):
        strategy.detach(make())
    with pytest.raises(ModelError, match=r"takes a keras\.Model\. Received: NoneType"):
        strategy.detach(None)


def test_the_second_strategy_that_attaches_it_has_it_alone(strategy, alone):
    first = IPUStrategy()
    model = first.attach(make())
    assert hasattr(model, "set_infeed_queue_options")
    strategy.attach(model)
    assert vars(model).keys() == vars(strategy.attach(make())).keys()
    losses(model)
    assert strategy.statistics().executions == 3
    with pytest.raises(ModelError):
        first.detach(model)
    strategy.detach(model)
    gc.collect()  # the other model is attached, and nobody has it


def test_methods_that_someone_kept_run_the_stock_model(strategy, alone):
    model = strategy.attach(make())
    fit = model.fit
    strategy.detach(model)
    fit(X, Y, batch_size=4, verbose=0)
    assert strategy.statistics().executions == 0
    np.testing.assert_allclose(fit(X, Y, verbose=0).history["mae"], losses(model)[1:], rtol=1)


def test_an_attribute_that_the_user_has_replaced_stays(strategy, alone):
    model = strategy.attach(make())
    model.evaluate = own = lambda: "mine"
    strategy.detach(model)
    assert model.evaluate is own


def test_copies_of_a_detached_model_are_stock(strategy, alone, tmp_path):
    model = strategy.attach(make())
    losses(model)
    strategy.detach(model)
    model.save(tmp_path / "m.keras")
    copies = [
        pickle.loads(pickle.dumps(model)),
        copy.deepcopy(model),
        keras.models.clone_model(model),
        keras.models.load_model(tmp_path / "m.keras"),
    ]
    assert not any(controller_of(each) for each in copies)
    with strategy.scope():
        loaded = keras.models.load_model(tmp_path / "m.keras")
    assert controller_of(loaded).setup.options == millrace.base.options.Options()
    for each in (*copies[:2], copies[3], loaded):
        np.testing.assert_array_equal(each.layers[0].kernel, model.layers[0].kernel)
    strategy.detach(loaded)


def test_a_model_inside_another_stays_attached_by_itself(strategy, alone):
    with strategy.scope():
        inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        outer = keras.Sequential([keras.Input((4,)), inner])
    strategy.detach(outer)
    assert controller_of(inner) is not None
    assert FIT in patches_in()
    strategy.detach(inner)


def test_after_clear_session(strategy, alone):
    model = strategy.attach(make())
    losses(model)
    keras.backend.clear_session()
    strategy.detach(model)
    assert np.isfinite(losses(model)).all()


def test_an_iterator_that_keras_makes_elsewhere_is_an_error(strategy, monkeypatch):
    model = strategy.attach(make())
    stock = patches.unpatched(vars(EPOCH_ITERATOR.owner())["JAXEpochIterator"])
    monkeypatch.setattr(EPOCH_ITERATOR.owner(), "JAXEpochIterator", stock)
    with pytest.raises(MillraceError, match=rf"loops of keras {keras.__version__} draw batches in"):
        losses(model)


@pytest.mark.slow
def test_in_a_fresh_process_the_registry_knows_every_change_and_undoes_it():
    command = [sys.executable, str(pathlib.Path(__file__).parent / "patches_script.py")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-2:] == ["[]", "[] True"]
