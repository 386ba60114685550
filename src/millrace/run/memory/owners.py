"""The owners and the passes of operations: the layer and the pass that a name tells.

Keras opens a name scope for each layer, so most operations carry their layer's name. Copies and
changes of layout do not, and on CPU they are often alive at the peak. Such an operation gets the
name of the nearest named one: within its fusion, else among its operands and users.
"""

import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from millrace.programs.steps.scopes import ACCUMULATION
from millrace.run.memory.hlo_proto import Instruction, Module

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
            scopes = (_unwrapped(scope, all_names) for scope in each.strip().split("/"))
            path = [name for name in scopes if name in all_names]
            if path:
                return "/".join(dict.fromkeys(renames.get(name, name) for name in path))
        return ""

    return layer_of


def _unwrapped(scope: str, names: Collection[str]) -> str:
    """Returns `dense` of `transpose(jvp(dense))`; a layer's name may have parentheses, too."""
    while scope not in names and (match := _WRAPPED.match(scope)):
        scope = match[1]
    return scope if scope in names else scope.rstrip(")")


class NearestNames:
    """Finds names for all operations of a program: their own, or those of the nearest ones."""

    def __init__(self, module: Module, name_of: Callable[[str], str]):
        """Goes through the program once.

        Args:
            module: the program.
            name_of: returns the name that the scopes of an operation tell, empty if none.
        """
        name_of = functools.cache(name_of)
        self._module, self._name_of = module, name_of
        self._own: set[int] = set()
        self._names: dict[int, str] = {}  # by the number of the operation
        self._operands: dict[int, tuple[int, ...]] = {}
        self._users: dict[int, list[int]] = {}
        for number, instruction in module.instructions.items():
            self._operands[number] = instruction.operands
            for operand in instruction.operands:
                self._users.setdefault(operand, []).append(number)
            if name := name_of(instruction.op_name):
                self._own.add(number)
                self._names[number] = name
            elif name := self._in_fusion(instruction):
                self._names[number] = name
        self._spread()

    def of(self, instruction: Instruction) -> tuple[str, bool]:
        """Returns the name, empty if there is none, and whether it is another operation's."""
        return self._names.get(instruction.number, ""), instruction.number not in self._own

    def _in_fusion(self, instruction: Instruction) -> str:
        if instruction.opcode != "fusion":
            return ""
        for number in instruction.called:
            for inner in self._module.computations[number].instructions:
                if name := self._name_of(inner.op_name):
                    return name
        return ""

    def _spread(self) -> None:
        """Names all others, from the neighbours of named operations outwards, in linear time."""
        frontier = list(self._names)
        while frontier:
            nameless = dict.fromkeys(
                other
                for number in frontier
                for other in self._neighbours(number)
                if other not in self._names
            )
            named = {
                number: next(self._names[k] for k in self._neighbours(number) if k in self._names)
                for number in nameless
            }
            self._names.update(named)
            frontier = list(named)

    def _neighbours(self, number: int) -> Iterator[int]:
        yield from self._operands[number]
        yield from self._users.get(number, ())


_FORWARD = "jvp("
_PASSES = re.compile(r"transpose\(jvp\(|transpose\(|jvp\(")


def kind_finder(
    layer_of: Callable[[str], str],
    updates: Collection[str],
    default: str = "",
    repeats: bool = False,
) -> Callable[[str], str]:
    """Returns a function that finds the pass in the name of an operation.

    Args:
        layer_of: returns the layer in such a name, empty if there is none.
        updates: name scopes of the update of the weights.
        default: the pass of operations in scopes that tell none.
        repeats: whether forward operations of the program repeat those of another one.
    """

    def kind_of(op_name: str) -> str:
        """Returns a kind of `ProgramSegment`, empty if the name tells none."""
        kinds = (_kind(each.strip().split("/"), updates) for each in op_name.split(";"))
        kind = next(filter(None, kinds), "")  # XLA joins the names of what it fuses
        if not kind and op_name and layer_of(op_name):
            kind = "forward"
        if kind == "forward" and repeats:
            return "recomputation"
        return kind or (default if "/" in op_name else "")

    return kind_of


def _kind(scopes: Sequence[str], updates: Collection[str]) -> str:
    if ACCUMULATION in scopes:
        return "accumulation"
    if any(scope in updates for scope in scopes):
        return "update"
    if "rematted_computation" in scopes:
        return "recomputation"
    # The innermost transformation counts: a forward within a backward is computed again.
    passes = _PASSES.findall("/".join(scopes))
    if not passes:
        return ""
    if passes[-1] != _FORWARD:
        return "backward"
    return "forward" if set(passes) == {_FORWARD} else "recomputation"
