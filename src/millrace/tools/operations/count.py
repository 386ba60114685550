"""The operations of a program, each with its FLOPs, its bytes and the times that it runs.

entry                        once
while, 4 iterations        its body 4 times
while of unknown length  its body as if once more
conditional                the branch with the most FLOPs
"""

from collections.abc import Iterator
from dataclasses import dataclass

from millrace.run.memory.hlo_proto import Instruction, Module, trip_count
from millrace.tools.operations.flops import FlopCounter
from millrace.tools.operations.traffic import WITHOUT_WORK, TrafficCounter

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
            count = trip_count(caller)
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
