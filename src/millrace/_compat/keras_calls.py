"""Private Keras for the calls that a running model makes. Checked on keras 3.13.0 and 3.15.1.

`around_calls`    wraps every call that a model makes while it runs. Keras runs a graph inside one
                  private method, where two calls of one operation have the same name.
`after_calls`     shows a function the outputs of every layer, at any depth.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import keras
from keras.src.ops.function import Function as KerasFunction

from millrace._compat.keras_graph import graph_of, numbered_nodes
from millrace._compat.patch_table import GRAPH_RUN, LAYER_CALL, REMAT, STATELESS_CALL
from millrace._compat.patches import held, replace
from millrace.base.threads.scoped_value import ScopedValue


class _Frame:
    """A running model, whose calls are counted; None stands for no model or an ordinary layer."""

    def __init__(self, model: keras.Model):
        self.model = model
        self.counts: dict[int, int] = {}

    def count(self, operation: keras.Operation) -> int:
        """Returns the number of earlier calls of `operation` in this run."""
        number = self.counts.get(id(operation), 0)
        self.counts[id(operation)] = number + 1
        return number


Around = Callable[[Any, Any, int], AbstractContextManager[Any]]
See = Callable[[tuple[Any, ...], Any], None]
KerasCall = Callable[..., object]
RecomputeFunction = Callable[[Any], Any]
_frame = ScopedValue[_Frame | None](None)
_around = ScopedValue[Around | None](None)
_see = ScopedValue[See | None](None)
_recompute = ScopedValue[RecomputeFunction | None](None)
_path = ScopedValue[tuple[keras.Layer, ...]](
    ()
)  # layers whose calls are running, the outermost first


@contextmanager
def around_calls(model: keras.Model, around: Around) -> Iterator[None]:
    """Wraps each call that `model` makes in this thread, and those of models nested in it.

    A call is a node of a graph or, where there is no graph, a layer's `__call__`. Calls inside a
    layer that is no `keras.Model` are part of that layer's call.

    Args:
        model: the outermost model, called by `__call__`, `stateless_call` or `call`.
        around: called with the model that makes the call, the operation, and the number of the
            call among those of this operation by that model; returns the context for the call. In
            a graph calls are numbered as by `numbered_nodes`, elsewhere in the order of the run.
    """
    with _frame.bound_to(_Frame(model)), _around.bound_to(around), _wrapped_calls():
        yield


@contextmanager
def after_calls(see: See, recompute: RecomputeFunction) -> Iterator[None]:
    """Shows `see` the outputs of each layer that is called in this thread.

    Args:
        see: called with the layers whose calls are running, from the outermost to the one that
            has returned, and with its outputs.
        recompute: called with a function that Keras is about to have recomputed in the backward
            pass; returns the function to use instead.
    """
    with _see.bound_to(see), _recompute.bound_to(recompute), _path.bound_to(()), _wrapped_calls():
        yield


@contextmanager
def _one_call(frame: _Frame, operation: keras.Operation, node_index: int) -> Iterator[None]:
    inner = _Frame(operation) if isinstance(operation, keras.Model) else None
    around: Any = _around.get()
    with around(frame.model, operation, node_index), _frame.bound_to(inner):
        yield


@contextmanager
def _wrapped_calls() -> Iterator[None]:
    with held():
        replace(LAYER_CALL, _wrapped_call)
        replace(REMAT, _wrapped_remat)
        replace(STATELESS_CALL, _wrapped_stateless_call)
        replace(GRAPH_RUN, _wrapped_graph_run)
        yield


def _wrapped_call(original: KerasCall) -> KerasCall:
    def framed(self: keras.Layer, *args: object, **kwargs: object) -> object:
        frame = _frame.get()
        if frame is None:
            return original(self, *args, **kwargs)
        if frame.model is self:
            frame.counts.clear()
            return original(self, *args, **kwargs)
        if graph_of(frame.model) is not None:  # its calls are wrapped where the graph is run
            return original(self, *args, **kwargs)
        with _one_call(frame, self, frame.count(self)):
            return original(self, *args, **kwargs)

    def __call__(self: keras.Layer, *args: object, **kwargs: object) -> object:  # noqa: N807
        see = _see.get()
        if see is None:
            return framed(self, *args, **kwargs)
        path = (*_path.get(), self)
        with _path.bound_to(path):
            outputs = framed(self, *args, **kwargs)
        see(path, outputs)
        return outputs

    return __call__


def _wrapped_remat(original: KerasCall) -> KerasCall:
    def remat(f: KerasCall) -> object:
        recompute = _recompute.get()
        return original(f) if recompute is None else recompute(f)

    return remat


def _wrapped_stateless_call(original: KerasCall) -> KerasCall:
    def stateless_call(self: keras.Layer, *args: object, **kwargs: object) -> object:
        frame = _frame.get()
        if frame is not None and frame.model is self:
            frame.counts.clear()  # a new run: this calls `call`, and not `__call__`
        return original(self, *args, **kwargs)

    return stateless_call


def _wrapped_graph_run(original: KerasCall) -> KerasCall:
    def _run_through_graph(
        self: KerasFunction,
        inputs: object,
        operation_fn: Callable[[keras.Operation], KerasCall] = lambda op: op,
        call_fn: KerasCall | None = None,
    ) -> object:
        frame = _frame.get()
        if frame is None or call_fn is not None or graph_of(frame.model) is not self:
            return original(self, inputs, operation_fn=operation_fn, call_fn=call_fn)
        nodes = iter(numbered_nodes(self))

        def wrapped_fn(operation: keras.Operation) -> KerasCall:
            # Keras skips nodes that lack an optional input, so this may skip some, too.
            node_index = next(index for node, index in nodes if node.operation is operation)
            function = operation_fn(operation)

            def call(*args: object, **kwargs: object) -> object:
                with _one_call(frame, operation, node_index):
                    return function(*args, **kwargs)

            return call

        return original(self, inputs, operation_fn=wrapped_fn, call_fn=None)

    return _run_through_graph
