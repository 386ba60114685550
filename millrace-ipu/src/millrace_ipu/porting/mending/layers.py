"""Layers as in Keras 2: arguments for shapes, `add_weight("name", shape)`, `layer.output_shape`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from millrace.extend import add, replace
from millrace_ipu._compat.patch_table import KERAS2_CALLS
from millrace_ipu.porting.mending.calls import mended_arguments, replace_method, signed

# The parameters of `add_weight` in Keras 2, in their order.
_PARAMETERS = ("name", "shape", "dtype", "initializer", "regularizer", "trainable", "constraint")
_BATCH_SHAPE = "batch_input_shape"


class _Shape:
    """`layer.input_shape` and `layer.output_shape`; a layer may have attributes of these names."""

    def __init__(self, name: str):
        self._name = name

    def __get__(self, layer: Any, kind: type) -> Any:
        """Returns the shape, or one for each value, of the layer's only call."""
        return (
            self if layer is None else keras.tree.map_structure(_shape, getattr(layer, self._name))
        )


def mend_layers() -> None:
    """Lets layers be made and read as in Keras 2."""
    replace_method(keras.Layer, "__init__", _initializer)
    replace_method(keras.Layer, "add_weight", _with_name_first)
    replace_method(keras.Sequential, "add", _with_batch_shapes)
    replace_method(keras.Model, "get_layer", _by_written_name)
    norm: Any = keras.layers.BatchNormalization
    replace(KERAS2_CALLS, _with_one_axis, norm, "__init__")
    replace_method(keras.Layer, "add_variable", _add_variable)
    add(KERAS2_CALLS, keras.Layer, "input_shape", _Shape("input"))
    add(KERAS2_CALLS, keras.Layer, "output_shape", _Shape("output"))
    for kind in (keras.layers.RNN, keras.metrics.Metric):
        add(KERAS2_CALLS, kind, "reset_states", _reset)


def _shape(value: Any) -> Any:
    return tuple(value.shape)


def _reset(self: Any) -> None:
    self.reset_state()


def _plain(name: object) -> object:
    """Returns a name without slashes, which Keras 3 forbids."""
    return name.strip("/").replace("/", "_") if isinstance(name, str) else name


def _initializer(original: Callable[..., None]) -> Callable[..., None]:
    @signed(original)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        if args and args[0] is self:
            args = args[1:]  # super().__init__(self), which Keras 2 took as the argument trainable
        args, kwargs = mended_arguments(f"keras.layers.{type(self).__name__}", args, kwargs)
        batch_shape = _batch_shape(kwargs)
        if "name" in kwargs:
            kwargs["name"] = _plain(kwargs["name"])
        original(self, *args, **kwargs)
        if batch_shape is not None:
            object.__setattr__(self, _BATCH_SHAPE, batch_shape)

    return make


def _batch_shape(kwargs: dict[str, Any]) -> tuple[int | None, ...] | None:
    """Takes the shape of inputs out of a layer's arguments; Keras would warn of it."""
    whole, shape, size = (kwargs.pop(n, None) for n in (_BATCH_SHAPE, "input_shape", "input_dim"))
    if whole is not None:
        return tuple(whole)
    shape = (size,) if size is not None and shape is None else shape
    return None if shape is None else (kwargs.pop("batch_size", None), *shape)


def _with_batch_shapes(original: Callable[..., None]) -> Callable[..., None]:
    def add_layer(self: keras.Sequential, layer: Any, *args: Any, **kwargs: Any) -> None:
        batch_shape = getattr(layer, _BATCH_SHAPE, None)
        if batch_shape is not None and not self.layers:
            original(self, keras.Input(batch_shape=batch_shape), *args, **kwargs)
        original(self, layer, *args, **kwargs)

    return add_layer


def _with_name_first(original: Callable[..., Any]) -> Callable[..., Any]:
    def add_weight(self: Any, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = _by_name(args, kwargs)
        args, kwargs = mended_arguments(".add_weight", args, kwargs)
        if "name" in kwargs:
            kwargs["name"] = _plain(kwargs["name"])
        return original(self, *args, **kwargs)

    return add_weight


def _add_variable(original: Callable[..., Any]) -> Callable[..., Any]:
    def add_variable(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and not isinstance(args[0], str):
            return original(self, *args, **kwargs)  # the shape first, as in Keras 3
        return self.add_weight(*args, **kwargs)

    return add_variable


def _by_name(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], Any]:
    """Returns the arguments of `add_weight` by their names, where the first one is a name."""
    if not args or not (isinstance(args[0], str) or (args[0] is None and len(args) > 1)):
        return tuple(args), dict(kwargs)
    named = dict(zip(_PARAMETERS, args, strict=False))
    if named.get("trainable") is None:
        named.pop("trainable", None)
    return (), {**named, **kwargs}


def _by_written_name(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_layer(self: Any, name: Any = None, index: int | None = None) -> Any:
        if isinstance(name, int):  # the first parameter of Keras 1
            name, index = None, name
        return original(self, _plain(name), index)

    return get_layer


def _with_one_axis(original: Callable[..., None]) -> Callable[..., None]:
    @signed(original)
    def make(self: Any, axis: Any = -1, *args: Any, **kwargs: Any) -> None:
        if isinstance(axis, list | tuple) and len(axis) == 1:
            axis = axis[0]
        args, kwargs = mended_arguments("keras.layers.BatchNormalization", args, kwargs)
        original(self, axis, *args, **kwargs)

    return make
