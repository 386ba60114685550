"""Private Keras: the layers of a model, and what a layer keeps for itself.

`all_layers`, `layers_inside`   nested ones included, or those that a layer holds itself.
`layer_of`        the layer that a variable belongs to.
`bookkeeping`     the attributes that Keras's own base classes set.
`OBJECT_BOOKKEEPING`, `variables_without_decay`   the same of optimizers, losses and metrics.
`remat_mode`      how a layer was told to be run again in backward.
`connections`     which call in a graph takes the values of which.

Checked on keras 3.13.0 and 3.15.1.
"""

import dis
import functools
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import keras
from keras.src.models.functional import Functional

from millrace._compat.keras_graph import graph_of, nodes_of, numbered_nodes


def all_layers(model: Any) -> list[Any]:
    """Returns the layers of a model, nested ones and itself included."""
    return list(model._flatten_layers())


def layer_names(model: Any) -> tuple[str, ...]:
    """Returns the names of all layers in a model, inner ones included, in their order."""
    return tuple(layer.name for layer in model._flatten_layers(include_self=False))


def layers_inside(layer: Any) -> list[Any]:
    """Returns the layers that a layer holds itself, in the order in which it got them.

    Without those of inputs, and without the graph in which a Sequential runs the same layers.
    """
    inside = list(layer._flatten_layers(include_self=False, recursive=False))
    graph = getattr(layer, "_functional", None)
    return [x for x in inside if x is not graph and not isinstance(x, keras.layers.InputLayer)]


def layers_without_jit(model: Any) -> list[str]:
    """Returns the names of layers that say of themselves that they cannot be compiled."""
    return [x.name for x in all_layers(model) if not getattr(x, "supports_jit", True)]


def layer_of(model: Any, variable: Any) -> str | None:
    """Returns the name of the innermost layer that has `variable`, None if it is the model's own.

    A variable's path does not always tell: a seed generator's has no layer in it.
    """
    owners = [x for x in model._flatten_layers() if any(v is variable for v in x.variables)]
    inner = [x for x in owners if x is not model]
    return min(inner, key=lambda x: len(x.variables)).name if inner else None


def has_unbuilt_layers(model: Any) -> bool:
    """Whether a layer inside a model has yet to make its variables."""
    return not all(layer.built for layer in model._flatten_layers(include_self=False))


@functools.cache
def bookkeeping(of_models: bool = True) -> frozenset[str]:
    """Returns the names of attributes that Keras's base classes give to layers and models.

    Without those of models, `optimizer` and `loss` are what a layer of the user's calls so.

    They are read off the classes' code, since no list of them exists: what a class of the user's
    adds to a layer must be told from what Keras notes on it while it runs.
    """
    models = (*keras.Sequential.__mro__, *Functional.__mro__)
    kinds = {*keras.Layer.__mro__, *(models if of_models else ())} - {object}
    names = {"_millrace", "_millrace_stage", "_obj_type"}
    for kind in kinds:
        for member in vars(kind).values():
            for function in _functions_of(member):
                names.update(_stored(function.__code__))
    # A layer's own, which Keras only takes away while it runs the layer again in backward.
    return frozenset(names - {"activation"})


# What optimizers, losses and metrics keep for themselves; some of it by the ids of variables.
OBJECT_BOOKKEEPING = frozenset(
    {"name", "built", "_built", "_build_input_shape", "_lock", "_tracker", "_auto_config"}
    | {"_variables", "_trainable_variables", "_trainable_variables_indices", "_metrics", "_dtype"}
    | {"_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"}
    | {"_exclude_from_weight_decay_cache", "_weight_decay_by_var_key"}
)


def variables_without_decay(optimizer: Any) -> list[int]:
    """Returns the places of variables that an optimizer was told to leave out of weight decay.

    It keeps their ids, and a pattern of names whose parts have another order in each process.
    """
    excluded = getattr(optimizer, "_exclude_from_weight_decay", ())
    pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    return [
        place
        for place, variable in enumerate(getattr(optimizer, "_trainable_variables", ()))
        if id(variable) in excluded or (pattern is not None and pattern.search(variable.name))
    ]


def _functions_of(member: Any) -> list[FunctionType]:
    if isinstance(member, property):
        parts = [member.fget, member.fset]
    else:
        parts = [getattr(member, "__func__", member)]
    found = []
    for part in parts:
        while hasattr(part, "__wrapped__"):
            part = part.__wrapped__
        if isinstance(part, FunctionType):
            found.append(part)
    return found


def _stored(code: CodeType) -> Iterator[str]:
    """The attributes that a method gives to `self`, or `__new__` to what it makes."""
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


def remat_mode(layer: Any) -> Any:
    """Returns the mode or the scope of recomputation that a layer was made in."""
    return getattr(layer, "_remat_mode", None)


class Origin:
    """Where a value in a graph comes from; no operation is the graph's own input."""

    def __init__(self, operation: Any, call: int, output: int):
        self.operation = operation
        self.call = call  # of the operation in this graph
        self.output = output


def connections(model: Any) -> list[tuple[Any, Any, Any]]:
    """Returns the calls of a model's graph as `(operation, args, kwargs)`; none if it has no graph.

    A value of the graph is an `Origin` among the arguments.
    """
    graph = graph_of(model)
    if not isinstance(graph, Functional):
        return []
    numbers = {id(node): number for node, number in numbered_nodes(graph)}

    def origin(value: Any) -> Any:
        history = getattr(value, "_keras_history", None)
        if not isinstance(value, keras.KerasTensor) or history is None:
            return value
        made_by = history.operation._inbound_nodes[history.node_index]
        return Origin(history.operation, numbers.get(id(made_by), 0), history.tensor_index)

    replace = keras.tree.map_structure
    return [
        (
            node.operation,
            replace(origin, tuple(node.arguments.args)),
            replace(origin, dict(node.arguments.kwargs)),
        )
        for node in nodes_of(graph)
    ]
