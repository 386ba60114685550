import os
import pathlib
import subprocess
import sys

import jax
import keras
import numpy as np
import pytest

import millrace
from millrace.base.devices import devices_of_environment, find_devices, spare_threads
from millrace.errors import DeviceError, OptionError


def test_forms_of_devices():
    cpus = jax.devices("cpu")
    assert find_devices(None) == tuple(jax.devices())
    assert find_devices(2) == tuple(cpus[:2])
    assert find_devices("cpu:3") == tuple(cpus[:3])
    assert find_devices("cpu") == tuple(cpus)
    assert find_devices([cpus[5], cpus[1]]) == (cpus[5], cpus[1])


@pytest.mark.parametrize("devices", ["ipu:2", "cpu:x", 2.5, [], ["cpu:0"], True, {}])
def test_what_is_no_devices(devices):
    with pytest.raises(OptionError, match="devices"):
        find_devices(devices)


def test_errors_say_what_there_is():
    with pytest.raises(DeviceError, match=r"Asked for 99 .* has 8 .cpu.. Set devices='cpu:99'"):
        find_devices(99)
    with pytest.raises(DeviceError, match="There is no tpu here: JAX has cpu"):
        find_devices("tpu:1")
    with pytest.raises(OptionError, match="at least 1"):
        find_devices(0)
    with pytest.raises(OptionError, match="twice"):
        find_devices([jax.devices()[0]] * 2)


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={}, check=False
    )


@pytest.mark.slow
def test_virtual_devices_are_made():
    result = run("import millrace; print(len(millrace.Strategy(devices='cpu:8').devices))")
    assert result.stdout.strip() == "8", result.stderr


@pytest.mark.slow
def test_a_strategy_leaves_others_the_devices_that_they_asked_for():
    """JAX starts with the first array, and until then a smaller number would replace the larger."""
    result = run(
        "import jax; jax.config.update('jax_num_cpu_devices', 8); import millrace as m; "
        "m.Strategy(devices='cpu:4'); print(len(m.Strategy(devices='cpu').devices))"
    )
    assert result.stdout.strip() == "8", result.stderr


@pytest.mark.slow
def test_jax_starts_with_more_devices_until_something_uses_those_that_it_has():
    result = subprocess.run(
        [sys.executable, str(pathlib.Path(__file__).parent / "started_devices.py")],
        env={"KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        check=False,
    )
    refused = """
3 3.0 devices='cpu:8' needs 8 CPU devices, and JAX had already started with 3, which the program \
uses by now. Move the line
    strategy = millrace.Strategy(devices='cpu:8')
above everything that builds a model or an array, or keeps a device of JAX.\
"""
    assert result.stdout.strip() == f"2\n3\ncpu:0 cpu:0{3 * refused}", result.stderr


def test_a_model_runs_on_the_device_of_its_strategy():
    devices = jax.devices()[3:4]
    strategy = millrace.Strategy(devices)
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    assert model.layers[0].kernel.value.devices() == {devices[0]}


@pytest.mark.parametrize(
    ("flags", "number", "wanted"),
    [
        ("", "", None),
        ("--xla_dump_to=x", "", None),
        ("--xla_force_host_platform_device_count=4 --xla_dump_to=x", "", 4),
        ("--xla_force_host_platform_device_count=4", "2", 2),  # as JAX decides it
        ("", "3", 3),
    ],
)
def test_the_number_of_devices_that_the_environment_sets(flags, number, wanted, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", number)
    assert devices_of_environment() == wanted


def test_xla_has_threads_to_spare(monkeypatch):
    for given, expected in (("", "32"), ("3", "32"), ("100", "100"), ("many", "32")):
        for name in ("NPROC", "PJRT_NPROC"):
            monkeypatch.setenv(name, given)
        spare_threads()  # for the 8 devices of the tests
        assert (os.environ["NPROC"], os.environ["PJRT_NPROC"]) == (expected, expected)
