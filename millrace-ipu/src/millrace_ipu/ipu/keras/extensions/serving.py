"""Export of a model for TensorFlow Serving, which is not here: the error says what to write."""

from typing import NoReturn

from millrace_ipu.tensorflow.replacements import SERVING
from millrace_ipu.tensorflow.unsupported import refuse


def export_for_ipu_serving(*_: object, **__: object) -> NoReturn:
    """Raises an error: there is no server here that loads such an export.

    Raises:
        UnsupportedNameError: always.
    """
    refuse("model.export_for_ipu_serving", SERVING)
