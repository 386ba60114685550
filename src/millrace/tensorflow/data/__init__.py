"""`tf.data`: data sets. Where TensorFlow is installed, they are its own.

installed   tf.data of TensorFlow; iter(dataset) in a scope is for compiled functions   real_data.py
otherwise   Dataset of dataset.py, on NumPy arrays
"""

from typing import Any

from millrace.tensorflow.data import dataset as _dataset
from millrace.tensorflow.data.real_data import real_data
from millrace.tensorflow.data.steps import INFINITE, UNKNOWN
from millrace.tensorflow.real import is_installed, real_name

AUTOTUNE = -1
INFINITE_CARDINALITY = INFINITE
UNKNOWN_CARDINALITY = UNKNOWN


class _Options:
    """Takes any option; they are about threads of TensorFlow's."""


class _Experimental:
    AUTOTUNE = AUTOTUNE
    INFINITE_CARDINALITY = INFINITE
    UNKNOWN_CARDINALITY = UNKNOWN

    @staticmethod
    def cardinality(dataset: Any) -> Any:
        """Returns how many elements a data set has."""
        return dataset.cardinality()


_OWN = {"Dataset": _dataset.Dataset, "Options": _Options, "experimental": _Experimental()}


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if is_installed():
        return getattr(real_data(), name)
    return (
        _OWN[name]
        if name in _OWN
        else real_name(f"data.{name}", "Read the data with Dataset.from_generator()")
    )


def __dir__() -> list[str]:
    return [*globals(), *_OWN]
