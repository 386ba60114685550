"""Data sets of the real TensorFlow, in programs whose compiled functions are those of JAX.

iter(dataset)     in the scope of an IPUStrategy: an iterator for compiled functions
functions in map  operations of `tf` are TensorFlow's own there                      dispatch.py
"""

import functools
from types import ModuleType
from typing import Any

from millrace._compat.keras_tensorflow import show_tensorflow
from millrace._compat.patch_table import TENSORFLOW_ITER
from millrace._compat.patches import put_in
from millrace.tensorflow.iterators import DeviceIterator, gives_device_iterators
from millrace.tensorflow.real import real_tensorflow


@functools.cache
def real_data() -> ModuleType:
    """Returns the real `tf.data`, which must be installed."""
    real: Any = real_tensorflow()
    show_tensorflow(real)  # to Keras, which reads its data sets
    kind = real.data.Dataset
    stock = kind.__iter__

    @functools.wraps(stock)
    def __iter__(self: Any) -> Any:  # noqa: N807
        return DeviceIterator(self) if gives_device_iterators() else stock(self)

    kind.__iter__ = __iter__
    put_in(TENSORFLOW_ITER, functools.partial(setattr, kind, "__iter__", stock))
    return real.data
