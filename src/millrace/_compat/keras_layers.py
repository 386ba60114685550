"""Private Keras: the layers of a model, and the attributes that Keras keeps on them.

`all_layers`, `layers_inside`   all layers, nested ones included, or the direct ones of a layer.
`layers_without_jit`  the layers that cannot be compiled: a trial trace decides about flagged ones.
`layer_of`        the layer that a variable belongs to.
`bookkeeping`     the attributes that Keras's own base classes set.
`OBJECT_BOOKKEEPING`, `variables_without_decay`   the same of optimizers, losses and metrics.
`remat_mode`      the mode in which a layer is run again in backward.
`connections`     the calls of a graph with their arguments.

Checked on keras 3.13.0 and 3.15.1.
"""

import dis
import functools
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary

import jax
import keras
from keras.src.layers.preprocessing.image_preprocessing.base_image_preprocessing_layer import (
    BaseImagePreprocessingLayer,
)
from keras.src.models.functional import Functional

from millrace._compat.keras_graph import graph_of, nodes_of, numbered_nodes
from millrace._compat.patch_table import SUPPORTS_JIT
from millrace._compat.patches import replace
from millrace._compat.versions import functions_of


def all_layers(model: keras.Model) -> list[Any]:
    """Returns the layers of a model: nested ones, and the model itself."""
    return list(model._flatten_layers())


def layer_names(model: keras.Model) -> tuple[str, ...]:
    """Returns the names of all layers in a model, nested ones included, in their order."""
    return tuple(layer.name for layer in model._flatten_layers(include_self=False))


def layers_inside(layer: keras.Layer) -> list[Any]:
    """Returns the direct layers of a layer, in the order in which they were added.

    Input layers are left out, and so is the graph in which a Sequential runs the same layers.
    """
    inside = list(layer._flatten_layers(include_self=False, recursive=False))
    graph = getattr(layer, "_functional", None)
    return [x for x in inside if x is not graph and not isinstance(x, keras.layers.InputLayer)]


def layers_without_jit(model: keras.Model) -> list[str]:
    """Returns the names of layers that declare that they cannot be compiled, and cannot."""
    # RandAugment and its like choose among many others, and XLA would compile that for minutes.
    outer = [x for x in all_layers(model) if isinstance(x, BaseImagePreprocessingLayer)]
    chosen = {id(inner) for x in outer for inner in layers_inside(x)}
    return [x.name for x in flagged_layers(model) if id(x) in chosen or not _traces(x)]


def flagged_layers(model: keras.Model) -> list[Any]:
    """Returns the layers that declare that they cannot be compiled."""
    return [x for x in all_layers(model) if not getattr(x, "supports_jit", True)]


def let_traced_layers_compile(is_meant: Callable[[keras.Model], bool]) -> None:
    """Lets `jit_compile="auto"` compile the models that are meant, if all their layers trace."""

    def wrapper(original: Callable[[keras.Model], bool]) -> Callable[[keras.Model], bool]:
        def model_supports_jit(model: keras.Model) -> bool:
            return original(model) or (is_meant(model) and not layers_without_jit(model))

        return model_supports_jit

    replace(SUPPORTS_JIT, wrapper)


_SIDE = 1024  # in pixels, of images of unknown size: larger than what layers crop
_traced = WeakKeyDictionary[Any, tuple[object, bool]]()


def _traces(layer: Any) -> bool:
    """Whether JAX traces a layer in training, though it declares that it cannot be compiled.

    Keras flags layers that augment images for the sake of TensorFlow. Any other layer is believed:
    a trace does not show, for instance, that it draws random numbers with NumPy.
    """
    if not isinstance(layer, BaseImagePreprocessingLayer):
        return False
    arguments = layer._inbound_nodes[-1].arguments.args if layer._inbound_nodes else ()
    first = layer.data_format == "channels_first"
    shape = (None, 3, None, None) if first else (None, None, None, 3)
    images = arguments[0] if arguments else keras.KerasTensor(shape, layer.compute_dtype)
    shapes = keras.tree.map_structure(lambda x: (tuple(x.shape), x.dtype), images)
    key, traces = _traced.get(layer, (None, False))
    if key != shapes:
        traces = _is_traced(layer, images)
        _traced[layer] = (shapes, traces)
    return traces


