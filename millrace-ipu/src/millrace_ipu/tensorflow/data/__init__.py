"""`tf.data`: data sets, TensorFlow's own where it is installed.

not installed   Dataset of dataset.py, on NumPy arrays
installed       tf.data of TensorFlow, beside compiled functions of JAX:
    iter(dataset)      in the scope of an IPUStrategy: an iterator for compiled functions
    functions in map   operations of `tf` in them are TensorFlow's own                 dispatch.py
"""

import functools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from millrace.extend import put_in
from millrace_ipu._compat.module_aliases import show_tensorflow
from millrace_ipu._compat.patch_table import TENSORFLOW_ITER
from millrace_ipu.tensorflow.data import dataset as _dataset
from millrace_ipu.tensorflow.dispatch import is_installed, real_name, real_tensorflow
from millrace_ipu.tensorflow.iterators import DeviceIterator, gives_device_iterators

AUTOTUNE = -1
INFINITE_CARDINALITY, UNKNOWN_CARDINALITY = -1, -2


class _Options:
    """Takes any option, without effect: all of them are about TensorFlow's threads.

    options.experimental_threading.private_threadpool_size = 8
    """

    def __getattr__(self, name: str) -> "_Options":
        if name.startswith("__"):
            raise AttributeError(name)
        options = vars(self)[name] = _Options()  # such as `options.threading`
        return options


class _Experimental:
    AUTOTUNE = AUTOTUNE
    INFINITE_CARDINALITY, UNKNOWN_CARDINALITY = INFINITE_CARDINALITY, UNKNOWN_CARDINALITY

    @staticmethod
    def cardinality(dataset: Any) -> Any:
        return dataset.cardinality()


_OWN = {"Dataset": _dataset.Dataset, "Options": _Options, "experimental": _Experimental()}


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if is_installed():
        return getattr(real_data(), name)
    if name in _OWN:
        return _OWN[name]
    return real_name(f"data.{name}", "Read the data with Dataset.from_generator()")


def __dir__() -> list[str]:
    return [*globals(), *_OWN]


@functools.cache
def real_data() -> ModuleType:
    """Returns the real `tf.data`, which must be installed."""
    real: Any = real_tensorflow()
    show_tensorflow(real)  # to Keras, which reads its data sets
    real_class = real.data.Dataset
    stock = real_class.__iter__

    @functools.wraps(stock)
    def __iter__(self: object) -> Iterator[Any]:  # noqa: N807
        return DeviceIterator(self) if gives_device_iterators() else stock(self)

    real_class.__iter__ = __iter__
    put_in(TENSORFLOW_ITER, functools.partial(setattr, real_class, "__iter__", stock))
    return real.data
