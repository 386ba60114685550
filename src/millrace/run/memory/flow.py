"""The flow of buffers through a program: which buffers each of its values can be.

An operation with a buffer of XLA creates a value. All others only pass buffers on: tuples and their
elements, arguments and results of calls, values that a loop carries between iterations.
"""

from collections import defaultdict

from millrace.run.memory.hlo_proto import BufferAssignment, Instruction, Module

TupleIndex = tuple[int, ...]  # into nested tuples; () is the value itself
ValueBuffers = dict[TupleIndex, frozenset[int]]


def points_to(module: Module, assignment: BufferAssignment) -> dict[int, ValueBuffers]:
    """Returns the buffers of each instruction, by index into its result."""
    created: dict[int, ValueBuffers] = {}
    for buffer in assignment.buffers.values():
        own = created.setdefault(buffer.instruction, {})
        own[buffer.index] = own.get(buffer.index, frozenset()) | {buffer.number}
    values: dict[int, ValueBuffers] = {
        instruction.number: dict(created.get(instruction.number, {}))
        for number in module.schedule
        for instruction in module.computations[number].instructions
    }
    callers, elements = _callers(module), _Elements(values)
    order = [  # a computation comes before those that it calls; parameters wait for callers
        (number, instruction)
        for number in module.schedule
        for instruction in module.computations[number].instructions
    ]
    changed = True
    while changed:  # carried values return to the begin of their loop: two or three passes
        changed = False
        for computation, instruction in order:
            flows = _flows(instruction, module, callers.get(computation, []), elements)
            own = created.get(instruction.number, {})
            reached = values[instruction.number]
            for index, buffers in flows.items():
                if index in own:
                    continue
                before = reached.get(index, frozenset())
                if not buffers <= before:
                    reached[index] = before | buffers
                    changed = True
    return values


class _Elements:
    """The elements of tuples: one of 10,000 parameters is taken apart 10,000 times."""

    def __init__(self, values: dict[int, ValueBuffers]):
        self.values = values
        # Of each value, how many indices it had, and these by their element.
        self._known: dict[int, tuple[int, dict[int, list[TupleIndex]]]] = {}

    def of(self, number: int, element: int) -> ValueBuffers:
        """Returns the buffers of one element of a value, whose indices only get more."""
        value = self.values[number]
        count, indices = self._known.get(number, (-1, {}))
        if count != len(value):
            indices = defaultdict(list)
            for index in value:
                if index:
                    indices[index[0]].append(index)
            self._known[number] = len(value), indices
        return {index[1:]: value[index] for index in indices.get(element, ())}


def _callers(module: Module) -> dict[int, list[tuple[Instruction, int]]]:
    """Returns the callers of each computation, with its index among their computations."""
    callers: dict[int, list[tuple[Instruction, int]]] = {}
    for number in module.schedule:
        for instruction in module.computations[number].instructions:
            for index, called in enumerate(instruction.called):
                callers.setdefault(called, []).append((instruction, index))
    return callers


def _flows(
    instruction: Instruction,
    module: Module,
    callers: list[tuple[Instruction, int]],
    elements: "_Elements",
) -> ValueBuffers:
    """Returns the buffers that reach an instruction from others."""
    opcode, operands = instruction.opcode, instruction.operands
    values = elements.values
    if opcode == "parameter":
        return _merged([_argument(caller, index, instruction, values) for caller, index in callers])
    if opcode == "tuple":
        return {
            (element, *index): buffers
            for element, operand in enumerate(operands)
            for index, buffers in values[operand].items()
        }
    if opcode == "get-tuple-element":
        return elements.of(operands[0], instruction.tuple_index)
    called = [module.computations[c].root for c in instruction.called if c in module.schedule]
    if opcode == "while":  # calls body and condition; the results of the body are carried
        body = module.computations[instruction.called[0]].root
        return _merged([values[operands[0]], values[body]])
    if opcode in ("call", "conditional"):
        return _merged([values[root] for root in called])
    if opcode in ("copy-done", "async-done", "async-update"):
        return elements.of(operands[0], 0) | elements.of(operands[0], 1)
    # A bitcast, a barrier or an operation in place: the result has the buffers of the operands.
    return _merged([values[operand] for operand in operands])


def _argument(
    caller: Instruction, called_index: int, parameter: Instruction, values: dict[int, ValueBuffers]
) -> ValueBuffers:
    if caller.opcode == "conditional":
        return values[caller.operands[called_index + 1]]
    if caller.opcode == "while":
        return _merged([values[caller.operands[0]], values[caller.number]])
    if parameter.parameter < len(caller.operands):
        return values[caller.operands[parameter.parameter]]
    return {}


def _merged(sources: list[ValueBuffers]) -> ValueBuffers:
    merged: ValueBuffers = {}
    for values in sources:
        for index, buffers in values.items():
            merged[index] = merged.get(index, frozenset()) | buffers
    return merged
