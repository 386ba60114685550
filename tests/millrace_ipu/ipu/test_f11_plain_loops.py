import keras
import numpy as np
from linear_models import RATE, START, linear, rows

from millrace_ipu import tensorflow as tf
from millrace_ipu.ipu.ipu_strategy import IPUStrategy


def stock(**arguments):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.full((1, 1), START)])
    model.compile(keras.optimizers.SGD(RATE), "mse", metrics=["mae"], **arguments)
    return model


def test_f11_fit_evaluate_and_predict_return_what_keras_returns():
    x, y = rows(12)
    data = {"batch_size": 2, "verbose": 0}
    ours, keras_own = linear(IPUStrategy(), metrics=["mae"]), stock()
    fit = {"epochs": 2, "shuffle": False, "validation_data": (x[:4], y[:4])}
    actual = ours.fit(x, y, **data, **fit)
    wanted = keras_own.fit(x, y, **data, **fit)
    assert type(actual) is type(wanted)
    assert list(actual.history) == ["loss", "mae", "val_loss", "val_mae"]
    for name, values in wanted.history.items():
        np.testing.assert_allclose(actual.history[name], values, rtol=1e-5)
    np.testing.assert_allclose(ours.get_weights()[0], keras_own.get_weights()[0], rtol=1e-6)
    for as_dict in (False, True):
        actual = ours.evaluate(x, y, **data, return_dict=as_dict)
        wanted = keras_own.evaluate(x, y, **data, return_dict=as_dict)
        assert type(actual) is type(wanted)
        values = (actual.values(), wanted.values()) if as_dict else (actual, wanted)
        np.testing.assert_allclose(*map(list, values), rtol=1e-5)
    actual = ours.predict(x, **data)
    assert actual.shape == (12, 1)
    np.testing.assert_allclose(actual, keras_own.predict(x, **data), rtol=1e-5)


def test_f11_equal_fits_compile_once():
    strategy = IPUStrategy()
    model = linear(strategy, steps_per_execution=2)

    def fit():
        x, y = rows(8)  # other data, in another data set
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(2, drop_remainder=True)
        model.fit(data, epochs=2, verbose=0)
        return strategy.statistics().compilations

    first = fit()
    assert first == len(strategy.compile_log) > 0
    assert fit() == fit() == first
