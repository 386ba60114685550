"""Private Keras for graphs of layer calls. Checked on keras 3.13.0 and 3.15.1.

`nodes_of`, `numbered_nodes`   the calls in a graph, in the order in which Keras runs them.
`graph_of`, `has_own_call`   the graph that runs when a model is called, if any.
`record_stages`   notes a pipeline stage on graph nodes and layers as they are made. `Node` has no
                  public hook, and a layer's `__call__` does not know the node that it ends with.
`run_symbolically`   runs a model on shapes only, without adding nodes to its layers.
`layer_paths`     every layer below a model, with those around it.
`is_symbolic`     whether layers run on shapes only.
`is_calling`      whether a layer or a model is running, which Keras keeps as a global.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras.src import backend
from keras.src.backend.common import global_state
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from keras.src.models.functional import Functional
from keras.src.ops.function import Function
from keras.src.ops.node import Node

from millrace._compat.patch_table import NODE_INIT, OPERATION_INIT
from millrace._compat.patches import replace

_STAGE = "_millrace_stage"


def nodes_of(graph: Function) -> list[Any]:
    """Returns the nodes of a Functional model in the order in which Keras runs them.

    Those of inputs are left out.
    """
    by_depth = graph._nodes_by_depth
    return [
        node
        for depth in sorted(by_depth, reverse=True)
        for node in by_depth[depth]
        if node.operation is not None and not node.is_input
    ]


def numbered_nodes(graph: Function) -> list[tuple[Any, int]]:
    """Returns `nodes_of(graph)`, each with its number among the calls of its operation.

    An operation's nodes are numbered in the order in which they were made, without those of other
    graphs.
    """
    nodes = nodes_of(graph)
    mine = {id(node) for node in nodes}
    index = {
        id(node): number
        for operation in {id(node.operation): node.operation for node in nodes}.values()
        for number, node in enumerate(n for n in operation._inbound_nodes if id(n) in mine)
    }
    return [(node, index[id(node)]) for node in nodes]


def inbound_operations(node: Node) -> list[Any]:
    """Returns the operations, `InputLayer`s included, whose values a node takes."""
    return [tensor._keras_history.operation for tensor in node.input_tensors]


def has_own_call(model: keras.Model) -> bool:
    """Whether a model runs a `call` of the user's rather than a graph or a list of layers."""
    return type(model).call not in (Functional.call, keras.Sequential.call)


def graph_of(model: keras.Model) -> Any:
    """Returns the Functional model that runs when `model` is called; None if there is none.

    A Sequential has one once it is built, unless its input is a nested structure.
    """
    if has_own_call(model):
        return None
    private: Any = model
    return private._functional if isinstance(model, keras.Sequential) else model


def input_structure(graph: Functional) -> Any:
    """Returns the inputs of a Functional, a tree of `keras.KerasTensor`s."""
    return graph._inputs_struct


def are_layers_built(model: keras.Model) -> bool:
    """Whether `model` and all layers inside have their variables."""
    return all(layer.built for layer in model._flatten_layers())


def layer_paths(model: keras.Model) -> list[tuple[Any, ...]]:
    """Returns each layer below `model` as `(outermost, ..., layer)`, without those of inputs.

    A layer in several others is listed once for each of them.
    """
    paths: list[tuple[Any, ...]] = []

    def enter(path: tuple[keras.Layer, ...], layer: keras.Layer) -> None:
        for inner in layer._flatten_layers(include_self=False, recursive=False):
            if inner in path or isinstance(inner, keras.layers.InputLayer):
                continue
            paths.append((*path, inner))
            enter((*path, inner), inner)

    enter((), model)
    return paths


def takes_training(model: keras.Model) -> bool:
    """Whether the `call` of a model has a `training` argument."""
    return bool(model._call_has_training_arg)


def is_calling() -> bool:
    """Whether a layer or a model is being called in this thread, by `fit` too."""
    context = global_state.get_global_attribute("current_call_ctx")
    return context is not None or backend.in_stateless_scope()


def is_symbolic() -> bool:
    """Whether layers run in this thread on shapes only, to learn those of their outputs."""
    return in_symbolic_scope()


def run_symbolically(model: keras.Model, *args: object, **kwargs: object) -> None:
    """Runs a model on `keras.KerasTensor`s; its layers see values without numbers."""
    backend.compute_output_spec(model, *args, **kwargs)


def record_stages(current_stage: Callable[[], int | None]) -> None:
    """Lets new graph nodes and new operations remember the stage in which they were made.

    A second call changes nothing.

    Args:
        current_stage: returns the stage of this thread, or None for no stage.
    """

    def remember(new: object) -> None:
        stage = current_stage()
        if stage is not None:
            object.__setattr__(new, _STAGE, stage)  # past Keras's tracking of attributes

    def node(original: Callable[..., None]) -> Callable[..., None]:
        def __init__(self: Node, *args: object, **kwargs: object) -> None:  # noqa: N807
            original(self, *args, **kwargs)
            remember(self)

        return __init__

    def operation(original: Callable[..., None]) -> Callable[..., None]:
        # Keras reads the parameters off this one, to save operations that have no other.
        def __init__(self: keras.Operation, name: str | None = None) -> None:  # noqa: N807
            original(self, name=name)
            remember(self)

        return __init__

    replace(NODE_INIT, node)
    replace(OPERATION_INIT, operation)


def recorded_stage(item: object) -> int | None:
    """Returns the stage in which a node or an operation was made."""
    return getattr(item, _STAGE, None)
