"""The calls of a model, in execution order, and the model run with each of them marked.

    Functional            Sequential         subclassed
    dense   -> a          dense -> a         dense -> a
    nested  -> (b, c)     dense -> b         dense -> b
    nested  -> (d, e)                        (found by one run on shapes alone)
    add     -> f

The calls a to f are *leaves*: layers and operations as against the models that make them. Leaf
number k runs, under `marked_calls`, in the name scope `mr.L<k>`.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import keras

from millrace._compat.keras_calls import around_calls
from millrace._compat.keras_graph import (
    graph_of,
    has_own_call,
    inbound_operations,
    numbered_nodes,
    recorded_stage,
)
from millrace.pipelines.assignment.watch import Arguments, Ran, run_on_shapes

LayerPath = tuple[tuple[Any, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class LayerCall:
    """One call of a layer, an operation or a nested model. Equal only to itself."""

    path: (
        LayerPath  # (operation, which of its calls by its model), from the root's call to this one
    )
    inputs: tuple["LayerCall", ...]  # calls by the same model whose values it takes
    producers: tuple["LayerCall", ...]  # leaves whose values it takes, nested models opened
    inbound: tuple[Any, ...]  # layers whose values it takes, input layers included
    inner: tuple["LayerCall", ...]  # the calls that it makes, if it is a nested model
    scope_stage: int | None  # of the `PipelineStage` around the call
    creation_stage: int | None  # of the `PipelineStage` in which the layer was made

    @property
    def operation(self) -> Any:
        """The layer, operation or nested model that is called."""
        return self.path[-1][0]

    @property
    def node_index(self) -> int:
        """Which of the operation's calls by its model this is."""
        return self.path[-1][1]

    @property
    def name(self) -> str:
        """The layer's name below those of the models around it: `encoder/dense`."""
        return "/".join([*(_step(*step) for step in self.path[:-1]), self.operation.name])

    @property
    def label(self) -> str:
        """The name, told apart from the layer's other calls: `encoder#1/dense#2`."""
        return "/".join(_step(*step) for step in self.path)


def _step(operation: Any, node_index: int) -> str:
    return f"{operation.name}#{node_index}" if node_index else operation.name


def find_calls(model: Any, inputs: Any = None) -> tuple[LayerCall, ...]:
    """Returns the calls that `model` makes, in execution order; those of inputs are left out.

    In a subclassed model values flow in ways that only a trace shows. There each call counts as
    taking the value of the call before it.

    Args:
        model: a Keras model. Only a subclassed one needs to be built.
        inputs: what a subclassed model is run on: a structure of anything with a shape and a
            dtype. None takes the shapes that it was built with, as floats, else as integers.

    Raises:
        ModelError: if a subclassed model is not built, has no `call`, or does not run on shapes.
    """
    arguments = None
    if inputs is not None:
        spec = keras.tree.map_structure(lambda x: keras.KerasTensor(x.shape, x.dtype), inputs)
        arguments = ((spec,), {})
    return _open(model, (), [()], arguments, None).calls


def leaves(calls: Iterable[LayerCall]) -> tuple[LayerCall, ...]:
    """Returns the calls with each nested model's replaced by those that it makes."""
    return tuple(leaf for call in calls for leaf in (leaves(call.inner) if call.inner else (call,)))


def leaf_edges(calls: Iterable[LayerCall]) -> tuple[tuple[int, ...], ...]:
    """Returns for each leaf the numbers of the leaves whose values it takes."""
    flat = leaves(calls)
    numbers = {leaf: number for number, leaf in enumerate(flat)}
    return tuple(tuple(numbers[p] for p in leaf.producers) for leaf in flat)


@contextmanager
def marked_calls(model: Any, calls: Sequence[LayerCall]) -> Iterator[None]:
    """Lets `model`, called inside and in this thread, run leaf k in the name scope `mr.L<k>`.

    Args:
        model: the model of which `calls` were found.
        calls: as found by `find_calls`. A subclassed model may make calls that are not among
            them (in a branch that was not taken before); these stay without a mark.
    """
    numbers = {call.path: number for number, call in enumerate(leaves(calls))}
    path: LayerPath = ()

    @contextmanager
    def around(_: Any, operation: Any, node_index: int) -> Iterator[None]:
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


