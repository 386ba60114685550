"""The layers of operations, also of those whose names XLA has not kept.

Keras opens a name scope for each layer, so most operations carry their layer's name. Copies and
changes of layout do not, and on CPU they are often alive at the peak. Such an operation gets the
layer of the nearest named one: within its fusion, else among its operands and users.
"""

import re
from collections import deque
from collections.abc import Callable, Collection, Mapping

from millrace.memory.hlo_proto import Instruction, Module

_NEAREST = 2_000  # operations that are searched

_WRAPPED = re.compile(r"^[\w-]+\((.*)\)$")


def layer_finder(
    names: Collection[str], renames: Mapping[str, str] | None = None
) -> Callable[[str], str]:
    """Returns a function that finds layers in the names of operations.

    Args:
        names: of all layers of a model, inner ones included.
        renames: names of layers by those in the program, which was compiled for an equal model.
    """
    renames = renames or {}
    all_names = {*names, *renames}

    def layer_of(op_name: str) -> str:
        """Returns `encoder/dense` of `jit(run)/transpose(jvp(encoder))/dense/dot_general`."""
        for each in op_name.split(";"):  # XLA joins the names of what it fuses
            path = [name for name in map(_unwrapped, each.strip().split("/")) if name in all_names]
            if path:
                return "/".join(dict.fromkeys(renames.get(name, name) for name in path))
        return ""

    return layer_of


def _unwrapped(name: str) -> str:
    while match := _WRAPPED.match(name):
        name = match[1]
    return name.rstrip(")")


class LayerOwners:
    """Finds the layers of a program's operations."""

    def __init__(self, module: Module, layer_of: Callable[[str], str]):
        self._module = module
        self._layer_of = layer_of
        self._instructions: dict[int, Instruction] = {}
        self._users: dict[int, list[int]] = {}
        for computation in module.computations.values():
            for instruction in computation.instructions:
                self._instructions[instruction.number] = instruction
                for operand in instruction.operands:
                    self._users.setdefault(operand, []).append(instruction.number)

    def of(self, instruction: Instruction) -> tuple[str, bool]:
        """Returns the layer, empty if there is none, and whether it is a neighbour's."""
        if layer := self._layer_of(instruction.op_name):
            return layer, False
        if layer := self._in_fusion(instruction):
            return layer, True
        return self._nearest(instruction), True

    def _in_fusion(self, instruction: Instruction) -> str:
        if instruction.opcode != "fusion":
            return ""
        for number in instruction.called:
            for inner in self._module.computations[number].instructions:
                if layer := self._layer_of(inner.op_name):
                    return layer
        return ""

    def _nearest(self, instruction: Instruction) -> str:
        seen, queue = {instruction.number}, deque([instruction.number])
        while queue and len(seen) < _NEAREST:
            number = queue.popleft()
            for other in (*self._instructions[number].operands, *self._users.get(number, ())):
                if other in seen:
                    continue
                seen.add(other)
                queue.append(other)
                neighbour = self._instructions[other]
                if layer := self._layer_of(neighbour.op_name) or self._in_fusion(neighbour):
                    return layer
        return ""