def _is_traced(layer: Any, images: object) -> bool:
    def call(values: Any) -> Any:
        with keras.StatelessScope():  # the seeds stay as they are
            return layer.call(values, training=True)  # not `__call__`, which may build the layer

    def known(tensor: keras.KerasTensor) -> jax.ShapeDtypeStruct:
        rows, *sizes = tensor.shape
        shape = (rows or 2, *(_SIDE if size is None else size for size in sizes))
        return jax.ShapeDtypeStruct(shape, tensor.dtype)

    try:
        jax.eval_shape(call, keras.tree.map_structure(known, images))
    except Exception:  # of Keras, JAX, or the author of the layer
        return False
    return True


def layer_of(model: keras.Model, variable: keras.Variable) -> str | None:
    """Returns the name of the innermost layer that has `variable`, None if it is the model's own.

    A variable's path is not enough: that of a seed generator names no layer.
    """
    owners = [x for x in model._flatten_layers() if any(v is variable for v in x.variables)]
    inner = [x for x in owners if x is not model]
    return min(inner, key=lambda x: len(x.variables)).name if inner else None


@functools.cache
def bookkeeping(of_models: bool = True) -> frozenset[str]:
    """Returns the names of attributes that Keras's base classes set on layers and models.

    They tell an attribute that a user's class adds from one that Keras sets while a layer runs. No
    list of them exists, so they are read off the code of the classes.

    Args:
        of_models: whether to include attributes of models. Without them, `optimizer` and `loss`
            are attributes of a user's layer.
    """
    models = (*keras.Sequential.__mro__, *Functional.__mro__)
    kinds = {*keras.Layer.__mro__, *(models if of_models else ())} - {object}
    names = {"_millrace", "_millrace_stage", "_obj_type"}
    for kind in kinds:
        for member in vars(kind).values():
            for function in functions_of(member):
                names.update(_stored(function.__code__))
    # An attribute of layers, which Keras replaces only while it runs one again in backward.
    return frozenset(names - {"activation"})


# Attributes that Keras keeps on optimizers, losses and metrics; some are keyed by variables' ids.
OBJECT_BOOKKEEPING = frozenset(
    {"name", "built", "_built", "_build_input_shape", "_lock", "_tracker", "_auto_config"}
    | {"_variables", "_trainable_variables", "_trainable_variables_indices", "_metrics", "_dtype"}
    | {"_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"}
    | {"_exclude_from_weight_decay_cache", "_weight_decay_by_var_key"}
)


def variables_without_decay(optimizer: object) -> list[int]:
    """Returns the indices of the variables that an optimizer excludes from weight decay.

    It keeps their ids, and a pattern of names in an order that differs between processes.
    """
    excluded = getattr(optimizer, "_exclude_from_weight_decay", ())
    pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    return [
        index
        for index, variable in enumerate(getattr(optimizer, "_trainable_variables", ()))
        if id(variable) in excluded or (pattern is not None and pattern.search(variable.name))
    ]


def _stored(code: CodeType) -> Iterator[str]:
    """Yields the attributes that a method sets on `self`, or `__new__` on a new object."""
    before: Any = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "STORE_ATTR":
            names = before if isinstance(before, tuple) else (before,)
            if {"self", "obj", "instance"} & {name for name in names if isinstance(name, str)}:
                yield instruction.argval
        before = instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _stored(constant)


def remat_mode(layer: keras.Layer) -> object:
    """Returns the mode or the scope of recomputation in which a layer was made."""
    return getattr(layer, "_remat_mode", None)


class LayerOrigin:
    """The call in a graph that computes a value, or the `InputLayer` that the value enters by."""

    def __init__(self, operation: keras.Operation, call: int, output: int):
        self.operation = operation
        self.call = call  # number among the calls of the operation in this graph
        self.output = output


def connections(model: keras.Model) -> list[tuple[Any, Any, Any]]:
    """Returns the calls of a model's graph as `(operation, args, kwargs)`; none if it has no graph.

    A `LayerOrigin` stands for a value of the graph among the arguments.
    """
    graph = graph_of(model)
    if not isinstance(graph, Functional):
        return []
    numbers = {id(node): number for node, number in numbered_nodes(graph)}

    def origin(value: object) -> object:
        history = getattr(value, "_keras_history", None)
        if not isinstance(value, keras.KerasTensor) or history is None:
            return value
        made_by = history.operation._inbound_nodes[history.node_index]
        return LayerOrigin(history.operation, numbers.get(id(made_by), 0), history.tensor_index)

    replace = keras.tree.map_structure
    return [
        (
            node.operation,
            replace(origin, tuple(node.arguments.args)),
            replace(origin, dict(node.arguments.kwargs)),
        )
        for node in nodes_of(graph)
    ]
