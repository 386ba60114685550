"""Private Keras for graphs of layer calls. Checked on keras 3.13.0 and 3.15.1.

`nodes_of`, `numbered_nodes`   the calls in a graph, in the order in which Keras runs them.
`graph_of`, `has_own_call`     the graph that runs when a model is called, if one does.
`record_stages`   notes a pipeline stage on graph nodes and layers as they are made. `Node` has no
                  public hook, and a layer's `__call__` does not know the node that it ends with.
`around_calls`    wraps every call that a model makes while it runs. Keras runs a graph inside one
                  private method, and gives what it calls there no name that tells two calls apart.
`run_symbolically`   runs a model on shapes only, without adding nodes to its layers.
`is_calling`      whether a layer or a model is running, which Keras keeps as a global.
"""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import keras
from keras.src import backend
from keras.src.backend.common import global_state
from keras.src.models.functional import Functional
from keras.src.ops.function import Function
from keras.src.ops.node import Node
from keras.src.ops.operation import Operation

from millrace._compat.needed import check_names

check_names(
    {
        Function: ("_run_through_graph",),
        Operation: ("__init__",),
        keras.Layer: ("__call__", "stateless_call", "_flatten_layers"),
        global_state: ("get_global_attribute",),
    }
)

_STAGE = "_millrace_stage"


def nodes_of(graph: Any) -> list[Any]:
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


def numbered_nodes(graph: Any) -> list[tuple[Any, int]]:
    """Returns `nodes_of(graph)`, each with which of its operation's calls in this graph it is.

    An operation's nodes are numbered in the order in which they were made; those that belong to
    other models do not count.
    """
    nodes = nodes_of(graph)
    mine = {id(node) for node in nodes}
    index = {
        id(node): number
        for operation in {id(node.operation): node.operation for node in nodes}.values()
        for number, node in enumerate(n for n in operation._inbound_nodes if id(n) in mine)
    }
    return [(node, index[id(node)]) for node in nodes]


def inbound_operations(node: Any) -> list[Any]:
    """Returns the operations, `InputLayer`s included, whose values a node takes."""
    return [tensor._keras_history.operation for tensor in node.input_tensors]


def has_own_call(model: Any) -> bool:
    """Whether a model runs a `call` of the user's rather than a graph or a list of layers."""
    return type(model).call not in (Functional.call, keras.Sequential.call)


def graph_of(model: Any) -> Any:
    """Returns the Functional model that runs when `model` is called; None if there is none.

    A Sequential has one once it is built, unless its input is a nested structure.
    """
    if has_own_call(model):
        return None
    return model._functional if isinstance(model, keras.Sequential) else model


def input_structure(graph: Any) -> Any:
    """Returns the `keras.KerasTensor`s that a Functional is called with, as it takes them."""
    return graph._inputs_struct


def are_layers_built(model: Any) -> bool:
    """Whether `model` and all layers inside have their variables."""
    return all(layer.built for layer in model._flatten_layers())


def takes_training(model: Any) -> bool:
    """Whether the `call` of a model has a `training` argument."""
    return bool(model._call_has_training_arg)


def is_calling() -> bool:
    """Whether a layer or a model is being called in this thread, by `fit` too."""
    context = global_state.get_global_attribute("current_call_ctx")
    return context is not None or backend.in_stateless_scope()


def run_symbolically(model: Any, *args: Any, **kwargs: Any) -> None:
    """Runs a model on `keras.KerasTensor`s; inside, its layers see values without numbers."""
    backend.compute_output_spec(model, *args, **kwargs)


@functools.cache
def record_stages(current_stage: Callable[[], int | None]) -> None:
    """Lets new graph nodes and new operations remember the stage in which they were made.

    Once is enough, and all that happens.

    Args:
        current_stage: returns the stage of this thread, or None for no stage.
    """

    def remember(made: Any) -> None:
        stage = current_stage()
        if stage is not None:
            object.__setattr__(made, _STAGE, stage)  # past Keras's tracking of attributes

    def node(original: Any) -> Any:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(self, *args, **kwargs)
            remember(self)

        return __init__

    def operation(original: Any) -> Any:
        # Keras reads the parameters off this one, to save operations that have no other.
        def __init__(self: Any, name: str | None = None) -> None:  # noqa: N807
            original(self, name=name)
            remember(self)

        return __init__

    _wrap(Node, "__init__", node)
    _wrap(Operation, "__init__", operation)


