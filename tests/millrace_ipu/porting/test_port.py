"""What of a program does not carry over, and what to write instead."""

import pathlib

import keras
import pytest
from click.testing import CliRunner

import millrace
from millrace.tools.cli.main import main
from millrace_ipu.ipu.replacements import IPU
from millrace_ipu.porting.findings.port import port, port_program
from millrace_ipu.porting.findings.program import PortedProgram
from millrace_ipu.porting.replacements import canonical, exists
from millrace_ipu.tensorflow.replacements import MODULES, OPERATIONS, TENSORFLOW

pytestmark = pytest.mark.quick

IMPORTS = """
import tensorflow as tf
from tensorflow import keras
from tensorflow.python import ipu
"""
HEAD = len(IMPORTS.splitlines())


def findings(code, blocking=True):
    """What is found as (line, what, instead)."""
    found = port(IMPORTS + code)
    return [(f.line - HEAD, f.what, f.instead) for f in found if f.blocks is blocking]


def one(code, blocking=True):
    ((_, what, instead),) = findings(code, blocking)
    return what, instead


def test_a_program_that_carries_over():
    assert (
        findings("""
config = ipu.config.IPUConfig()
config.auto_select_ipus = 2
config.configure_ipu_system()
strategy = ipu.ipu_strategy.IPUStrategy()
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(4)])
    model.set_pipeline_stage_assignment([0])
    model.compile("sgd", loss=keras.losses.MeanSquaredError(), steps_per_execution=8)
with keras.ipu.PipelineStage(0):
    x = tf.data.Dataset.from_tensor_slices((x, y)).batch(4, drop_remainder=True)
model.fit(x, epochs=2)
model.save("model.keras")
""")
        == []
    )


def test_calls_of_a_model_of_an_old_class_are_no_findings_of_their_own():
    code = "model = ipu.keras.PipelineModel(a, b)\nmodel.compile('sgd')\nmodel.fit(x)"
    assert one(code)[0] == "ipu.keras.PipelineModel"


@pytest.mark.parametrize(
    ("code", "what", "instead"),
    [
        ("ipu.keras.PipelineSequential([])", "ipu.keras.PipelineSequential", "stage_assignment"),
        ("ipu.keras.IPUModel(a, b)", "ipu.keras.IPUModel", "keras.Model"),
        ("ipu.embedding_ops.HostEmbedding('e', 1)", "ipu.embedding_ops.HostEmbedding", "Embedding"),
        ("ipu.ipu_estimator.IPUEstimator(fn)", "ipu.ipu_estimator.IPUEstimator", "model.fit"),
        ("ipu.custom_ops.precompiled_user_op([])", "ipu.custom_ops.precompiled_user_op", "FFI"),
        ("ipu.ops.custom_ops.codelet(x)", "ipu.ops.custom_ops.codelet", "FFI"),
        ("ipu.serving.export_keras(m, 'x')", "ipu.serving.export_keras", "model.save"),
        ("tf.saved_model.save(m, 'x')", "tf.saved_model.save", "model.save"),
        ("tf.estimator.Estimator(fn)", "tf.estimator.Estimator", "model.fit"),
        ("tf.distribute.MirroredStrategy()", "tf.distribute.MirroredStrategy", "IPUStrategy"),
        ("import poptorch", "import of poptorch", "a Keras model"),
        ("from horovod import tensorflow", "import of horovod", "millrace.distributed"),
        ("x.shape.as_list()", ".as_list()", "list(x.shape)"),
        ("tf.bitwise.invert(x)", "tf.bitwise.invert", "jax.numpy.invert"),
        ("tf.math.erfinv(x)", "tf.math.erfinv", "keras.ops.erfinv"),
        ("ipu.no_such_module.f()", "ipu.no_such_module.f", "remove it"),
        ("dataset.window(2)", ".window()", "from_generator"),
        ("data.interleave(f)", ".interleave()", "from_generator"),
        ("n = v.dtype.size", "dtype.size", "itemsize"),
        ("optimizer.minimize(f, [])", ".minimize()", "apply_gradients"),
        (
            "m.set_pipelining_options(gradient_accumulation_count=4)",
            "gradient_accumulation_count= of .set_pipelining_options()",
            "gradient_accumulation_steps_per_replica=",
        ),
    ],
)
def test_what_stands_in_the_way(code, what, instead):
    found = one(code)
    assert found[0] == what
    assert instead in found[1]


HABITS = [
    ("keras.optimizers.SGD(lr=0.1)", "lr= of keras.optimizers.SGD", "learning_rate="),
    ("keras.backend.mean(x)", "keras.backend.mean", "keras.ops.mean"),
    ("model.fit_generator(g)", ".fit_generator()", "fit"),
    ("model.fit(x, workers=2)", "workers= of .fit()", "PyDataset"),
    (
        "keras.layers.experimental.preprocessing.Rescaling(2.0)",
        "keras.layers.experimental.preprocessing.Rescaling",
        "keras.layers.Rescaling",
    ),
    ("keras.Input(shape=(80))", "shape= of keras.Input", "(n,)"),
]


@pytest.mark.parametrize(("code", "what", "instead"), HABITS)
def test_what_run_mends_runs_as_it_is(code, what, instead):
    found = one(code, blocking=False)
    assert found[0] == what
    assert instead in found[1]
    without = (
        "import keras\nfrom millrace_ipu import ipu\n"  # such a program is run by Python itself
    )
    (finding,) = port(without + code)
    assert finding.blocks
    assert instead in finding.instead


