"""Private Keras: what it takes for TensorFlow. Checked on keras 3.13.0 and 3.15.1.

`show_tensorflow`  Keras asks `import tensorflow` whether there is one, to save, to set seeds and to
                   look at types; while a module of ours has that name, it must not find it.
"""

import functools
from types import ModuleType
from typing import Any

from keras.src.utils import module_utils

from millrace._compat.patch_table import LAZY_TENSORFLOW
from millrace._compat.patches import patches_in, put_in, take_out

__all__ = ["show_own_tensorflow", "show_tensorflow"]


def show_tensorflow(module: ModuleType | None) -> None:
    """Tells Keras which module TensorFlow is, and None that there is none."""
    if LAZY_TENSORFLOW not in patches_in():
        put_in(LAZY_TENSORFLOW, functools.partial(_put, *_found()))
    _put(module, module is not None)


def show_own_tensorflow() -> None:
    """Lets Keras find TensorFlow by itself again."""
    take_out(LAZY_TENSORFLOW)


def _found() -> tuple[Any, Any]:
    return module_utils.tensorflow.module, module_utils.tensorflow._available


def _put(module: Any, available: Any) -> None:
    module_utils.tensorflow.module, module_utils.tensorflow._available = module, available
