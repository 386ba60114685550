"""Private Keras: what it takes for TensorFlow. Checked on keras 3.13.0 and 3.15.1.

`show_tensorflow`  Keras asks `import tensorflow` whether there is one, to save, to set seeds and to
                   look at types; while a module of ours has that name, it must not find it.
"""

from types import ModuleType

from keras.src.utils import module_utils

__all__ = ["show_tensorflow"]


def show_tensorflow(module: ModuleType | None) -> None:
    """Tells Keras which module TensorFlow is, and None that there is none."""
    module_utils.tensorflow.module = module
    module_utils.tensorflow._available = module is not None
