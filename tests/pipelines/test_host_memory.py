"""On an accelerator: what rests in host memory takes nothing of the device. Skipped on CPUs."""

import jax
import keras
import numpy as np
import pytest
from keras import layers

import millrace

pytestmark = pytest.mark.gpu
UNITS, DEPTH = 2048, 6


def build(steps=2):
    keras.utils.set_random_seed(0)
    with millrace.Strategy(devices=1).scope():
        model = keras.Sequential(
            [keras.Input((UNITS,)), *(layers.Dense(UNITS) for _ in range(DEPTH)), layers.Dense(1)]
        )
    model.compile("adam", "mse", steps_per_execution=2 * steps)
    return model


class BytesInUse(keras.callbacks.Callback):
    """Notes the device memory in use after each execution."""

    def on_train_batch_end(self, batch, logs=None):
        state = self.model._jax_state
        jax.block_until_ready(jax.tree.leaves(state))
        self.bytes = jax.devices()[0].memory_stats()["bytes_in_use"]


def train(on, **options):
    model, seen = build(), BytesInUse()
    model.set_gradient_accumulation_options(
        gradient_accumulation_steps_per_replica=2, offload_weight_update_variables=on, **options
    )
    x = np.random.default_rng(0).normal(size=(64, UNITS)).astype("float32")
    history = model.fit(x, x[:, :1], batch_size=8, verbose=0, callbacks=[seen], shuffle=False)
    return seen.bytes, history.history["loss"], model


@pytest.fixture(autouse=True)
def accelerator():
    if jax.devices()[0].platform == "cpu":
        pytest.skip("the device is a CPU")


def test_the_device_is_without_the_state_between_updates():
    with_state, expected, model = train(False)
    state = sum(v.value.nbytes for v in model.optimizer.variables)
    del model
    without, losses, model = train(None)  # which is True where an update takes several steps
    kinds = {v.value.sharding.memory_kind for v in model.optimizer.variables if v.value.ndim}
    assert kinds == {"pinned_host"}
    assert losses == expected
    assert with_state - without > 0.9 * state


def test_a_peak_with_large_activations_is_lower():
    peaks = []
    for on in (False, True):
        model = build(1)
        model.set_gradient_accumulation_options(offload_weight_update_variables=on)
        x = np.zeros((4 * 16384, UNITS), "float32")
        model.fit(x, x[:, :1], batch_size=16384, verbose=0)
        peaks.append(max(record.peak_bytes or 0 for record in _log(model)))
    assert peaks[1] < peaks[0]


def _log(model):
    return model._millrace.totals.compile_log
