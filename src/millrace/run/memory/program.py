"""The memory of one program: areas by role, the tensors at the peak, and what runs where.

executable -> program, buffers   hlo_proto.py
-> when they live     liveness.py
-> what for           roles.py, from labels of arguments and names of operations
-> whose              owners.py
areas at each program point, up to `MOST_POINTS`; tensors at the peak, up to `MOST_TENSORS`
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import jax
import numpy as np

from millrace._compat.jax_executables import buffers_proto, result_paths
from millrace.base.records.memory import LiveBuffer, largest
from millrace.base.records.program_memory import ROLES, MemoryArea, ProgramMemory, ProgramSegment
from millrace.run.memory.hlo_proto import Allocation, Module, read_buffers
from millrace.run.memory.labels import ProgramLabels, ValueLabel, labels_of_arguments
from millrace.run.memory.liveness import Liveness, live_arguments, live_buffer, liveness
from millrace.run.memory.owners import NearestNames, kind_finder
from millrace.run.memory.roles import BufferRoles

MOST_POINTS = 4_000  # of a curve; a longer program keeps the fullest of each few neighbours
MOST_TENSORS = 300  # at the peak; smaller ones are added up by layer and role
_ORDER = ("accumulators", "optimizer", "parameters", "batches", "gradients", "activations", "other")
_NUMBERS = {role: number for number, role in enumerate(_ORDER)}  # where buffers overlap
_IDLE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}  # they compute nothing
_NAMELESS = len(_ORDER)  # "other", without a layer


def analyze(
    memory: ProgramMemory,
    compiled: jax.stages.Compiled,
    module: Module,
    layer_of: Callable[[str], str],
    labels: ProgramLabels,
) -> tuple[ProgramMemory, tuple[str, ...]]:
    """Returns the memory of an executable, and the layers that its backward runs again.

    Args:
        memory: of which only the compiler's requirement is known.
        compiled: the executable.
        module: its program.
        layer_of: returns the layer in the name of an operation, empty if there is none.
        labels: of its arguments and results.
    """
    assignment = read_buffers(buffers_proto(compiled))
    if module.entry not in module.schedule or not assignment.allocations:
        # A backend without a schedule, or without the addresses of buffers.
        return replace(memory, attributed=0.0), ()
    live = liveness(module, assignment)
    return _Analysis(compiled, module, live, layer_of, labels).of(memory)


class _Analysis:
    """One executable while it is analyzed."""

    def __init__(
        self,
        compiled: jax.stages.Compiled,
        module: Module,
        live: Liveness,
        layer_of: Callable[[str], str],
        labels: ProgramLabels,
    ):
        self._compiled, self._module, self._live, self._labels = compiled, module, live, labels
        names = [each for c in module.computations.values() for each in c.instructions]
        default = labels.kind
        if not default and not any("transpose(" in each.op_name for each in names):
            default = "forward"
        self._layers = NearestNames(module, layer_of)
        self._kinds = NearestNames(
            module, kind_finder(layer_of, labels.updates, default, labels.repeats)
        )
        self._argument = labels_of_arguments(compiled, labels.argument)
        self._role_finder = BufferRoles(module, live, self._kinds, lambda k: self._argument(k).role)
        self._roles = {each: self._role_finder.of(each) for each in live.ranges}

    @cached_property
    def _results(self) -> dict[int, ValueLabel]:
        """The labels of the results, by buffer."""
        paths = result_paths(self._compiled)
        root = self._module.computations[self._module.entry].root
        values = self._live.values[root]
        leaves = sorted(index for index in values if len(index) == 1) or [()]
        if len(leaves) != len(paths):  # JAX returns some arguments itself
            return {}
        return {
            buffer: self._labels.result(path)
            for index, path in zip(leaves, paths, strict=True)
            for buffer in values[index]
        }

    def _label(self, allocation: Allocation) -> ValueLabel:
        """Returns the label of memory that is never reused."""
        if allocation.is_parameter:
            return self._argument(allocation.parameter)
        for buffer, _, _ in allocation.assigned:
            if buffer in self._results:
                return self._results[buffer]
        made = [buffer for buffer, _, _ in allocation.assigned if buffer in self._roles]
        if allocation.is_constant or not made:
            return ValueLabel()
        return ValueLabel(self._roles[made[-1]])

    def _layer(self, buffer: int) -> str:
        maker = self._live.makers.get(buffer)
        return "" if maker is None else self._layers.of(maker)[0]

    def _kind_of_buffer(self, buffer: int) -> int:
        role = self._roles[buffer]
        return _NAMELESS if role == "other" and not self._layer(buffer) else _NUMBERS[role]

    def _kind_of_allocation(self, allocation: Allocation) -> int:
        label = self._label(allocation)
        if label.role != "other" or label.layer:
            return _NUMBERS[label.role]
        layers = (self._layer(buffer) for buffer, _, _ in allocation.assigned)
        return _NUMBERS["other"] if any(layers) else _NAMELESS

    def of(self, memory: ProgramMemory) -> tuple[ProgramMemory, tuple[str, ...]]:
        """Returns the memory with all that is known now, and the layers that run again."""
        sizes = self._live.areas(self._kind_of_buffer, self._kind_of_allocation, _NAMELESS + 1)
        curve = sizes.sum(axis=0)
        kept = _fullest(curve, MOST_POINTS)
        total, nameless = float(curve.sum()), float(sizes[_NAMELESS].sum())
        sizes[_NUMBERS["other"]] += sizes[_NAMELESS]
        areas = tuple(
            MemoryArea(role, tuple(sizes[_NUMBERS[role], kept].tolist()))
            for role in ROLES
            if sizes[_NUMBERS[role]].any()
        )
        peak = int(curve.argmax())
        segments, recomputed = self._segments(kept)
        memory = replace(
            memory,
            areas=areas,
            point=int(np.searchsorted(kept, peak)),
            alive=_added_up(self._alive(peak)),
            segments=segments,
            num_points=len(curve),
            attributed=1.0 - nameless / total if total else 1.0,
        )
        return memory, recomputed

    def _alive(self, peak: int) -> list[LiveBuffer]:
        alive = live_arguments(self._module, self._live.assignment, self._argument)
        of_buffer = {
            buffer: self._label(each)
            for each in self._live.assignment.allocations
            if not (each.is_temporary or each.is_parameter)
            for buffer, _, _ in each.assigned
        }
        for _, size, buffer in self._live.at_peak(self._kind_of_buffer, peak):
            maker = self._role_finder.maker(buffer)
            tensor = live_buffer(maker, size, self._layers)
            label = of_buffer.get(buffer, ValueLabel(self._roles[buffer]))
            if label.name:
                tensor = replace(tensor, name=label.name, layer=label.layer or tensor.layer)
            alive.append(replace(tensor, role=label.role))
        return alive

    def _segments(self, kept: np.ndarray) -> tuple[tuple[ProgramSegment, ...], tuple[str, ...]]:
        segments: list[ProgramSegment] = []
        owners = [
            ("", "")
            if each.opcode in _IDLE
            else (self._layers.of(each)[0], self._kinds.of(each)[0])
            for each in self._live.points
        ]
        for number, point in enumerate(kept.tolist()):
            layer, kind = owners[point]
            is_new = not segments or (segments[-1].layer, segments[-1].kind) != (layer, kind)
            if is_new and not (segments and self._live.points[point].opcode in _IDLE):
                segments.append(ProgramSegment(number, layer, kind))
        again = dict.fromkeys(layer for layer, kind in owners if kind == "recomputation" and layer)
        return tuple(segments), tuple(again)


def _fullest(curve: np.ndarray, most: int) -> np.ndarray:
    """Returns the points to keep: all, or the one with most bytes of every few neighbours."""
    width = -(-len(curve) // most)
    if width == 1:
        return np.arange(len(curve))
    padded = np.pad(curve, (0, -len(curve) % width), constant_values=-1).reshape(-1, width)
    return padded.argmax(axis=1) + np.arange(len(padded)) * width


def _added_up(alive: Sequence[LiveBuffer]) -> tuple[LiveBuffer, ...]:
    """Returns the tensors by size; of smaller ones, sums by layer and role."""
    alive = largest(alive)
    sums: dict[tuple[str, str], list[LiveBuffer]] = {}
    for each in alive[MOST_TENSORS:]:
        sums.setdefault((each.layer, each.role), []).append(each)
    return alive[:MOST_TENSORS] + tuple(_sum(*key, tensors) for key, tensors in sums.items())


def _sum(layer: str, role: str, tensors: Sequence[LiveBuffer]) -> LiveBuffer:
    if len(tensors) == 1:
        return tensors[0]
    nbytes, inferred = sum(each.nbytes for each in tensors), any(e.inferred for e in tensors)
    return LiveBuffer(
        f"{len(tensors)} smaller tensors", nbytes, layer, "", inferred=inferred, role=role
    )