@dataclass(frozen=True, slots=True)
class _Opened:
    """A model's calls, and for each of its outputs the leaves that it comes from."""

    calls: tuple[LayerCall, ...]
    outputs: list[Producers]


def _open(
    model: Any,
    path: LayerPath,
    given: list[Producers],
    arguments: Arguments | None,
    ran: list[Ran] | None,
) -> _Opened:
    """Returns the calls of a model that is called with values from the leaves `given`."""
    if has_own_call(model):
        ran = run_on_shapes(model, arguments) if ran is None else ran
        return _open_list(path, _merge(given), ran)
    if graph_of(model) is not None:
        return _open_graph(graph_of(model), path, given, isinstance(model, keras.Sequential))
    seen: list[Ran] = []
    for layer in model.layers:
        index = sum(layer is other.operation for other in seen)
        inside = ran[len(seen)].inside if ran else None
        seen.append(Ran(layer, index, None, inside))
    return _open_list(path, _merge(given), seen)


def _open_list(path: LayerPath, given: Producers, seen: Sequence[Ran]) -> _Opened:
    calls: list[LayerCall] = []
    for step in seen:
        here = (*path, (step.operation, step.node_index))
        inbound = [before.operation for before in calls[-1:]]
        call, outputs = _make(here, calls[-1:], inbound, [given], step.stage, None, step.inside)
        calls.append(call)
        given = _merge(outputs)
    return _Opened(tuple(calls), [given])


def _open_graph(
    graph: Any, path: LayerPath, given: list[Producers], is_sequential: bool
) -> _Opened:
    if len(given) != len(graph.inputs):
        given = [_merge(given)] * len(graph.inputs)
    producers = {id(tensor): leaf for tensor, leaf in zip(graph.inputs, given, strict=True)}
    makers: dict[int, LayerCall] = {}
    calls = []
    for node, index in numbered_nodes(graph):
        taken = [id(tensor) for tensor in node.input_tensors]
        call, outputs = _make(
            (*path, (node.operation, index)),
            [makers[tensor] for tensor in taken if tensor in makers],
            inbound_operations(node),
            _given(node, producers),
            # Sequential.add() calls all layers again, in whatever stage it is called.
            None if is_sequential else recorded_stage(node),
            (node.arguments.args, node.arguments.kwargs),
            None,
        )
        calls.append(call)
        if len(outputs) != len(node.outputs):
            outputs = [_merge(outputs)] * len(node.outputs)
        for tensor, leaf in zip(node.outputs, outputs, strict=True):
            makers[id(tensor)] = call
            producers[id(tensor)] = leaf
    return _Opened(tuple(calls), [producers[id(tensor)] for tensor in graph.outputs])


def _given(node: Any, producers: dict[int, Producers]) -> list[Producers]:
    """Returns the leaves behind each input of the graph that a node calls, or behind all."""
    flat = [producers[id(tensor)] for tensor in node.input_tensors]
    graph = graph_of(node.operation) if isinstance(node.operation, keras.Model) else None
    if graph is None or len(node.arguments.args) != 1 or len(flat) != len(graph.inputs):
        return [_merge(flat)]
    alike = _places(node.arguments.args[0]) == _places(graph.input)
    return flat if alike else [_merge(flat)]


def _places(structure: Any) -> list[Any]:
    """Returns where the values of a structure are, which a tracked copy by Keras has alike."""
    return [place for place, _ in keras.tree.flatten_with_path(structure)]


def _make(
    path: LayerPath,
    inputs: Sequence[LayerCall],
    inbound: Sequence[Any],
    given: list[Producers],
    stage: int | None,
    arguments: Arguments | None,
    ran: list[Ran] | None,
) -> tuple[LayerCall, list[Producers]]:
    """Returns a call, and for each of its outputs the leaves that it comes from."""
    operation = path[-1][0]
    opened = _Opened((), [])
    if isinstance(operation, keras.Model):
        opened = _open(operation, path, given, arguments, ran)
    call = LayerCall(
        path=path,
        inputs=tuple(dict.fromkeys(inputs)),
        producers=_merge(given),
        inbound=tuple(dict.fromkeys(inbound)),
        inner=opened.calls,
        scope_stage=stage,
        creation_stage=recorded_stage(operation),
    )
    return call, opened.outputs if opened.calls else [(call,)]


def _merge(many: Iterable[Producers]) -> Producers:
    return tuple(dict.fromkeys(leaf for some in many for leaf in some))
