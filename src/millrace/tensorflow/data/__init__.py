"""`tf.data`: data sets. What is not here is taken from the real TensorFlow, if it is installed."""

from typing import Any

from millrace.tensorflow.data.dataset import Dataset as Dataset
from millrace.tensorflow.data.steps import INFINITE, UNKNOWN
from millrace.tensorflow.real import real_name

AUTOTUNE = -1
INFINITE_CARDINALITY = INFINITE
UNKNOWN_CARDINALITY = UNKNOWN


class Options:
    """Takes any option; they are about threads of TensorFlow's."""


class _Experimental:
    AUTOTUNE = AUTOTUNE
    INFINITE_CARDINALITY = INFINITE
    UNKNOWN_CARDINALITY = UNKNOWN

    @staticmethod
    def cardinality(dataset: Any) -> Any:
        """Returns how many elements a data set has."""
        return dataset.cardinality()


experimental = _Experimental()


def __getattr__(name: str) -> Any:
    return real_name(f"data.{name}", "Read the data with Dataset.from_generator()")
