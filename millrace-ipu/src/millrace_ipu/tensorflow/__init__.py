"""The part of TensorFlow's API that IPU programs use, on Keras 3 and JAX.

from millrace_ipu import tensorflow as tf        in place of        import tensorflow as tf

tf.keras            keras                          tf.data      data/      data sets of NumPy arrays
tf.function         native compiled functions      tf.Variable  variables of Keras
tf.range            loops in compiled functions    tf.GradientTape         in such functions
tf.cast, ...        keras.ops                      tf.compat.v1 placeholders and sessions

dispatch.py  sends an operation to Keras, to a session, or to TensorFlow, if it is installed
ops.py  math.py  nn.py  random.py  tables of operations   conversion/  rewrites functions
"""

import sys
from typing import Any

import keras as keras

from millrace_ipu._compat.arrays_and_data import let_arrays_be_numpy
from millrace_ipu._compat.module_aliases import serve
from millrace_ipu.tensorflow import arrays as _arrays
from millrace_ipu.tensorflow import compat as compat
from millrace_ipu.tensorflow import data as data
from millrace_ipu.tensorflow import distribute as distribute
from millrace_ipu.tensorflow import dtypes
from millrace_ipu.tensorflow import extras as _extras
from millrace_ipu.tensorflow import image as image
from millrace_ipu.tensorflow import linalg as linalg
from millrace_ipu.tensorflow import math as math
from millrace_ipu.tensorflow import nn as nn
from millrace_ipu.tensorflow import ops as _ops
from millrace_ipu.tensorflow import random as random
from millrace_ipu.tensorflow import summary as summary
from millrace_ipu.tensorflow.compat.v1 import Graph as Graph
from millrace_ipu.tensorflow.compat.v1 import Session as Session
from millrace_ipu.tensorflow.compat.v1 import executing_eagerly as executing_eagerly
from millrace_ipu.tensorflow.compat.v1 import placeholder as placeholder
from millrace_ipu.tensorflow.conversion.convert import recognize
from millrace_ipu.tensorflow.data.elements import TensorShape, TensorSpec  # noqa: F401
from millrace_ipu.tensorflow.dispatch import real_name
from millrace_ipu.tensorflow.framework import control_dependencies as control_dependencies
from millrace_ipu.tensorflow.framework import device as device
from millrace_ipu.tensorflow.framework import errors as errors
from millrace_ipu.tensorflow.framework import get_logger as get_logger
from millrace_ipu.tensorflow.framework import group as group
from millrace_ipu.tensorflow.framework import name_scope as name_scope
from millrace_ipu.tensorflow.framework import nest as nest
from millrace_ipu.tensorflow.framework import no_op as no_op
from millrace_ipu.tensorflow.function import custom_gradient as custom_gradient
from millrace_ipu.tensorflow.function import function as function
from millrace_ipu.tensorflow.iterators import device_iterators as device_iterators
from millrace_ipu.tensorflow.tape import GradientTape as GradientTape
from millrace_ipu.tensorflow.tensor_board import let_tensor_board_be_written
from millrace_ipu.tensorflow.values import Tensor, Variable  # noqa: F401

__version__ = "2.6.0"  # the TensorFlow release that has these names
newaxis = None
initializers, losses = keras.initializers, keras.losses
metrics, optimizers = keras.metrics, keras.optimizers
_NAMES: dict[str, Any] = {
    **{name: value for name, value in vars(dtypes).items() if hasattr(value, "itemsize")},
    **nn.OPS,
    **math.OPS,
    **_ops.OPS,
    **_arrays.OPS,
}
for _name in (
    "avg_pool", "avg_pool2d", "bias_add", "conv2d", "divide_no_nan", "dropout",
    "embedding_lookup", "in_top_k", "log_sigmoid", "max_pool", "max_pool2d", "moments", "real",
    "softsign", "top_k", *_arrays.MATH,
):  # fmt: skip
    _NAMES.pop(_name)  # in tf.nn and tf.math only
globals().update({name: value for name, value in _NAMES.items() if "." not in name})

globals().update(_extras.NAMES)
io, train = _extras.io, _extras.train

recognize("GradientTape", GradientTape)
let_arrays_be_numpy()
let_tensor_board_be_written()
serve({"millrace_ipu.tensorflow.keras": "keras"}, "millrace_ipu.tensorflow")


def __getattr__(name: str) -> Any:
    if f"{__name__}.{name}" in sys.modules:
        return sys.modules[f"{__name__}.{name}"]
    return real_name(name)
