"""Saving, loading, copying and describing: an attached model stays a stock Keras model."""

import copy
import pickle

import cases
import keras
import numpy as np
import pytest


def normalized():
    """No dropout: Keras does not save the state of seed generators."""
    hidden = [keras.layers.Dense(8, "relu"), keras.layers.BatchNormalization(momentum=0.8)]
    return keras.Sequential([keras.Input((6,)), *hidden, keras.layers.Dense(1, "sigmoid")])


CASE = cases.Case("binary", normalized)
METHOD = "set_gradient_accumulation_options"


def is_attached(model):
    return hasattr(model, METHOD)


def trained(strategy):
    model = cases.compiled(CASE, strategy, 4)
    model.set_gradient_accumulation_options(
        gradient_accumulation_steps_per_replica=2, gradient_accumulation_reduction_method="sum"
    )
    keras.utils.set_random_seed(2)
    model.fit(**CASE.data(16), batch_size=4, verbose=0)
    return model


def fit(model):
    # Not shuffled: Keras draws one more order where it has to build the metrics of a loaded model.
    history = model.fit(**CASE.data(16), batch_size=4, shuffle=False, verbose=0)
    return cases.outcome(model, history)


def test_loaded_inside_a_scope_it_is_attached_with_its_options(strategy, tmp_path):
    model = trained(strategy)
    path = str(tmp_path / "model.keras")
    model.save(path)
    with strategy.scope():
        loaded = keras.models.load_model(path)
    assert is_attached(loaded)
    assert loaded.steps_per_execution == 4
    cases.assert_same(fit(loaded), fit(model))
    assert int(loaded.optimizer.iterations) == 4  # two updates of two steps, twice


def test_loaded_outside_it_is_a_stock_model(strategy, tmp_path):
    model = trained(strategy)
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = keras.models.load_model(path)
    assert not is_attached(loaded)
    assert type(loaded) is type(model) is keras.Sequential
    cases.assert_same_variables(
        cases.variables_of(loaded)[: len(model.variables)],
        cases.variables_of(model)[: len(model.variables)],
    )
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=1)
    cases.assert_same(fit(model), fit(loaded))


def test_a_stock_model_loads_inside_a_scope(strategy, tmp_path):
    stock = cases.compiled(CASE)
    fit(stock)
    path = str(tmp_path / "model.keras")
    stock.save(path)
    with strategy.scope():
        loaded = keras.models.load_model(path)
    assert is_attached(loaded)
    cases.assert_same(fit(loaded), fit(stock))


def test_weights_files_are_those_of_stock_models(strategy, tmp_path):
    model, stock = trained(strategy), cases.compiled(CASE)
    path = str(tmp_path / "model.weights.h5")
    stock.optimizer.build(stock.trainable_variables)
    model.save_weights(path)
    stock.load_weights(path)
    cases.assert_close(stock.get_weights(), model.get_weights())
    stock.set_weights([2 * weight for weight in stock.get_weights()])
    stock.save_weights(path)
    model.load_weights(path)
    cases.assert_close(model.get_weights(), stock.get_weights())
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=1)
    cases.assert_close(fit(model).history, fit(stock).history)


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))],
    ids=["deepcopy", "pickle"],
)
def test_copies(strategy, duplicate):
    """A copy has weights of its own, and trains as its original does."""
    model = trained(strategy)
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=1)
    before = [np.array(weight) for weight in model.get_weights()]
    twin = duplicate(model)
    assert type(twin) is keras.Sequential
    cases.assert_close(twin.get_weights(), before)
    after_copy = fit(twin)
    for weight, value in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, value)
    cases.assert_close(after_copy.history, fit(model).history)
    cases.assert_close(twin.get_weights(), model.get_weights())


def test_copies_made_inside_a_scope_are_attached_to_themselves(strategy):
    model = trained(strategy)
    with strategy.scope():
        twins = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for twin in twins:
        assert is_attached(twin)
        before = [np.array(weight) for weight in model.get_weights()]
        fit(twin)
        cases.assert_close(model.get_weights(), before)


def test_clones(strategy):
    model = trained(strategy)
    assert not is_attached(keras.models.clone_model(model))
    with strategy.scope():
        clone = keras.models.clone_model(model)
    assert is_attached(clone)
    assert type(clone) is keras.Sequential
    clone.set_weights(model.get_weights())
    x = CASE.data(8)["x"]
    cases.assert_close(clone.predict(x, verbose=0), model.predict(x, verbose=0))


def test_configuration_and_summary_do_not_show_it(strategy):
    stock, model = cases.compiled(CASE), cases.compiled(CASE, strategy)
    texts = []
    for m in (stock, model):
        lines = []
        m.summary(print_fn=lambda line, lines=lines: lines.append(line))
        texts.append("\n".join(lines).replace(m.name, "model"))
        assert isinstance(m, keras.Sequential)
        assert isinstance(m, keras.Model)
        assert type(m) is keras.Sequential
    assert "millrace" not in texts[1]
    assert len(texts[0].splitlines()) == len(texts[1].splitlines())
    # Names differ by the numbers that Keras gives to layers of one kind; their keys do not.
    assert keys(model.get_config()) == keys(stock.get_config())
    assert keys(model.get_compile_config()) == keys(stock.get_compile_config())
    assert "millrace" not in model.to_json()
    rebuilt = keras.Sequential.from_config(model.get_config())
    assert [w.shape for w in rebuilt.weights] == [w.shape for w in stock.weights]


def keys(config):
    if isinstance(config, dict):
        return {name: keys(value) for name, value in config.items()}
    if isinstance(config, list | tuple):
        return [keys(value) for value in config]
    return None


def test_attachment_adds_no_variable_and_no_layer(strategy):
    stock, model = cases.compiled(CASE), cases.compiled(CASE, strategy)
    fit(stock)
    fit(model)
    for name in ("variables", "weights", "layers", "metrics", "losses", "metrics_names"):
        assert len(getattr(model, name)) == len(getattr(stock, name)), name


@keras.saving.register_keras_serializable("millrace_tests")
class Saved(keras.Model):
    """A subclassed model with assets of its own."""

    def __init__(self, units=4, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.hidden = keras.layers.Dense(units)
        self.note = "unset"

    def call(self, inputs):
        return self.hidden(inputs)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def test_a_subclassed_model_keeps_its_class(strategy, tmp_path):
    with strategy.scope():
        model = Saved(3)
    model.compile("sgd", "mse", steps_per_execution=2)
    x = CASE.data(8)["x"]
    model.fit(x, np.zeros((8, 3), "float32"), batch_size=4, verbose=0)
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = keras.models.load_model(path)
    assert type(loaded) is Saved
    assert not is_attached(loaded)
    cases.assert_close(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
