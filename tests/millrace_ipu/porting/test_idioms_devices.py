"""Idioms of the choice of devices."""

import os

import pytest
from click.testing import CliRunner
from idioms import idiom

from millrace.errors import DeviceError, PlanError
from millrace.tools.cli.main import main
from millrace_ipu.cli.porting import _RELEASE
from millrace_ipu.ipu.release import VARIABLE

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


@pytest.mark.slow
@idiom("Devices", "`tf.random.uniform` or a model before `configure_ipu_system()`")
@idiom("Devices", "one device first, more in a second configuration")
@idiom("Devices", "`auto_select_ipus = args.replicas`, with the number from the command line")
def test_the_option_makes_devices_before_the_program_starts(process):
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
print(len(configure(1).devices), len(configure(args.replicas).devices), flush=True)
configure(4)
""",
        "--replicas",
        "3",
        command="run --devices 3",
    )
    assert run.stdout == "(4, 1)\n1 3\n", run.stderr
    assert "auto_select_ipus=4 takes 4 devices, and there are 3" in run.stderr
    assert "Run the program with `millrace run --devices 4`" in run.stderr


def test_the_environment_may_set_too_few_devices(program, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    with pytest.raises(DeviceError, match="Set the environment variable JAX_NUM_CPU_DEVICES=9"):
        program(f"{START}\nconfigure(9)")


STEPS = """
import tensorflow as tf
from tensorflow import keras
from tensorflow.python import ipu

config = ipu.config.IPUConfig()
config.auto_select_ipus = 2
config.configure_ipu_system()
batches = 750
with ipu.ipu_strategy.IPUStrategy().scope():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=PER_EXECUTION)
x = tf.ones((batches, 1))
data = tf.data.Dataset.from_tensor_slices((x, x)).batch(1, drop_remainder=True)
model.fit(data, verbose=0)
print(int(model.optimizer.iterations))
"""


@idiom("Steps and batches", "`steps_per_execution = steps_per_epoch // replicas`")
def test_an_execution_counts_the_batches_of_one_replica(program):
    assert program(STEPS.replace("PER_EXECUTION", "batches // 2")) == "375\n"


@idiom("Steps and batches", "`steps_per_execution` over all replicas, by `--release 2.4`")
def test_an_execution_counts_the_batches_of_all_replicas(program, monkeypatch):
    monkeypatch.setenv("MILLRACE_IPU_RELEASE", "2.4")
    assert program(STEPS.replace("PER_EXECUTION", "250")) == "375\n"
    with pytest.raises(PlanError, match="those of one: unset MILLRACE_IPU_RELEASE"):
        program(STEPS.replace("PER_EXECUTION", "375"))


@idiom("Steps and batches", "a data set whose batches are no multiple of the replicas")
def test_batches_that_are_over_are_left_out(program):
    text = STEPS.replace("batches = 750", "batches = 9").replace("PER_EXECUTION", "4")
    assert program(text) == "4\n"


@idiom("Steps and batches", "`fit(dataset.repeat(), steps_per_epoch=n, epochs=m)` on replicas")
def test_steps_of_an_epoch_count_all_replicas(program):
    text = STEPS.replace("PER_EXECUTION", "2").replace("batches = 750", "batches = 6")
    text = text.replace("model.fit(data,", "model.fit(data.repeat(), steps_per_epoch=8, epochs=3,")
    assert program(text) == "12\n"


def test_a_program_sets_its_release(program, monkeypatch):
    monkeypatch.setenv("MILLRACE_IPU_RELEASE", "")
    text = STEPS.replace("PER_EXECUTION", "10")
    text = text.replace(
        "model.fit", "import os\nos.environ['MILLRACE_IPU_RELEASE'] = '2.4'\nmodel.fit"
    )
    assert program(text) == "375\n"
    assert os.environ["MILLRACE_IPU_RELEASE"] == "2.4"


def test_the_option_release_sets_the_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("MILLRACE_IPU_RELEASE", "")
    script = tmp_path / "script.py"
    script.write_text("import os\nprint(os.environ.get('MILLRACE_IPU_RELEASE'))\n")
    runner = CliRunner()
    assert runner.invoke(main, ["run", str(script)]).output == "\n"
    assert runner.invoke(main, ["run", "--release", "2.4", str(script)]).output == "2.4\n"
    assert "'2.4', '2.5'" in runner.invoke(main, ["run", "--release", "2", str(script)]).output
    assert _RELEASE == VARIABLE
