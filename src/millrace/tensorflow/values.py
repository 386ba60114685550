"""Variables and arrays as TensorFlow's programs hold them.

tf.Variable(value)         makes a variable of Keras, and is what isinstance() takes for one
host_array(tree)           NumPy arrays with `.numpy()`, as an eager tensor has it
"""

from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from millrace.tensorflow.dtypes import as_dtype


class _VariableType(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, keras.Variable)


class Variable(metaclass=_VariableType):
    """A variable of Keras, with TensorFlow's arguments."""

    def __new__(  # type: ignore[misc]
        cls,
        initial_value: Any,
        trainable: bool | None = True,
        validate_shape: bool = True,
        caching_device: Any = None,
        name: str | None = None,
        variable_def: Any = None,
        dtype: Any = None,
        **others: Any,
    ) -> keras.Variable:
        """Makes a variable of Keras.

        Args:
            cls: this class.
            initial_value: an array, a number, or a function that returns one.
            trainable: whether gradient tapes watch it.
            validate_shape: of no meaning.
            caching_device: of no meaning.
            name: of the variable.
            variable_def: of no meaning.
            dtype: None is that of the value; Python numbers are of 32 bits.
            **others: about shapes and devices, of no meaning.
        """
        del validate_shape, caching_device, variable_def, others
        value = initial_value() if callable(initial_value) else initial_value
        array = jnp.asarray(value, None if dtype is None else as_dtype(dtype))
        return keras.Variable(
            array,
            dtype=array.dtype.name,
            trainable=trainable is not False,
            name=None if name is None else name.replace("/", "_"),
        )


class HostArray(np.ndarray):
    """A NumPy array that also has `.numpy()`."""

    def numpy(self) -> np.ndarray:
        """Returns the array as NumPy's own class."""
        return self.view(np.ndarray)


def host_array(value: Any) -> Any:
    """Returns a tree of arrays in host memory as `HostArray`s, without copies."""
    return jax.tree.map(lambda leaf: np.asarray(leaf).view(HostArray), value)
