"""The calls of a model, in execution order, and the model run with each of them marked.

    Functional            Sequential         subclassed
    dense   -> a          dense -> a         dense -> a
    nested  -> (b, c)     dense -> b         dense -> b
    nested  -> (d, e)                        (found by one run on shapes alone)
    add     -> f

The calls a to f are *leaves*: calls of layers and operations, not of models. Under `marked_calls`,
leaf number k runs in the name scope `mr.L<k>`.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import jax
import keras

from millrace._compat.keras_calls import around_calls
from millrace._compat.keras_graph import (
    Functional,
    graph_of,
    has_own_call,
    inbound_operations,
    numbered_nodes,
    recorded_stage,
)
from millrace.run.pipelines.assignment.observed_calls import Arguments, ObservedCall, run_on_shapes

LayerPath = tuple[tuple[keras.Operation, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class LayerCall:
    """One call of a layer, an operation or a nested model. Equal only to itself."""

    path: LayerPath  # (operation, index among its calls by its model), from the root to this call
    inputs: tuple["LayerCall", ...]  # calls by the same model whose values it takes
    producers: tuple["LayerCall", ...]  # leaves whose values it takes, inside nested models too
    inbound: tuple[keras.Operation, ...]  # layers whose values it takes, input layers included
    inner: tuple["LayerCall", ...]  # the calls that it makes, if it is a nested model
    scope_stage: int | None  # of the `PipelineStage` around the call
    creation_stage: int | None  # of the `PipelineStage` in which the layer was created

    @property
    def operation(self) -> keras.Operation:
        """The layer, operation or nested model that is called."""
        return self.path[-1][0]

    @property
    def node_index(self) -> int:
        """Index of the call among the operation's calls by its model."""
        return self.path[-1][1]

    @property
    def name(self) -> str:
        """The layer's name after those of the outer models: `encoder/dense`."""
        return "/".join([*(_step(*step) for step in self.path[:-1]), self.operation.name])

    @property
    def label(self) -> str:
        """The name with the index of each call but the first: `encoder#1/dense#2`."""
        return "/".join(_step(*step) for step in self.path)


def _step(operation: keras.Operation, node_index: int) -> str:
    return f"{operation.name}#{node_index}" if node_index else operation.name


def find_calls(model: keras.Model) -> tuple[LayerCall, ...]:
    """Returns the calls that `model` makes, in execution order, without those of input layers.

    The flow of values in a subclassed model shows only in a trace. Here each of its calls counts as
    taking the value of the call before it. It is run on the shapes with which it was built, as
    floats, or as integers if it does not take floats.

    Args:
        model: a Keras model. Only a subclassed one needs to be built.

    Raises:
        ModelError: if a subclassed model is not built, has no `call`, or does not run on shapes.
    """
    return _open(model, (), [()], None, None).calls


def leaves(calls: Iterable[LayerCall]) -> tuple[LayerCall, ...]:
    """Returns the calls, with the call of each nested model replaced by those that it makes."""
    return tuple(leaf for call in calls for leaf in (leaves(call.inner) if call.inner else (call,)))


def leaf_edges(calls: Iterable[LayerCall]) -> tuple[tuple[int, ...], ...]:
    """Returns for each leaf the numbers of the leaves whose values it takes."""
    flat = leaves(calls)
    numbers = {leaf: number for number, leaf in enumerate(flat)}
    return tuple(tuple(numbers[p] for p in leaf.producers) for leaf in flat)


@contextmanager
def marked_calls(model: keras.Model, calls: Sequence[LayerCall]) -> Iterator[None]:
    """Runs leaf k of `model` in the name scope `mr.L<k>`, wherever this thread calls it inside.

    Args:
        model: the model to mark.
        calls: of `find_calls(model)`. A subclassed model may make calls that are not among them
            (in a branch not taken before); these stay without a mark.
    """
    numbers = {call.path: number for number, call in enumerate(leaves(calls))}
    path: LayerPath = ()

    @contextmanager
    def around(_: keras.Model, operation: keras.Operation, node_index: int) -> Iterator[None]:
        nonlocal path
        outer, path = path, (*path, (operation, node_index))
        number = numbers.get(path)
        try:
            with nullcontext() if number is None else jax.named_scope(f"mr.L{number}"):
                yield
        finally:
            path = outer

    with around_calls(model, around):
        yield


Producers = tuple[LayerCall, ...]


class _Arguments(Protocol):
    args: Sequence[object]
    kwargs: dict[str, object]


class _Node(Protocol):
    """One call in a Keras graph."""

    operation: keras.Operation
    input_tensors: Sequence[keras.KerasTensor]
    outputs: Sequence[keras.KerasTensor]
    arguments: _Arguments


