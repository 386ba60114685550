"""Private Keras: the module that it takes for TensorFlow. Checked on keras 3.13.0 and 3.15.1.

`show_tensorflow`  Keras imports `tensorflow`, if there is one, to save, to set seeds and to look at
                   types; it must not find a module of millrace's under that name.
"""

import functools
from types import ModuleType
from typing import Any

from keras.src.utils import module_utils

from millrace._compat.patch_table import LAZY_TENSORFLOW
from millrace._compat.patches import patches_in, put_in, take_out

__all__ = ["show_own_tensorflow", "show_tensorflow"]


def show_tensorflow(module: ModuleType | None) -> None:
    """Makes `module` Keras's TensorFlow; None stands for no TensorFlow."""
    if LAZY_TENSORFLOW not in patches_in():
        put_in(LAZY_TENSORFLOW, functools.partial(_put, *_current()))
    _put(module, module is not None)


def show_own_tensorflow() -> None:
    """Lets Keras find TensorFlow itself again."""
    take_out(LAZY_TENSORFLOW)


def _current() -> tuple[Any, Any]:
    return module_utils.tensorflow.module, module_utils.tensorflow._available


def _put(module: ModuleType | None, available: bool) -> None:
    module_utils.tensorflow.module, module_utils.tensorflow._available = module, available
