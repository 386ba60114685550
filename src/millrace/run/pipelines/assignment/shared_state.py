"""Calls that must be on one stage, because they change the same state.

    call  layer      takes                    groups of calls
    0     norm                                0: norm, dense, norm#1
    1     dense      0                        1: head
    2     norm       1
    3     head       2

State that changes with every micro-batch (statistics of BatchNormalization, seeds) can have one
stage only. So can scales of float8 layers, since Keras adds up what all calls of a step make of
them. What lies between two such calls is then on that stage as well: values never go back.
"""

import heapq
from collections.abc import Iterator, Sequence
from graphlib import TopologicalSorter

import keras
import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from millrace.run.pipelines.assignment.layer_calls import LayerCall


def groups_by_state(calls: Sequence[LayerCall], edges: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Returns the number of each call's group. No group takes a value of one with a higher number.

    Args:
        calls: the leaves of a model, in execution order.
        edges: for each call, the numbers of the earlier calls whose values it takes.
    """
    first: dict[int, int] = {}  # the first call that changes a variable
    links = [(producer, call) for call, taken in enumerate(edges) for producer in taken]
    for number, call in enumerate(calls):
        for variable in _changing(call.operation):
            start = first.setdefault(id(variable), number)
            if start != number:
                links += [(start, number), (number, start)]
    if all(producer < call for producer, call in links):
        return tuple(range(len(calls)))  # no state is shared
    rows, columns = np.array(links).T
    shape = len(calls), len(calls)
    matrix = csr_array((np.ones(len(links), bool), (rows, columns)), shape=shape)
    labels = connected_components(matrix, connection="strong")[1]
    return _in_order(labels.tolist(), edges)


def edges_of_groups(
    groups: Sequence[int], edges: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], ...]:
    """Returns for each group the numbers of the other groups whose values its calls take."""
    taken: list[set[int]] = [set() for _ in range(max(groups) + 1)]
    for group, producers in zip(groups, edges, strict=True):
        taken[group].update(groups[producer] for producer in producers)
    return tuple(tuple(sorted(found - {group})) for group, found in enumerate(taken))


def _changing(operation: keras.Operation) -> Iterator[keras.Variable]:
    """Yields the variables that a call may change in training: not those of a frozen layer.

    A frozen layer still draws random numbers; their seeds are integers.
    """
    is_trainable = getattr(operation, "trainable", False)
    for variable in getattr(operation, "variables", ()):
        changes = not variable.trainable or variable.overwrite_with_gradient
        if changes and (is_trainable or "int" in variable.dtype):
            yield variable


def _in_order(labels: Sequence[int], edges: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Numbers the groups so that values go to higher numbers, else in the order of execution."""
    position = {label: call for call, label in reversed(list(enumerate(labels)))}
    takes: dict[int, set[int]] = {label: set() for label in position}
    for call, producers in enumerate(edges):
        takes[labels[call]].update(labels[producer] for producer in producers)
    sorter = TopologicalSorter({label: taken - {label} for label, taken in takes.items()})
    sorter.prepare()
    ready: list[tuple[int, int]] = []
    number: dict[int, int] = {}
    while sorter.is_active():
        for label in sorter.get_ready():
            heapq.heappush(ready, (position[label], label))
        _, label = heapq.heappop(ready)
        number[label] = len(number)
        sorter.done(label)
    return tuple(number[label] for label in labels)
