"""The changes that these packages make in Keras, JAX and Python, besides those of millrace.

The replacement of each function is in the module that puts it in; `docs/patches.md` is written from
this table.
"""

import keras
from jax._src import array
from keras.src.trainers import data_adapters
from keras.src.utils import module_utils

from millrace.extend import Patch, While

IMPORTED = "from the import of `millrace_ipu` to the end of the process"
SCRIPT = "while `millrace run` runs a script"

MODEL_FROM_CONFIG, SEQUENTIAL_FROM_CONFIG = (
    Patch(
        f"keras.{kind.__name__}.from_config",
        "restores the settings of IPU programs",
        While.MODELS,
        lambda kind=kind: kind,
        "from_config",
        ("cls", "config", "custom_objects"),
    )
    for kind in (keras.Model, keras.Sequential)
)
APPLY_GRADIENTS = Patch(
    "keras.optimizers.Optimizer.apply_gradients",
    "takes the name that optimizers of Keras 2 were given, and ignores it",
    IMPORTED,
    lambda: keras.optimizers.Optimizer,
    "apply_gradients",
    ("self", "grads_and_vars"),
)
APPLY = Patch(
    "keras.optimizers.Optimizer.apply",
    "adds up the gradients of the replicas of `IPUStrategy.run`",
    IMPORTED,
)
MODEL_OF_STEP = Patch(
    "keras.Model.stateless_call",
    "notes the model whose `call` draws random numbers without a generator",
    IMPORTED,
    lambda: keras.Layer,
    "stateless_call",
    ("self",),
)
DATA_ADAPTER = Patch(
    "keras.src.trainers.data_adapters.get_data_adapter",
    "lets `fit` take the data sets of `millrace_ipu.tensorflow`",
    IMPORTED,
    lambda: data_adapters,
    "get_data_adapter",
    ("x", "y", "sample_weight"),
)
ARRAY_NUMPY = Patch(
    "jax.Array.numpy",
    "gives arrays the method that tensors of TensorFlow have",
    IMPORTED,
    lambda: array.ArrayImpl,
    "numpy",
)
TENSORFLOW_ITER = Patch(
    "tensorflow.data.Dataset.__iter__",
    "gives iterators for compiled functions in the scope of an `IPUStrategy`; only where "
    "TensorFlow is installed, and `millrace_ipu.tensorflow` has asked it for its data sets",
    IMPORTED,
)
TENSOR_BOARD = Patch(
    "keras.callbacks.TensorBoard",
    "writes event files without TensorFlow; only where TensorFlow is not installed",
    IMPORTED,
)
META_PATH = Patch(
    "sys.meta_path, sys.modules",
    "serves modules by the names that IPU programs import them by",
    IMPORTED,
)
LAZY_TENSORFLOW = Patch(
    "keras.src.utils.module_utils.tensorflow",
    "keeps Keras from taking `millrace_ipu.tensorflow` for TensorFlow",
    SCRIPT,
    lambda: module_utils.tensorflow,
)
SCRIPT_MODULES = Patch(
    'sys.modules["tensorflow"], sys.argv, sys.path',
    "runs a script as Python would, with `millrace_ipu.tensorflow` for TensorFlow",
    SCRIPT,
)
OLD_ATTRIBUTES = Patch(
    "__getattr__ of Keras's modules",
    "lets scripts read names of Keras 2, such as `keras.backend.mean`, and `keras.ipu`",
    SCRIPT,
)
KERAS2_CALLS = Patch(
    "methods of Keras's layers, models, optimizers, losses and callbacks",
    "lets scripts call them as those of Keras 2, and adds the methods that they had",
    SCRIPT,
)
IPU_ATTRIBUTE = Patch(
    "keras.__getattr__",
    "lets programs read `keras.ipu`",
    IMPORTED,
)

PATCHES = tuple(value for value in tuple(globals().values()) if isinstance(value, Patch))