def recorded_stage(made: Any) -> int | None:
    """Returns the stage in which a node or an operation was made."""
    return getattr(made, _STAGE, None)


def _wrap(owner: type, name: str, wrapper: Callable[[Any], Any]) -> None:
    """Replaces a method; one replaced before, by a module since reloaded, is replaced anew."""
    current = getattr(owner, name)
    original = getattr(current, "millrace_original", current)
    wrapped: Any = functools.wraps(original)(wrapper(original))
    wrapped.millrace_original = original
    setattr(owner, name, wrapped)


class _Frame:
    """A running model, whose calls are counted; None stands for no model or an ordinary layer."""

    def __init__(self, model: Any):
        self.model = model
        self.counts: dict[int, int] = {}

    def count(self, operation: Any) -> int:
        """Returns how often this run has called `operation` before."""
        number = self.counts.get(id(operation), 0)
        self.counts[id(operation)] = number + 1
        return number


Around = Callable[[Any, Any, int], AbstractContextManager[Any]]


class _Running(threading.local):
    frame: _Frame | None = None
    around: Around | None = None


_running = _Running()


@contextmanager
def around_calls(model: Any, around: Around) -> Iterator[None]:
    """Wraps each call that `model` makes in this thread, and those of models nested in it.

    A call is a node of a graph or, where there is no graph, a layer's `__call__`. What happens
    inside a layer that is no `keras.Model` is part of that layer's call.

    Args:
        model: the outermost model, called by `__call__`, `stateless_call` or `call`.
        around: called with the model that makes the call, the operation, and which of the
            operation's calls by that model it is; returns the context to run the call in. In a
            graph calls are numbered as by `numbered_nodes`, elsewhere in the order of the run.
    """
    _wrap_calls()
    before = _running.frame, _running.around
    _running.frame, _running.around = _Frame(model), around
    try:
        yield
    finally:
        _running.frame, _running.around = before


@contextmanager
def _one_call(frame: _Frame, operation: Any, node_index: int) -> Iterator[None]:
    with _running.around(frame.model, operation, node_index):  # type: ignore[misc]
        _running.frame = _Frame(operation) if isinstance(operation, keras.Model) else None
        try:
            yield
        finally:
            _running.frame = frame


@functools.cache
def _wrap_calls() -> None:
    _wrap(keras.Layer, "__call__", _wrapped_call)
    _wrap(keras.Layer, "stateless_call", _wrapped_stateless_call)
    _wrap(Function, "_run_through_graph", _wrapped_graph_run)


def _wrapped_call(original: Any) -> Any:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        frame = _running.frame
        if frame is None:
            return original(self, *args, **kwargs)
        if frame.model is self:
            frame.counts.clear()
            return original(self, *args, **kwargs)
        if graph_of(frame.model) is not None:  # which is wrapped where the graph is run
            return original(self, *args, **kwargs)
        with _one_call(frame, self, frame.count(self)):
            return original(self, *args, **kwargs)

    return __call__


def _wrapped_stateless_call(original: Any) -> Any:
    def stateless_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _running.frame is not None and _running.frame.model is self:
            _running.frame.counts.clear()  # a new run: this calls `call`, and not `__call__`
        return original(self, *args, **kwargs)

    return stateless_call


def _wrapped_graph_run(original: Any) -> Any:
    def _run_through_graph(
        self: Any, inputs: Any, operation_fn: Any = lambda op: op, call_fn: Any = None
    ) -> Any:
        frame = _running.frame
        if frame is None or call_fn is not None or graph_of(frame.model) is not self:
            return original(self, inputs, operation_fn=operation_fn, call_fn=call_fn)
        nodes = iter(numbered_nodes(self))

        def wrapped_fn(operation: Any) -> Any:
            # Keras skips nodes that lack an optional input, so this may skip some, too.
            node_index = next(index for node, index in nodes if node.operation is operation)
            function = operation_fn(operation)

            def call(*args: Any, **kwargs: Any) -> Any:
                with _one_call(frame, operation, node_index):
                    return function(*args, **kwargs)

            return call

        return original(self, inputs, operation_fn=wrapped_fn, call_fn=None)

    return _run_through_graph
