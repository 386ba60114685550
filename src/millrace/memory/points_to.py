"""Which buffers each value of a program can be: from where they are made, to where they are read.

A value starts where XLA has a buffer for it. Everything else only passes buffers on: tuples and
their elements, arguments and results of calls, what a loop carries from turn to turn.
"""

from millrace.memory.hlo_proto import BufferAssignment, Instruction, Module

Index = tuple[int, ...]  # a place in nested tuples; () is the value itself
ValueBuffers = dict[Index, frozenset[int]]  # buffers by place


def points_to(module: Module, assignment: BufferAssignment) -> dict[int, ValueBuffers]:
    """Returns the buffers of each instruction, by place in its result."""
    made: dict[int, ValueBuffers] = {}
    for buffer in assignment.buffers.values():
        at = made.setdefault(buffer.instruction, {})
        at[buffer.index] = at.get(buffer.index, frozenset()) | {buffer.number}
    values: dict[int, ValueBuffers] = {
        instruction.number: dict(made.get(instruction.number, {}))
        for number in module.schedule
        for instruction in module.computations[number].instructions
    }
    callers = _callers(module)
    order = [  # a computation comes before those that it calls; parameters wait for callers
        (number, instruction)
        for number in module.schedule
        for instruction in module.computations[number].instructions
    ]
    changed = True
    while changed:  # what a loop carries comes round: two or three times
        changed = False
        for computation, instruction in order:
            flows = _flows(instruction, module, callers.get(computation, []), values)
            own = made.get(instruction.number, {})
            known = values[instruction.number]
            for index, buffers in flows.items():
                if index in own:
                    continue
                before = known.get(index, frozenset())
                if not buffers <= before:
                    known[index] = before | buffers
                    changed = True
    return values


def _callers(module: Module) -> dict[int, list[tuple[Instruction, int]]]:
    """Returns who calls each computation, and as which of its called computations."""
    found: dict[int, list[tuple[Instruction, int]]] = {}
    for number in module.schedule:
        for instruction in module.computations[number].instructions:
            for place, called in enumerate(instruction.called):
                found.setdefault(called, []).append((instruction, place))
    return found


def _flows(
    instruction: Instruction,
    module: Module,
    callers: list[tuple[Instruction, int]],
    values: dict[int, ValueBuffers],
) -> ValueBuffers:
    """Returns the buffers that reach an instruction from others."""
    opcode, operands = instruction.opcode, instruction.operands
    if opcode == "parameter":
        return _merged([_argument(caller, place, instruction, values) for caller, place in callers])
    if opcode == "tuple":
        return {
            (place, *index): buffers
            for place, operand in enumerate(operands)
            for index, buffers in values[operand].items()
        }
    if opcode == "get-tuple-element":
        place = instruction.tuple_index
        found = values[operands[0]].items()
        return {index[1:]: buffers for index, buffers in found if index[:1] == (place,)}
    called = [module.computations[c].root for c in instruction.called if c in module.schedule]
    if opcode == "while":  # body and condition are called; what the body returns goes round
        body = module.computations[instruction.called[0]].root
        return _merged([values[operands[0]], values[body]])
    if opcode in ("call", "conditional"):
        return _merged([values[root] for root in called])
    if opcode in ("copy-done", "async-done", "async-update"):
        found = values[operands[0]].items()
        return {index[1:]: buffers for index, buffers in found if index[:1] == (0,)} | {
            index[1:]: buffers for index, buffers in found if index[:1] == (1,)
        }
    # A bitcast or a barrier, or something in place: what it makes is what it was given.
    return _merged([values[operand] for operand in operands])


def _argument(
    caller: Instruction, place: int, parameter: Instruction, values: dict[int, ValueBuffers]
) -> ValueBuffers:
    if caller.opcode == "conditional":
        return values[caller.operands[place + 1]]
    if caller.opcode == "while":
        return _merged([values[caller.operands[0]], values[caller.number]])
    if parameter.parameter < len(caller.operands):
        return values[caller.operands[parameter.parameter]]
    return {}


def _merged(found: list[ValueBuffers]) -> ValueBuffers:
    merged: ValueBuffers = {}
    for values in found:
        for index, buffers in values.items():
            merged[index] = merged.get(index, frozenset()) | buffers
    return merged
