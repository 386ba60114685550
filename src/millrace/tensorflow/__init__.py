"""The part of TensorFlow's API that IPU programs use, on Keras 3 and JAX.

from millrace import tensorflow as tf        in place of        import tensorflow as tf

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

from millrace._compat.jax_arrays import let_arrays_be_numpy
from millrace._compat.module_aliases import serve
from millrace.tensorflow import arrays as _arrays
from millrace.tensorflow import compat as compat
from millrace.tensorflow import data as data
from millrace.tensorflow import distribute as distribute
from millrace.tensorflow import dtypes
from millrace.tensorflow import estimator as estimator
from millrace.tensorflow import extras as _extras
from millrace.tensorflow import image as image
from millrace.tensorflow import indexing as _indexing
from millrace.tensorflow import linalg as linalg
from millrace.tensorflow import math as math
from millrace.tensorflow import nn as nn
from millrace.tensorflow import norms as _norms
from millrace.tensorflow import ops as _ops
from millrace.tensorflow import random as random
from millrace.tensorflow import summary as summary
from millrace.tensorflow.compat.v1 import Graph as Graph
from millrace.tensorflow.compat.v1 import Session as Session
from millrace.tensorflow.compat.v1 import executing_eagerly as executing_eagerly
from millrace.tensorflow.compat.v1 import placeholder as placeholder
from millrace.tensorflow.conversion.convert import recognize
from millrace.tensorflow.data.elements import TensorShape as TensorShape
from millrace.tensorflow.data.elements import TensorSpec as TensorSpec
from millrace.tensorflow.dispatch import real_name
from millrace.tensorflow.framework import control_dependencies as control_dependencies
from millrace.tensorflow.framework import device as device
from millrace.tensorflow.framework import errors as errors
from millrace.tensorflow.framework import get_logger as get_logger
from millrace.tensorflow.framework import group as group
from millrace.tensorflow.framework import name_scope as name_scope
from millrace.tensorflow.framework import nest as nest
from millrace.tensorflow.framework import no_op as no_op
from millrace.tensorflow.function import function as function
from millrace.tensorflow.gradients import custom_gradient as custom_gradient
from millrace.tensorflow.iterators import device_iterators as device_iterators
from millrace.tensorflow.tape import GradientTape as GradientTape
from millrace.tensorflow.tensor_board import let_tensor_board_be_written
from millrace.tensorflow.values import Tensor as Tensor
from millrace.tensorflow.values import Variable as Variable

__version__ = "2.6.0"  # the TensorFlow release that has these names
newaxis = None
initializers, losses = keras.initializers, keras.losses
metrics, optimizers = keras.metrics, keras.optimizers
_NAMES: dict[str, Any] = {
    **{name: value for name, value in vars(dtypes).items() if hasattr(value, "itemsize")},
    **nn.OPS,
    **math.OPS,
    **_ops.OPS,
    **_indexing.OPS,
    **_norms.OPS,
    **_arrays.OPS,
}
for _name in (
    "avg_pool",
    "avg_pool2d",
    "count_nonzero",
    "depthwise_conv2d",
    "divide_no_nan",
    "floormod",
    "in_top_k",
    "lgamma",
    "log_sigmoid",
    "max_pool",
    "multiply_no_nan",
    "real",
    "segment_sum",
    "softsign",
    "xlogy",
    "unsorted_segment_sum",
    "bias_add",
    "dropout",
    "moments",
    "top_k",
    "conv2d",
    "max_pool2d",
    "embedding_lookup",
    "l2_normalize",
    "reduce_euclidean_norm",
    *_indexing.MATH,
):
    _NAMES.pop(_name)  # in tf.nn and tf.math only
globals().update({name: value for name, value in _NAMES.items() if "." not in name})

globals().update(_extras.NAMES)
io, train = _extras.io, _extras.train

recognize("GradientTape", GradientTape)
let_arrays_be_numpy()
let_tensor_board_be_written()
serve({"millrace.tensorflow.keras": "keras"}, "millrace.tensorflow")


def __getattr__(name: str) -> Any:
    if f"{__name__}.{name}" in sys.modules:
        return sys.modules[f"{__name__}.{name}"]
    return real_name(name)
