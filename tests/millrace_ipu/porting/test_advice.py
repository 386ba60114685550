"""What `millrace port` says to write: code that exists, never empty words."""

import importlib
import re

from millrace_ipu.ipu.replacements import IPU
from millrace_ipu.porting import keras2, keras2_names
from millrace_ipu.porting.findings.names import NEED_TENSORFLOW
from millrace_ipu.porting.replacements import canonical, exists, what_to_write
from millrace_ipu.tensorflow.replacements import ADVICE, MODULES, TENSORFLOW

EMPTY = ("its replacement in", "nothing in millrace", "the public name", "what Keras 3 has")
MISSING = """
tensorflow.python.data.ops.dataset_ops.Dataset          tf.data.Dataset
tensorflow.python.keras.optimizer_v2.adam.Adam          keras.optimizers.Adam
tensorflow.python.ops.math_ops.reduce_mean              tf.math.reduce_mean
tensorflow.python.framework.ops.convert_to_tensor       tf.convert_to_tensor
tensorflow.python.unlisted.module.reduce_sum            tf.reduce_sum
tensorflow.python.platform.gfile.Exists                 open()
tensorflow.io.parse_single_example                      millrace[tensorflow]
tensorflow.data.TFRecordDataset                         millrace[tensorflow]
tensorflow.math.erfinv                                  keras.ops.erfinv
tensorflow.bitwise.invert                               jax.numpy.invert
tensorflow.signal.fft                                   keras.ops.fft
tensorflow.random.categorical                           keras.random.categorical
tensorflow.random.Generator                             keras.random.SeedGenerator
tensorflow.strings.split                                str
tensorflow.config.list_physical_devices                 jax.devices()
tensorflow.config.experimental.set_memory_growth        remove it
tensorflow.compat.v1.train.Saver                        save_weights
tensorflow.compat.v1.layers.dense                       keras.layers
tensorflow.compat.v1.app.flags                          argparse
tensorflow.train.Checkpoint                             load_weights
tensorflow.debugging.check_numerics                     NaNWatch
tensorflow.distribute.MirroredStrategy                  IPUStrategy
tensorflow.test.TestCase                                unittest.TestCase
tensorflow.no_such_name_at_all                          jax.numpy
keras.layers.core.Dense                                 keras.layers.Dense
keras.layers.LocallyConnected2D                         keras.ops.einsum
keras.layers.NoSuchThing                                keras.layers.Layer
keras.utils.multi_gpu_model                             replicas
keras.backend.learning_phase                            training
keras.backend.concatenate                               axis=-1
keras.backend.no_such_function                          the code of the function
keras.models.model_from_yaml                            keras.models.model_from_json
keras.preprocessing.image.ImageDataGenerator            keras.layers.RandomFlip
keras.optimizers.legacy.Adam                            keras.optimizers.Adam
keras.losses.Reduction.SUM                              'sum'
ipu.addons.keras.optimizers.LARSIpuOptimizer            keras.optimizers
ipu.keras.layers.CTCInferenceLayer                      keras.ops.ctc_decode
ipu.keras.pipeline.PipelineSequential                   set_pipeline_stage_assignment
ipu.slicing_ops.sequence_slice                          jax.lax.dynamic_slice
ipu.no_such_module.f                                    remove it
"""
ROWS = [tuple(line.split(maxsplit=1)) for line in MISSING.strip().splitlines()]


def test_what_to_write():
    for name, part in ROWS:
        text = what_to_write(canonical(name))
        assert part in text, name
        assert not any(phrase in text for phrase in EMPTY)


def texts():
    yield from (habit.instead for habit in keras2.HABITS)
    for table in (
        *(ADVICE, IPU, TENSORFLOW, MODULES, NEED_TENSORFLOW),
        *(keras2_names.NAMES, keras2_names.GONE, keras2_names.BETTER, keras2.OVERRIDES),
    ):
        yield from (table[key] for key in table if key != "tensorflow_datasets")


def names_in(text):
    """The full names of code in a text."""
    found = re.findall(r"\b(?:keras|jax|ipu|tf|millrace)(?:\.[A-Za-z_]\w*)+", text)
    return [name for name in found if not name.endswith(".keras")]


def is_there(name):
    if name.startswith(("keras.", "ipu.", "tf.")):
        return exists(name.replace("tf.", "tensorflow.", 1) if name.startswith("tf.") else name)
    owner = importlib.import_module(name.partition(".")[0])
    path = name.partition(".")[0]
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        try:
            owner = getattr(owner, part)
        except AttributeError:
            try:
                owner = importlib.import_module(path)
            except ImportError:
                return False
    return True


def test_the_code_that_is_named_exists():
    named = {name for text in texts() for name in names_in(text)}
    assert len(named) > 100
    assert [name for name in sorted(named) if not is_there(name)] == []


def test_no_advice_is_empty():
    assert [text for text in texts() if not text or any(p in text for p in EMPTY)] == []


def test_no_name_is_in_two_tables():
    assert set(ADVICE).isdisjoint(TENSORFLOW)


def test_names_that_are_here_get_no_advice():
    """But packages, some of whose names are missing."""
    names = (*keras2_names.GONE, *keras2_names.BETTER, *IPU, *ADVICE)
    here = [name for name in names if not name.endswith("_") and exists(name)]
    packages = {
        "ipu.addons.keras.layers",
        "ipu.addons.keras.optimizers",
        "ipu.autoshard",
        "ipu.control_flow_ops",
        "ipu.distributed",
        "ipu.embedding_ops",
        "ipu.functional_ops",
        "ipu.horovod",
        "ipu.internal_ops",
        "ipu.math_ops",
        "ipu.nn_ops",
        "ipu.normalization_ops",
        "ipu.rand_ops",
        "tensorflow.compat.v1.data",
        "tensorflow.dtypes",
        "tensorflow.io.gfile",
        "tensorflow.data.experimental",
        "tensorflow.summary",
    }
    assert set(here) == packages
