"""`millrace run`: programs for TensorFlow and the IPU, unchanged."""

import importlib
import os
import py_compile
import subprocess
import sys
import zipfile

import pytest
from click.testing import CliRunner

import millrace
import millrace_ipu
from millrace.tools.cli.main import main
from millrace_ipu.errors import UnsupportedNameError
from millrace_ipu.porting.running.serve import serving
from millrace_ipu.tensorflow.dispatch import real_name, real_tensorflow

PROGRAM = """
import argparse
import os
import sys

os.environ["TF_POPLAR_FLAGS"] = f"--executable_cache_path={os.path.dirname(__file__)}/cache"

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras.layers import Dense
from tensorflow.python import ipu
from tensorflow.python.ipu import ipu_strategy, ipu_outfeed_queue
from tensorflow.python.ipu.config import IPUConfig
from ipu_tensorflow_addons.keras.layers import RecomputationCheckpoint
import tensorflow.python.ipu.utils as ipu_utils
import keras.ipu
import millrace_ipu.ipu
import outfeed_wrapper
import outfeed_layers

assert tf.__version__[0] == "2"
assert ipu is millrace_ipu.ipu and ipu_utils is millrace_ipu.ipu.utils
assert millrace_ipu.ipu.environment.cache_directory().endswith("/cache")  # as the program says
assert sys.modules["tensorflow.python.ipu.config"] is millrace_ipu.ipu.config
assert keras.ipu is millrace_ipu.ipu.keras
assert millrace_ipu.ipu.config.__spec__.name == "millrace_ipu.ipu.config"
assert outfeed_layers.MINE and outfeed_wrapper is millrace_ipu.ipu.outfeed_wrapper
keras.utils.set_random_seed(3)

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
steps = parser.parse_args().steps

cfg = IPUConfig()
cfg.auto_select_ipus = 1
cfg.configure_ipu_system()
queue = ipu_outfeed_queue.IPUOutfeedQueue()


@tf.function(experimental_compile=True)
def train(n, iterator, model, optimizer):
    for _ in tf.range(n):
        x, y = next(iterator)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        queue.enqueue(loss)


strategy = ipu_strategy.IPUStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), Dense(1), RecomputationCheckpoint()])
    data = tf.data.Dataset.from_tensors((np.ones(2, "f4"), np.ones(1, "f4"))).repeat()
    iterator = iter(data.batch(4, drop_remainder=True))
    strategy.run(train, args=[steps, iterator, model, keras.optimizers.SGD(0.1)])
    losses = queue.dequeue()
    model.save(sys.argv[0] + ".keras")  # Keras asks for TensorFlow's types there
print("falling", losses.numpy()[-1] < losses[0], losses.shape)
sys.exit(steps)
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "outfeed_layers.py").write_text("MINE = True\n")
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def run(*words, path=""):
    start = "from millrace.tools.cli.main import main; main()"
    command = [sys.executable, "-c", start, "run", *map(str, words)]
    paths = [str(path), *(os.path.dirname(p.__path__[0]) for p in (millrace, millrace_ipu))]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore::FutureWarning"}  # of keras 3.13
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_a_program_runs_unchanged_and_its_exit_status_is_passed_on(script):
    done = run(script, "--steps", "5")
    assert done.stderr == ""
    assert done.stdout == "falling True (5,)\n"
    assert done.returncode == 5


def test_an_error_is_shown_as_python_shows_it(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("import tensorflow as tf\n\nraise ValueError(tf.__version__)\n")
    result = CliRunner().invoke(main, ["run", str(script)])
    assert result.exit_code == 1
    first, second, *_, last = result.stderr.splitlines()
    assert first == "Traceback (most recent call last):"
    assert second == f'  File "{script}", line 3, in <module>'
    assert last == "ValueError: 2.6.0"


@pytest.mark.parametrize("kind", ["pyc", "pyz"])
def test_what_python_runs_besides_source_runs(tmp_path, kind):
    source = tmp_path / "__main__.py"
    source.write_text("import tensorflow as tf\n\nprint('runs', tf.__version__)\n")
    script = tmp_path / f"program.{kind}"
    if kind == "pyc":
        py_compile.compile(str(source), str(script))
    else:
        with zipfile.ZipFile(script, "w") as archive:
            archive.write(source, "__main__.py")
    result = CliRunner().invoke(main, ["run", str(script)])
    assert (result.exit_code, result.stdout) == (0, "runs 2.6.0\n")


def test_the_flags():
    assert [p.opts[0] for p in main.commands["run"].params] == [
        "--release",
        "--devices",
        "script",
        "arguments",
    ]
    result = CliRunner().invoke(main, ["run", "missing.py"])
    assert result.exit_code == 2
    assert "missing.py" in result.output


def test_modules_are_as_before_when_nothing_is_served(tmp_path):
    with serving(tmp_path):
        import tensorflow as tf

        import millrace_ipu.tensorflow

        assert tf is millrace_ipu.tensorflow
        with pytest.raises(ModuleNotFoundError, match=r"'tensorflow.none': it stands for millr"):
            importlib.import_module("tensorflow.none")
        importlib.import_module("tensorflow.lite")
        assert "tensorflow.lite" in sys.modules
    assert "tensorflow" not in sys.modules
    assert "tensorflow.lite" not in sys.modules
    assert "python" not in vars(millrace_ipu.tensorflow)


REAL = """
import sys

__version__ = "2.16"


class Tensor:
    pass


Tensor.__module__ = "tensorflow.python.framework"


def cast(x, dtype):
    return "real cast"


def only_there():
    return "real"


def executing_eagerly():
    return True
"""


USES_BOTH = """
import tensorflow as tf
import tensorflow.lite

tensor = tf.only_there.__globals__["Tensor"]()
print(tf.__version__, tf.only_there(), tf.cast(tensor, 1))
print(tensorflow.lite.NAME, tf.keras.__name__, tf.float32.name)
try:
    tf.missing
except AttributeError as error:
    print("missing" in str(error))
"""


@pytest.mark.slow
def test_names_of_the_real_one_if_it_is_installed(tmp_path):
    package = tmp_path / "site" / "tensorflow"
    (package / "lite").mkdir(parents=True)
    (package / "__init__.py").write_text(REAL + "from tensorflow import lite\n")
    (package / "lite" / "__init__.py").write_text("NAME = 'lite'\n")
    script = tmp_path / "uses.py"
    script.write_text(USES_BOTH)
    done = run(script, path=tmp_path / "site")
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["2.6.0 real real cast", "lite keras float32", "True"]


def test_a_name_that_there_is_nowhere():
    real_tensorflow.cache_clear()
    with pytest.raises(AttributeError, match=r"has no 'bitwise'.*keras.ops.*or run python -m pip"):
        real_name("bitwise")
    with pytest.raises(AttributeError, match=r"Write it with keras.ops.erfinv, or run python"):
        real_name("math.erfinv")
    with pytest.raises(UnsupportedNameError, match=r"tf.raw_ops.Add is not .*: keras.ops, or jax"):
        real_name("raw_ops").Add(x=1, y=2)