@pytest.mark.parametrize(
    "code",
    [
        "from tensorflow import saved_model as kept\nkept.save(m)",
        "import tensorflow as other\nother.saved_model.save(m)",
        "import tensorflow.saved_model\ntensorflow.saved_model.save(m)",
        "from tensorflow.saved_model import save\nsave(m)",
    ],
)
def test_names_are_found_whatever_they_are_imported_as(code):
    found = findings(code)
    assert "tf.saved_model.save" in [what for _, what, _ in found]
    assert all(instead == IPU["ipu.serving"] for _, _, instead in found)


def test_names_of_all_packages_are_one():
    assert canonical("tensorflow.python.ipu.config") == "ipu.config"
    assert canonical("tensorflow.python.keras.layers") == "keras.layers"
    assert canonical("millrace_ipu.tensorflow.keras.Model") == "keras.Model"
    assert canonical("tensorflow.keras.ipu.layers") == "ipu.keras.layers"
    assert findings("def f(tensor):\n    return tensor.saved_model.save(tf)") == []


TAPE = """
{decorator}
def step(x):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        loss = model(x)
    return tape.gradient(loss, model.trainable_variables)

"""


@pytest.mark.parametrize("decorator", ["@tf.function", ""])
def test_tapes_are_listed_with_what_to_write(decorator):
    code = TAPE.format(decorator=decorator)
    assert findings(code) == []
    ((line, what, instead),) = findings(code, blocking=False)
    assert (line, what) == (4, "tf.GradientTape")
    assert "millrace.value_and_grad" in instead
    assert "jax.jacrev" in one("tape.jacobian(y, x)")[1]


def test_what_the_tables_promise_is_there():
    for name in OPERATIONS.values():
        assert hasattr(keras.ops, name), name
    for name, function in {**IPU, **TENSORFLOW, **MODULES}.items():
        assert name == name.strip("."), name
        assert function == function.strip(), name
    assert exists("keras.layers.Dense")
    assert not exists("keras.layers.Denser")
    assert exists("tensorflow.compat.v1.placeholder")
    assert exists("tensorflow.compat.v1.reduce_mean")
    assert not exists("tensorflow.compat.v1.no_such_name")


def test_the_command(tmp_path):
    good, bad, broken = (tmp_path / name for name in ("good.py", "bad.py", "broken.py"))
    good.write_text(IMPORTS)
    bad.write_text(f"{IMPORTS}import horovod\nkeras.optimizers.SGD(lr=1.0)\n")
    broken.write_text("def f(:\n")

    def run(*paths):
        result = CliRunner().invoke(main, ["port", *map(str, paths)])
        return result.exit_code, result.output.splitlines()

    assert run(good) == (0, ["1 file: nothing stands in the way. Run it with `millrace run`."])
    status, lines = run(good, bad)
    assert status == 1
    assert lines[0].startswith(f"{bad}:{HEAD + 1}: import of horovod  ->  millrace.distributed")
    assert lines[1] == (
        f"{bad}:{HEAD + 2}: lr= of keras.optimizers.SGD  ->  learning_rate=  (runs as it is)"
    )
    assert lines[2] == "2 files: 1 of 2 findings stands in the way. See docs/porting.md."
    status, lines = run(broken, bad, tmp_path / "none.py")
    assert status == 2
    assert lines[0].startswith(f"{broken}: cannot be read: ")
    assert len(lines) == 5


def test_code_that_does_not_stop_the_program_is_said_to_be_such():
    code = "try:\n    tf.strings.strip(' a')\nexcept AttributeError:\n    tf.strings.split('a')\n"
    code += "def load(x: tf.lite.Optimize) -> None:\n    isinstance(x, tf.lite.Interpreter)\n"
    whys = {f.what: (f.blocks, f.why) for f in port(IMPORTS + code)}
    assert whys == {
        "tf.strings.strip": (False, "its error is handled"),
        "tf.strings.split": (False, "only after an error"),
        "tf.lite.Optimize": (False, "runs as it is"),
        "tf.lite.Interpreter": (False, "runs as it is"),
    }


def test_packages_that_need_tensorflow():
    what, instead = one("import tensorflow_datasets as tfds")
    assert what == "import of tensorflow_datasets, which needs TensorFlow"
    assert instead.startswith('python -m pip install "millrace[tensorflow]" tensorflow-datasets')
    assert findings("import numpy, os.path, no_such_package") == []


def test_names_that_the_program_defines_itself_are_its_own():
    code = "class Box:\n    def as_list(self, keras): return keras.no_such\n\nBox().as_list(1)\n"
    assert findings(code) == []


EXAMPLES = pathlib.Path(millrace.__path__[0]).parents[1] / "examples"


# Of a package that is not installed here, which `millrace port` rightly says.
OTHERS = {EXAMPLES / "clusters" / "ray_train.py"}


@pytest.mark.parametrize(
    "path", sorted({*EXAMPLES.rglob("*.py")} - OTHERS), ids=lambda path: path.name
)
def test_nothing_stands_in_the_way_of_the_examples(path):
    (first, *_) = port_program(PortedProgram([path]))
    assert [each for each in first.shown if each.blocks] == []
