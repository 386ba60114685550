"""Values of TensorFlow programs: tensors, variables and their types.

tf.Variable(value)         makes a Keras variable, which is an instance of tf.Variable, too
shape_of([n, 2])           the numbers of a shape that holds arrays
tf.Tensor                  the type of arrays, for `isinstance`
host_array(tree)           NumPy arrays with `.numpy()`, as eager tensors have
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from millrace.extend import is_traced
from millrace_ipu.pytrees import ArrayTree
from millrace_ipu.tensorflow.dtypes import as_dtype

# Computed, or a symbolic tensor of a Keras model that is being built.
TensorValue: TypeAlias = jax.Array | np.ndarray | keras.KerasTensor
# Also Python numbers, and nested sequences of all of these.
TensorLike: TypeAlias = TensorValue | keras.Variable | ArrayLike | Sequence[object]
ShapeLike: TypeAlias = Sequence[int] | np.ndarray | jax.Array


def shape_of(shape: Any) -> tuple[Any, ...]:
    """Returns a shape as Python numbers, out of one that holds arrays, or is one.

    Programs write `[tf.shape(x)[0], 2]`, and `tf.constant([4, 2])`. Sizes that only the device
    knows stay as they are; JAX refuses them.
    """
    if hasattr(shape, "dtype") and not is_traced(shape):
        return tuple(np.atleast_1d(np.asarray(shape)).tolist())
    sizes = shape if isinstance(shape, list | tuple) else [shape]
    return tuple(
        int(size) if hasattr(size, "dtype") and not is_traced(size) else size for size in sizes
    )


class _VariableType(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, keras.Variable)


class Variable(metaclass=_VariableType):
    """Makes Keras variables from TensorFlow's arguments."""

    def __new__(  # type: ignore[misc]
        cls,
        initial_value: ArrayLike | Callable[[], ArrayLike],
        trainable: bool | None = True,
        validate_shape: bool = True,
        caching_device: object = None,
        name: str | None = None,
        variable_def: object = None,
        dtype: DTypeLike | None = None,
        **others: object,
    ) -> keras.Variable:
        """Makes a Keras variable.

        Args:
            cls: this class.
            initial_value: an array, a number, or a function that returns one.
            trainable: whether gradient tapes watch the variable.
            validate_shape: has no effect.
            caching_device: has no effect.
            name: of the variable.
            variable_def: has no effect.
            dtype: None takes the dtype of the value; Python numbers become 32-bit.
            **others: options for shapes and devices, without effect.
        """
        value = initial_value() if callable(initial_value) else initial_value
        array = jnp.asarray(value, None if dtype is None else as_dtype(dtype))
        return keras.Variable(
            array,
            dtype=array.dtype.name,
            trainable=trainable is not False,
            name=None if name is None else name.replace("/", "_"),
        )


class HostArray(np.ndarray):
    """A NumPy array with the method `numpy()` of eager tensors, and like them never changed."""

    def __iadd__(self, other: Any) -> Any:
        return NotImplemented  # Python then makes a new array: `a += 1` is `a = a + 1`

    __isub__ = __imul__ = __itruediv__ = __ifloordiv__ = __iadd__

    def __getitem__(self, key: Any) -> Any:
        """Returns a part, or one element: that is a tensor too, where NumPy has a scalar."""
        part = super().__getitem__(key)
        return np.asarray(part).view(HostArray) if isinstance(part, np.number | np.bool) else part

    def numpy(self) -> Any:
        """Returns the same data as a plain `numpy.ndarray`, or a NumPy scalar for one element."""
        return self.view(np.ndarray)[()]


class _TensorType(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, jax.Array | HostArray)


class Tensor(metaclass=_TensorType):
    """The type of arrays: those of JAX, and those that a queue or a data set has given."""


def host_array(value: ArrayTree) -> Any:
    """Returns a nested structure of arrays in host memory as `HostArray`s, without copies."""
    return jax.tree.map(lambda leaf: np.asarray(leaf).view(HostArray), value)
