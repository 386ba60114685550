"""The roles of buffers: what each piece of memory is used for.

an argument of the program             as its label says
carried by a loop                      one role with the value before the loop, and after it
a copy, a slice, another layout        that of the original
a result of an operation               forward: activations, backward: gradients, ...
of an operation that has no name       as its nearest neighbour
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from millrace.run.memory.flow import ValueBuffers
from millrace.run.memory.hlo_proto import Instruction, Module
from millrace.run.memory.liveness import Liveness
from millrace.run.memory.owners import NearestNames

_ROLE_OF = {  # the pass of an operation -> the role of its result
    "forward": "activations",
    "recomputation": "activations",
    "backward": "gradients",
    "accumulation": "accumulators",
    "update": "optimizer",
}
_PASSED_ON = {"parameter", "while", "conditional", "call", "tuple", "get-tuple-element"}
_FILLED = {"constant", "broadcast", "iota"}
_MOVED = {"copy", "transpose", "bitcast", "reshape", "convert", "slice", "dynamic-slice"}
_MOVED |= {"copy-start", "copy-done", "reverse", "pad"}


class BufferRoles:
    """The roles of the buffers of a program."""

    def __init__(
        self,
        module: Module,
        live: Liveness,
        kinds: NearestNames,
        argument_role: Callable[[int], str],
    ):
        """Puts the buffers that loops and branches carry into groups.

        Args:
            module: the program.
            live: its buffers.
            kinds: the passes of its operations.
            argument_role: returns the role of an entry parameter.
        """
        self._module, self._live, self._kinds = module, live, kinds
        self._values = live.values
        self._groups = _groups(live.assignment.buffers, list(self._links()))
        self._members: dict[int, list[int]] = {}
        for buffer, group in self._groups.items():
            self._members.setdefault(group, []).append(buffer)
        self._position = {each.number: point for point, each in enumerate(live.points)}
        self._roles: dict[int, str | None] = {}  # by group; None while it is being found
        entry = module.computations[module.entry].instructions
        arguments = {each.number for each in entry if each.opcode == "parameter"}
        for allocation in live.assignment.allocations:
            if allocation.is_parameter:
                role = argument_role(allocation.parameter)
                for buffer, _, _ in allocation.assigned:
                    if live.assignment.buffers[buffer].instruction in arguments:
                        self._roles[self._groups[buffer]] = role

    def of(self, buffer: int) -> str:
        """Returns one of `program_memory.ROLES`; "other" also where nothing tells the role."""
        return self._role(buffer) or "other"

    def maker(self, buffer: int) -> Instruction:
        """Returns the operation that computes a buffer, also where a loop only carries it."""
        made = self._live.makers[buffer]
        if made.opcode not in _PASSED_ON:
            return made
        makers = self._makers(self._groups[buffer])
        computed = [each for each in makers if not self._is_filled(each)]
        return next(iter(computed or makers), made)

    def _makers(self, group: int) -> list[Instruction]:
        """Returns the operations whose results a group has, in the order of the program."""
        makers = [
            self._live.makers[each]
            for each in self._members[group]
            if each in self._live.makers and self._live.makers[each].opcode not in _PASSED_ON
        ]
        return sorted(makers, key=lambda each: self._position.get(each.number, 0))

    def _links(self) -> Iterator[tuple[int, int]]:
        """Yields pairs of buffers that belong together."""
        for computation in self._module.schedule:
            for each in self._module.computations[computation].instructions:
                if each.opcode == "while":
                    others = [each.operands[0]]
                elif each.opcode == "conditional":
                    others = []
                else:
                    continue
                called = [c for c in each.called if c in self._module.schedule]
                others += [self._module.computations[c].root for c in called]
                if each.opcode == "while":
                    others += [
                        inner.number
                        for c in called
                        for inner in self._module.computations[c].instructions
                        if inner.opcode == "parameter"
                    ]
                yield from self._links_of(self._values[each.number], others)

    def _links_of(self, values: ValueBuffers, others: Iterable[int]) -> Iterator[tuple[int, int]]:
        for other in others:
            for index, buffers in self._values[other].items():
                if index in values:  # the root of a condition is a single number
                    yield from itertools.pairwise([*values[index], *buffers])

    def _role(self, buffer: int) -> str:
        group = self._groups[buffer]
        if group in self._roles:
            return self._roles[group] or ""
        self._roles[group] = None  # a copy of itself, in a loop, tells nothing
        self._roles[group] = role = self._find(group)
        return role

    def _find(self, group: int) -> str:
        makers = self._makers(group)
        computed = [each for each in makers if not self._is_filled(each)]
        named = [_ROLE_OF.get(self._kinds.of(each)[0], "") for each in computed]
        if "accumulators" in named:  # also those that the first gradients are added to
            return "accumulators"
        for each in computed or makers:
            if role := self._of_result(each):
                return role
        return ""

    def _of_result(self, maker: Instruction) -> str:
        if maker.opcode == "constant":
            return "other"
        source = self._source(maker)
        if source is not None and (role := self._role(source)):
            return role
        return _ROLE_OF.get(self._kinds.of(maker)[0], "")

    def _source(self, maker: Instruction) -> int | None:
        """Returns the buffer that an operation only moves; None if it computes anything."""
        if not self._moves(maker):
            return None
        buffers = self._live.assignment.buffers
        sources = [
            buffer
            for operand in maker.operands
            for buffer in self._values[operand].get((), ())
            if buffer in buffers
        ]
        return max(sources, key=lambda each: buffers[each].size, default=None)

    def _moves(self, maker: Instruction) -> bool:
        if maker.opcode != "fusion":
            return maker.opcode in _MOVED
        return any(each.opcode in _MOVED for each in self._inside(maker)) and all(
            each.opcode in _MOVED or each.opcode in ("parameter", "constant") or _is_small(each)
            for each in self._inside(maker)
        )

    def _is_filled(self, maker: Instruction) -> bool:
        """Whether an operation writes the same number everywhere, as at the begin of a loop."""
        if maker.opcode == "fusion":
            return all(
                each.opcode in _FILLED
                or each.opcode in ("bitcast", "reshape", "copy", "convert")
                or _is_small(each)
                for each in self._inside(maker)
            )
        if maker.opcode in ("copy", "bitcast", "reshape"):
            makers = [
                self._live.makers[buffer]
                for buffer in self._values[maker.operands[0]].get((), ())
                if buffer in self._live.makers
            ]
            return bool(makers) and all(
                each.number != maker.number and self._is_filled(each) for each in makers
            )
        return maker.opcode in _FILLED

    def _inside(self, fusion: Instruction) -> list[Instruction]:
        return [
            each
            for number in fusion.called
            if number in self._module.computations
            for each in self._module.computations[number].instructions
        ]


def _is_small(instruction: Instruction) -> bool:
    """Whether the result is one number, such as an index."""
    return instruction.shape.endswith("[]")


def _groups(buffers: Collection[int], links: Collection[tuple[int, int]]) -> dict[int, int]:
    """Returns the group of each buffer: buffers that a chain of links connects are in one."""
    position = {buffer: number for number, buffer in enumerate(buffers)}
    ends = [[position[each] for each in side] for side in zip(*links, strict=True)] or [[], []]
    matrix = csr_array((np.ones(len(links), bool), ends), shape=(len(position), len(position)))
    labels = connected_components(matrix, directed=False)[1].tolist()
    return dict(zip(buffers, labels, strict=True))
