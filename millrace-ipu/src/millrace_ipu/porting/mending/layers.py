"""Layers as in Keras 2: arguments for shapes, `add_weight("name", shape)`, `layer.output_shape`."""

from collections.abc import Callable
from typing import Any

import keras

from millrace_ipu.porting.mending.calls import added, around, mended_arguments

# The parameters of `add_weight` in Keras 2, in their order.
_PARAMETERS = ("name", "shape", "dtype", "initializer", "regularizer", "trainable", "constraint")
_BATCH_SHAPE = "batch_input_shape"


class _Shape:
    """`layer.input_shape` and `layer.output_shape`; a layer may have attributes of these names."""

    def __init__(self, name: str):
        self._name = name

    def __get__(self, layer: Any, kind: type) -> Any:
        """Returns the shape, or one for each value, of the layer's only call."""
        if layer is None:
            return self
        return keras.tree.map_structure(lambda x: tuple(x.shape), getattr(layer, self._name))


added(keras.Layer, "input_shape")(_Shape("input"))
added(keras.Layer, "output_shape")(_Shape("output"))


@added(keras.layers.RNN, "reset_states")
@added(keras.metrics.Metric, "reset_states")
def _reset(self: Any) -> None:
    self.reset_state()


def _plain(name: object) -> object:
    """Returns a name without slashes, which Keras 3 forbids."""
    return name.strip("/").replace("/", "_") if isinstance(name, str) else name


@around(keras.Layer, "__init__")
def _make(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    if args and args[0] is self:
        args = args[1:]  # super().__init__(self), which Keras 2 took as the argument trainable
    args, kwargs = mended_arguments(f"keras.layers.{type(self).__name__}", args, kwargs)
    batch_shape = _batch_shape(kwargs)
    if "name" in kwargs:
        kwargs["name"] = _plain(kwargs["name"])
    original(self, *args, **kwargs)
    if batch_shape is not None:
        object.__setattr__(self, _BATCH_SHAPE, batch_shape)


def _batch_shape(kwargs: dict[str, Any]) -> tuple[int | None, ...] | None:
    """Takes the shape of inputs out of a layer's arguments; Keras would warn of it."""
    whole, shape, size = (kwargs.pop(n, None) for n in (_BATCH_SHAPE, "input_shape", "input_dim"))
    if whole is not None:
        return tuple(whole)
    shape = (size,) if size is not None and shape is None else shape
    return None if shape is None else (kwargs.pop("batch_size", None), *shape)


@around(keras.Sequential, "add")
def _add(
    original: Callable[..., None], self: keras.Sequential, layer: Any, *args: Any, **kwargs: Any
) -> None:
    batch_shape = getattr(layer, _BATCH_SHAPE, None)
    if batch_shape is not None and not self.layers:
        original(self, keras.Input(batch_shape=batch_shape), *args, **kwargs)
    original(self, layer, *args, **kwargs)


@around(keras.Layer, "add_weight")
def _add_weight(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    if args and (isinstance(args[0], str) or (args[0] is None and len(args) > 1)):
        named = dict(zip(_PARAMETERS, args, strict=False))
        if named.get("trainable") is None:
            named.pop("trainable", None)
        args, kwargs = (), {**named, **kwargs}
    args, kwargs = mended_arguments(".add_weight", args, kwargs)
    if "name" in kwargs:
        kwargs["name"] = _plain(kwargs["name"])
    return original(self, *args, **kwargs)


@around(keras.Layer, "add_variable")
def _add_variable(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    if args and not isinstance(args[0], str):
        return original(self, *args, **kwargs)  # the shape first, as in Keras 3
    return self.add_weight(*args, **kwargs)


@around(keras.Model, "get_layer")
def _get_layer(
    original: Callable[..., Any], self: Any, name: Any = None, index: int | None = None
) -> Any:
    if isinstance(name, int):  # the first parameter of Keras 1
        name, index = None, name
    return original(self, _plain(name), index)
