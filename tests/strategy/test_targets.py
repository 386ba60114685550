"""Targets without their compilers: the data, the errors, and variables without values.

tests/targets compiles for them.
"""

import resource

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from keras import layers

import millrace
from millrace._compat import jax_refused
from millrace._compat.jax_executables import argument_bytes, module_proto, requirement
from millrace._compat.jax_targets import CompilerMissingError
from millrace._compat.keras_variables import NoValueError, described_variables
from millrace.base.targets import target as targets
from millrace.errors import DeviceError, OptionError
from millrace.run.memory.hlo_proto import read_module
from millrace.tools.operations.count import OperationCounter


@pytest.mark.parametrize("name", targets.kinds())
def test_a_kind_of_device_is_described_with_its_sources(name):
    kind = targets.kind_of_name(name)
    assert kind.platform in ("gpu", "tpu")
    assert 2**33 < kind.usable <= kind.memory
    assert set(kind.rates) == {"memory_bytes", "link_bytes", "host_bytes"}
    assert 0 < kind.rates["host_bytes"] < kind.rates["memory_bytes"]
    assert kind.flops["float32"] <= kind.flops["bfloat16"] == kind.flops_of("bfloat16")
    assert kind.sources
    assert all(address.startswith("https://") for address in kind.sources)


def test_jax_takes_a_share_of_a_gpu(monkeypatch):
    kind = targets.kind_of_name("h100")
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    assert kind.usable == int(kind.memory * 0.75)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", ".9")
    assert kind.usable == int(kind.memory * 0.9)
    assert targets.kind_of_name("v5e").usable == targets.kind_of_name("v5e").memory


@pytest.mark.parametrize("target", ["h1000", "", "h100:", 8, "h100:8:8", "v5e:x", "../h100"])
def test_a_target_that_there_is_not(target):
    with pytest.raises(OptionError, match=r"target is one of a100-80gb, h100, .*Received: target="):
        millrace.Strategy(target=target)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("h100:2x4", "h100 is counted"),
        ("h100:12", "not a whole number of hosts with 8 devices each. Set it to 'h100:8' or "),
        ("h100:0", "h100 is counted"),
    ],
)
def test_gpus_are_counted(target, message):
    with pytest.raises(OptionError, match=message):
        millrace.Strategy(target=target)


def test_devices_or_a_target():
    with pytest.raises(OptionError, match="Leave one of them out"):
        millrace.Strategy(devices=1, target="h100")


@pytest.mark.parametrize(
    ("target", "function", "extra"),
    [
        ("h100:8", "described_gpus", "millrace[gpu-compiler]"),
        ("v5e", "described_tpus", "millrace[tpu-compiler]"),
    ],
)
def test_without_its_compiler_the_command_is_named(monkeypatch, target, function, extra):
    def missing(*_):
        raise CompilerMissingError

    monkeypatch.setattr(targets, function, missing)
    with pytest.raises(DeviceError) as caught:
        millrace.Strategy(target=target)
    assert f"python -m pip install '{extra}'" in str(caught.value)


class OwnModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = layers.Dense(4096, "relu"), layers.Dense(2)

    def call(self, x):
        return self.out(self.hidden(x))


def test_a_large_model_takes_no_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with described_variables():
        model = keras.Sequential([keras.Input((16_384,)), *map(layers.Dense, [16_384] * 20)])
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
    assert model.count_params() > 5e9
    assert len(model.optimizer.variables) > 80
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert grown < 300e6


def test_a_variable_without_a_value():
    with described_variables():
        model = keras.Sequential([keras.Input((256,)), layers.Dense(256), layers.Dense(2)])
    large, small = model.layers[0].kernel, model.layers[1].kernel
    assert large.shape == (256, 256)
    assert "shape=(256, 256)" in repr(large)
    assert np.asarray(small).shape == (256, 2)
    with pytest.raises(
        NoValueError, match=r"'sequential\S*/dense\S*/kernel' has a shape, \(256, 256"
    ):
        large.numpy()
    with pytest.raises(NoValueError, match="whose devices are not here"):
        model.get_weights()
    with described_variables():
        large.assign(np.ones((256, 256), "float32"))
        with pytest.raises(ValueError, match="must match"):
            large.assign(np.ones((2, 2), "float32"))
    with pytest.raises(NoValueError):
        large.numpy()
    assert jax.eval_shape(lambda: jnp.asarray(large)).shape == (256, 256)


def test_a_call_for_arrays_builds_a_model():
    x = np.zeros((3, 512), "float32")
    with described_variables():
        model = OwnModel()
        results = model(x)
        assert isinstance(results, keras.KerasTensor)
        assert results.shape == (3, 2)
        assert model.hidden.kernel.shape == (512, 4096)
        assert isinstance(layers.Rescaling(2.0)(x), jax.Array)
        normalization = layers.Normalization()
        normalization.adapt(np.arange(6.0).reshape(3, 2))
        assert np.allclose(normalization(np.array([[2.0, 3.0]])), 0)
    with pytest.raises(NoValueError):
        model.hidden.kernel.numpy()


def test_variables_of_stock_models_stay_as_they_are():
    with millrace.Strategy().scope():
        model = keras.Sequential([keras.Input((256,)), layers.Dense(256)])
    assert np.asarray(model.layers[0].kernel).std() > 0


EARLY = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries "
    "(18.90G) exceeds available HBM (15.75G)."
)
LATE = (
    "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: XLA:TPU compile permanent error. Ran out of "
    "memory in memory space hbm. Used 17.54G of 15.75G hbm. Exceeded hbm capacity by 1.79G."
)


@pytest.mark.parametrize(("text", "size"), [(EARLY, 18.90), (LATE, 17.54)])
def test_a_program_that_a_tpu_cannot_hold_has_a_size(monkeypatch, text, size):
    def loss(w, x):
        return jax.lax.scan(lambda w, x: (w - jnp.outer(x, x @ w), w.sum()), w, x)

    w, x = jnp.ones((64, 64)), jnp.ones((10, 64))
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    lowered = jax.jit(loss, in_shardings=here).trace(w, x).lower()
    error = jax.errors.JaxRuntimeError(text)
    assert jax_refused.refused(lowered, error) is None  # of a device that is here
    monkeypatch.setattr(jax_refused, "is_described", lambda _: True)
    assert jax_refused.refused(lowered, ValueError("another")) is None
    found = jax_refused.refused(lowered, error)
    assert requirement(found) == int(size * 2**30)
    assert argument_bytes(found) == w.nbytes + x.nbytes
    operations = OperationCounter(read_module(module_proto(found))).operations()
    flops = sum(each.times * flops for each in operations for _, flops in each.flops)
    assert flops >= 10 * (2 * 64 * 64 + 2 * 64 * 64)  # of a loop whose length XLA did not note
    with pytest.raises(RuntimeError, match="cannot run"):
        found(w, x)