@dataclass(frozen=True, slots=True)
class _Opened:
    """A model's calls, and for each of its outputs the leaves that produce it."""

    calls: tuple[LayerCall, ...]
    outputs: list[Producers]


def _open(
    model: keras.Model,
    path: LayerPath,
    producers: list[Producers],
    arguments: Arguments | None,
    observed: list[ObservedCall] | None,
) -> _Opened:
    """Returns the calls of a model; `producers` are the leaves behind each of its inputs."""
    if has_own_call(model):
        observed = run_on_shapes(model, arguments) if observed is None else observed
        return _open_list(path, _merge(producers), observed)
    if graph_of(model) is not None:
        return _open_graph(graph_of(model), path, producers, isinstance(model, keras.Sequential))
    layer_calls: list[ObservedCall] = []
    for layer in model.layers:
        index = sum(layer is other.operation for other in layer_calls)
        inner = observed[len(layer_calls)].inner if observed else None
        layer_calls.append(ObservedCall(layer, index, None, inner))
    return _open_list(path, _merge(producers), layer_calls)


def _open_list(path: LayerPath, producers: Producers, observed: Sequence[ObservedCall]) -> _Opened:
    calls: list[LayerCall] = []
    for step in observed:
        here = (*path, (step.operation, step.node_index))
        inbound = [before.operation for before in calls[-1:]]
        call, outputs = _make(here, calls[-1:], inbound, [producers], step)
        calls.append(call)
        producers = _merge(outputs)
    return _Opened(tuple(calls), [producers])


def _open_graph(
    graph: Functional, path: LayerPath, behind_inputs: list[Producers], is_sequential: bool
) -> _Opened:
    if len(behind_inputs) != len(graph.inputs):
        behind_inputs = [_merge(behind_inputs)] * len(graph.inputs)
    inputs = zip(graph.inputs, behind_inputs, strict=True)
    producers = {id(tensor): leaf for tensor, leaf in inputs}
    makers: dict[int, LayerCall] = {}
    calls = []
    for node, index in numbered_nodes(graph):
        taken = [id(tensor) for tensor in node.input_tensors]
        # Sequential.add() calls all layers again, in whatever stage it is called.
        stage = None if is_sequential else recorded_stage(node)
        call, outputs = _make(
            (*path, (node.operation, index)),
            [makers[tensor] for tensor in taken if tensor in makers],
            inbound_operations(node),
            _behind_inputs(node, producers),
            ObservedCall(node.operation, index, stage, None),
            (node.arguments.args, node.arguments.kwargs),
        )
        calls.append(call)
        if len(outputs) != len(node.outputs):
            outputs = [_merge(outputs)] * len(node.outputs)
        for tensor, leaf in zip(node.outputs, outputs, strict=True):
            makers[id(tensor)] = call
            producers[id(tensor)] = leaf
    return _Opened(tuple(calls), [producers[id(tensor)] for tensor in graph.outputs])


def _behind_inputs(node: _Node, producers: dict[int, Producers]) -> list[Producers]:
    """Returns the leaves behind each input of the graph that a node calls, or behind all."""
    flat = [producers[id(tensor)] for tensor in node.input_tensors]
    graph = graph_of(node.operation) if isinstance(node.operation, keras.Model) else None
    if graph is None or len(node.arguments.args) != 1 or len(flat) != len(graph.inputs):
        return [_merge(flat)]
    alike = _paths(node.arguments.args[0]) == _paths(graph.input)
    return flat if alike else [_merge(flat)]


def _paths(structure: object) -> list[tuple[object, ...]]:
    """Returns the path of each value in a structure, the same for a tracked copy by Keras."""
    return [path for path, _ in keras.tree.flatten_with_path(structure)]


def _make(
    path: LayerPath,
    inputs: Sequence[LayerCall],
    inbound: Sequence[keras.Operation],
    producers: list[Producers],
    observed: ObservedCall,
    arguments: Arguments | None = None,
) -> tuple[LayerCall, list[Producers]]:
    """Returns a call, and for each of its outputs the leaves that produce it."""
    operation = path[-1][0]
    opened = _Opened((), [])
    if isinstance(operation, keras.Model):
        opened = _open(operation, path, producers, arguments, observed.inner)
    call = LayerCall(
        path=path,
        inputs=tuple(dict.fromkeys(inputs)),
        producers=_merge(producers),
        inbound=tuple(dict.fromkeys(inbound)),
        inner=opened.calls,
        scope_stage=observed.stage,
        creation_stage=recorded_stage(operation),
    )
    return call, opened.outputs if opened.calls else [(call,)]


def _merge(many: Iterable[Producers]) -> Producers:
    return tuple(dict.fromkeys(leaf for some in many for leaf in some))
