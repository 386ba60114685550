"""Idioms of the choice of devices."""

import os
import subprocess
import sys

import pytest
from idioms import idiom

# A process of its own: JAX must not have started.
START = """
import tensorflow as tf
from tensorflow import keras
from tensorflow.python import ipu

def configure(number):
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = number
    config.configure_ipu_system()
    return ipu.ipu_strategy.IPUStrategy()
"""


@idiom("Devices", "`tf.random.uniform` or a model before `configure_ipu_system()`")
@idiom("Devices", "one device first, more in a second configuration")
@idiom("Devices", "`auto_select_ipus = args.replicas`, with the number from the command line")
def test_devices_are_as_many_as_the_program_will_ask_for(process):
    run = process(
        START
        + """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--replicas", type=int, default=1)
args = parser.parse_args()
x = tf.random.uniform((4, 3))
before = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
print(before.predict(x, verbose=0).shape)
print(len(configure(1).devices), len(configure(args.replicas).devices))
""",
        "--replicas",
        "3",
    )
    assert run.stdout == "(4, 1)\n1 3\n", run.stderr


def ported(directory, text, environment):
    """Runs a program whose imports have been changed, without `millrace run`."""
    for name in ("tensorflow.python import ipu", "tensorflow import keras"):
        text = text.replace(f"from {name}", f"from millrace {name.partition(' ')[2]}")
    text = text.replace("from millrace import keras", "import keras")
    text = text.replace("import tensorflow as", "from millrace import tensorflow as")
    script = directory / "ported.py"
    script.write_text(text)
    unset = ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")
    return subprocess.run(
        [sys.executable, str(script)],
        env={k: v for k, v in os.environ.items() if k not in unset} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("before", "environment", "advice"),
    [
        ("configure(1)", {}, "XLA_FLAGS=--xla_force_host_platform_device_count=2"),
        (
            "tf.random.uniform((2,))",
            {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"},
            "JAX_NUM_CPU_DEVICES=2",
        ),
    ],
)
def test_the_advice_for_too_few_devices_works(tmp_path, before, environment, advice):
    text = f"{START}\n{before}\nprint(len(configure(2).devices))"
    run = ported(tmp_path, text, environment)
    assert "auto_select_ipus=2 takes 2 devices, and there are 1" in run.stderr
    assert f"Set the environment variable {advice}" in run.stderr
    name, _, value = advice.partition("=")
    run = ported(tmp_path, text, {**environment, name: value})
    assert run.stdout == "2\n", run.stderr


def test_the_first_configuration_of_a_ported_program_makes_its_devices(tmp_path):
    run = ported(tmp_path, f"{START}\nprint(len(configure(3).devices))", {})
    assert run.stdout == "3\n", run.stderr
