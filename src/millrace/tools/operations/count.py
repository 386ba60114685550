"""The operations of a program, each with its FLOPs, its bytes and the times that it runs.

    entry                        once
    while, 4 iterations        its body 4 times
    while of unknown length  its body as if once more
    conditional                the branch with the most FLOPs

An operation reads its operands and writes its result. One that takes a part of an array, or
replaces one in place, reads and writes that part. What is inside a fusion stays in registers and
caches, so a fusion moves what comes in and what goes out.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from millrace.run.memory.hlo_proto import Instruction, Module, trip_count
from millrace.tools.operations.flops import FlopCounter
from millrace.tools.operations.shapes import nbytes, result_bytes

_CALLS = ("while", "call", "conditional", "async-start")


@dataclass(frozen=True, slots=True)
class CountedOperation:
    """One operation that the program runs."""

    instruction: Instruction
    times: int  # that it runs in a call of the program
    nbytes: int  # read and written, each time
    # Of each time, by the operation that they come from: a fusion has those of several.
    flops: tuple[tuple[Instruction, float], ...]


class OperationCounter:
    """Counts the operations of a module."""

    def __init__(self, module: Module):
        self._module = module
        self._flops, self._traffic = FlopCounter(module), TrafficCounter(module)
        self.unknown_loops = 0  # loops whose number of iterations is not known

    def operations(self) -> list[CountedOperation]:
        """Returns all operations that the program runs, in the order of its computations."""
        self.unknown_loops = 0
        return list(self._computation(self._module.entry, 1))

    def _computation(self, number: int, times: int) -> Iterator[CountedOperation]:
        computation = self._module.computations[number]
        for each in computation.instructions:
            if each.opcode in _CALLS:
                yield from self._called(each, times)
            elif each.opcode not in WITHOUT_WORK:
                yield CountedOperation(each, times, self._traffic.of(each), self._parts(each))

    def _called(self, caller: Instruction, times: int) -> Iterator[CountedOperation]:
        if caller.opcode == "conditional":
            branches = [list(self._computation(each, times)) for each in caller.called]
            yield from max(branches, key=_flops_of, default=[])
            return
        if caller.opcode == "while":
            count = trip_count(caller, self._module)
            self.unknown_loops += count is None
            times *= 1 if count is None else count
        for number in caller.called:
            yield from self._computation(number, times)

    def _parts(self, instruction: Instruction) -> tuple[tuple[Instruction, float], ...]:
        if instruction.opcode != "fusion":
            flops = self._flops.of(instruction)
            return ((instruction, flops),) if flops else ()
        return tuple(
            part
            for number in instruction.called
            for inner in self._module.computations[number].instructions
            for part in self._parts(inner)
        )


def _flops_of(operations: list[CountedOperation]) -> float:
    return sum(each.times * flops for each in operations for _, flops in each.flops)


# They name values that are there, or run other operations, which are counted for themselves.
_WITHOUT_WORK = """
    add-dependency after-all async-done bitcast call conditional constant get-dimension-size
    get-tuple-element opt-barrier parameter partition-id replica-id tuple while
"""
WITHOUT_WORK = frozenset(_WITHOUT_WORK.split())
_TAKES_PART = ("dynamic-slice", "gather", "slice")


class TrafficCounter:
    """Counts the bytes that a module's operations read and write."""

    def __init__(self, module: Module):
        self._module = module
        self._instructions = module.instructions

    def of(self, instruction: Instruction) -> int:
        """Returns the bytes that an operation reads and writes."""
        opcode = instruction.opcode
        if opcode in WITHOUT_WORK or opcode.endswith("-done"):
            return 0
        if opcode == "fusion":
            return self._fusion(instruction)
        if opcode in _TAKES_PART:
            return 2 * nbytes(instruction.shape)
        if opcode == "dynamic-update-slice":
            return 2 * result_bytes(self._instructions[instruction.operands[1]])
        if opcode == "scatter":
            updates = self._instructions[instruction.operands[-1]]
            indices = self._instructions[instruction.operands[-2]]
            return 3 * result_bytes(updates) + result_bytes(indices)
        operands = (self._instructions[number] for number in instruction.operands)
        return sum(map(result_bytes, operands)) + result_bytes(instruction)

    def _fusion(self, instruction: Instruction) -> int:
        body = self._module.computations[instruction.called[0]].instructions
        users: dict[int, list[Instruction]] = {}
        for inner in body:
            for operand in inner.operands:
                users.setdefault(operand, []).append(inner)
        read = sum(
            self._read(inner, users.get(inner.number, ()))
            for inner in body
            if inner.opcode == "parameter"
        )
        root = self._instructions[self._module.computations[instruction.called[0]].root]
        elements = root.operands if root.opcode == "tuple" else (root.number,)
        return read + sum(self._written(self._instructions[each]) for each in elements)

    def _read(self, parameter: Instruction, users: Iterable[Instruction]) -> int:
        """Returns the bytes of a parameter that its users within the fusion read."""
        read = 0
        for user in users:
            is_first = user.operands[0] == parameter.number
            if is_first and user.opcode in _TAKES_PART:
                read += nbytes(user.shape)
            elif not (is_first and user.opcode == "dynamic-update-slice"):
                return result_bytes(parameter)
        return min(read, result_bytes(parameter))

    def _written(self, result: Instruction) -> int:
        if result.opcode == "bitcast" and result.operands:
            return self._written(self._instructions[result.operands[0]])
        if result.opcode == "dynamic-update-slice":
            return result_bytes(self._instructions[result.operands[1]])
        return result_bytes(result)
