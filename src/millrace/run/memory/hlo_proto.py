"""Decoders of XLA's two descriptions of an executable: its program, and its buffers.

No small package has their definitions, so the few fields in use are named here by their numbers,
from XLA's `hlo.proto`:

    HloModuleProto           1 name, 3 computations, 6 entry, 7 schedule
    HloInstructionProto      1 name, 2 opcode, 3 shape, 7 metadata, 9 parameter, 13 tuple index,
                             15 window, 16 dimensions of a convolution, 28 target of a custom call,
                             30 dimensions of a dot, 32 lengths of an FFT, 35 id, 36 operands,
                             38 called computations, 43 configuration of the backend, 50 groups
    BufferAssignmentProto    1 logical buffers, 3 allocations

A test decodes a known program, and so finds a change of these numbers.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

Fields = dict[int, list[Any]]  # of a message, by number: ints and bytes

# Of `xla.PrimitiveType`, as XLA writes them.
_TYPES = {1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64"}
_TYPES |= {10: "f16", 11: "f32", 12: "f64", 15: "c64", 16: "bf16", 18: "c128"}
_TYPES |= {19: "f8e5m2", 20: "f8e4m3fn", 21: "s4", 22: "u4", 23: "f8e4m3b11fnuz"}
_TYPES |= {24: "f8e5m2fnuz", 25: "f8e4m3fnuz", 28: "f8e4m3", 29: "f8e3m4"}


@dataclass(frozen=True, slots=True)
class Instruction:
    """One operation of a program."""

    number: int  # unique in the module
    name: str
    opcode: str
    shape: str  # such as `f32[32,64]`; empty for a tuple
    op_name: str  # the JAX operation it comes from, within its name scopes; empty if none
    parameter: int
    tuple_index: int
    operands: tuple[int, ...]
    called: tuple[int, ...]  # computations
    data: bytes = b""  # the whole message, for those who need a field that is not here


@dataclass(frozen=True, slots=True)
class KernelAxis:
    """One spatial dimension of the window that a convolution or a pooling moves."""

    size: int
    stride: int
    padding_low: int
    dilation: int
    base_dilation: int


@dataclass(frozen=True, slots=True)
class ConvolutionDimensions:
    """Which dimensions of input, kernel and output a convolution goes over."""

    input_batch: int
    input_spatial: tuple[int, ...]
    kernel_input_feature: int
    output_feature: int
    output_spatial: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Computation:
    """A function of a module: its entry, a loop's body, what a fusion computes."""

    number: int
    root: int
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True)
class Module:
    """A compiled program."""

    name: str
    entry: int
    computations: dict[int, Computation]
    schedule: dict[int, tuple[int, ...]]  # instructions in order, by computation

    @cached_property
    def instructions(self) -> dict[int, Instruction]:
        """The instructions of all computations, by number."""
        computations = self.computations.values()
        return {each.number: each for part in computations for each in part.instructions}


@dataclass(frozen=True, slots=True)
class Buffer:
    """A value, or a part of a tuple, that needs memory."""

    number: int
    size: int
    instruction: int  # that makes it
    index: tuple[int, ...]  # its place in the instruction's tuple


@dataclass(frozen=True, slots=True)
class Allocation:
    """A piece of memory, and the buffers that lie in it: (buffer, offset, bytes)."""

    number: int
    size: int
    is_thread_local: bool
    is_parameter: bool
    parameter: int
    is_result: bool
    is_constant: bool
    assigned: tuple[tuple[int, int, int], ...]

    @property
    def is_temporary(self) -> bool:
        """Whether it is shared by values that live one after another."""
        fixed = self.is_parameter or self.is_result or self.is_constant
        return not (fixed or self.is_thread_local)


@dataclass(frozen=True, slots=True)
class BufferAssignment:
    """All memory of a program."""

    buffers: dict[int, Buffer]
    allocations: tuple[Allocation, ...]


def read_module(data: bytes) -> Module:
    """Decodes an `HloModuleProto`."""
    fields = _fields(data)
    computations = [_computation(each) for each in fields.get(3, ())]
    schedule: dict[int, tuple[int, ...]] = {}
    for schedules in fields.get(7, ()):
        for entry in _fields(schedules).get(1, ()):
            pair = _fields(entry)
            order = _fields(_last(pair, 2, b""))
            schedule[_last(pair, 1)] = tuple(_numbers(order, 1))
    return Module(
        _text(fields, 1), _last(fields, 6), {each.number: each for each in computations}, schedule
    )


def read_buffers(data: bytes) -> BufferAssignment:
    """Decodes a `BufferAssignmentProto`."""
    fields = _fields(data)
    buffers = [_buffer(each) for each in fields.get(1, ())]
    allocations = tuple(_allocation(each) for each in fields.get(3, ()))
    return BufferAssignment({each.number: each for each in buffers}, allocations)


def element_shapes(instruction: Instruction) -> tuple[str, ...]:
    """Returns the shape of a result; of a tuple, those of its elements and theirs."""
    if instruction.shape:
        return (instruction.shape,)
    return tuple(_leaves(_last(_fields(instruction.data), 3, b"")))


def _leaves(data: bytes) -> Iterator[str]:
    if shape := _shape(data):
        yield shape
    for element in _fields(data).get(4, ()):
        yield from _leaves(element)


def contracted_dimensions(instruction: Instruction) -> tuple[int, ...]:
    """Returns the dimensions of its first operand that a dot sums over."""
    dimensions = _fields(_last(_fields(instruction.data), 30, b""))
    return tuple(_numbers(dimensions, 1))


def kernel_axes(instruction: Instruction) -> tuple[KernelAxis, ...]:
    """Returns the window of a convolution or a pooling."""
    window = _fields(_last(_fields(instruction.data), 15, b""))
    return tuple(
        KernelAxis(
            size=_signed(_last(each, 1)),
            stride=_last(each, 2, 1) or 1,
            padding_low=_signed(_last(each, 3)),
            dilation=_last(each, 5, 1) or 1,
            base_dilation=_last(each, 6, 1) or 1,
        )
        for each in map(_fields, window.get(1, ()))
    )


def convolution_of(instruction: Instruction) -> tuple[ConvolutionDimensions, int]:
    """Returns the dimensions of a convolution, and its number of groups of batches."""
    fields = _fields(instruction.data)
    numbers = _fields(_last(fields, 16, b""))
    dimensions = ConvolutionDimensions(
        input_batch=_last(numbers, 7),
        input_spatial=tuple(_numbers(numbers, 11)),
        kernel_input_feature=_last(numbers, 3),
        output_feature=_last(numbers, 10),
        output_spatial=tuple(_numbers(numbers, 12)),
    )
    return dimensions, _last(fields, 58, 1) or 1


def transform_lengths(instruction: Instruction) -> tuple[int, ...]:
    """Returns the lengths of an FFT."""
    return tuple(_numbers(_fields(instruction.data), 32))


def backend_config(instruction: Instruction) -> dict[str, Any]:
    """Returns what the compiler's backend has noted; empty if that is nothing, or not JSON."""
    try:
        config = json.loads(_text(_fields(instruction.data), 43) or "{}")
    except ValueError:
        return {}
    return cast(dict[str, Any], config) if isinstance(config, dict) else {}


def trip_count(instruction: Instruction, module: Module) -> int | None:
    """Returns the iterations of a `while`; None where the compiler does not know them."""
    count = backend_config(instruction).get("known_trip_count", {}).get("n")
    if count is not None:
        return int(count)
    # The compiler for TPU notes none, and leaves the comparison with the number as JAX made it.
    for number in instruction.called:
        test = module.instructions[module.computations[number].root]
        if test.opcode == "compare" and _text(_fields(test.data), 63) == "LT":
            counter, limit = (module.instructions[each] for each in test.operands)
            is_from_zero = _constant(_begin(instruction, counter, module)) == 0
            return _constant(limit) if is_from_zero else None
    return None


def _begin(loop: Instruction, counter: Instruction, module: Module) -> Instruction:
    """Returns what a part of a loop's state is before the loop; the loop if that is not known."""
    state = module.instructions[loop.operands[0]]
    if counter.opcode != "get-tuple-element" or state.opcode != "tuple":
        return loop
    value = module.instructions[state.operands[counter.tuple_index]]
    while value.opcode in ("copy", "bitcast"):
        value = module.instructions[value.operands[0]]
    return value


def _constant(instruction: Instruction) -> int | None:
    """Returns the value of a constant whole number; None for anything else."""
    literal = _fields(_last(_fields(instruction.data), 8, b""))
    values = [*_numbers(literal, 4), *_numbers(literal, 5)]
    return _signed(values[0]) if len(values) == 1 else None


def custom_call_target(instruction: Instruction) -> str:
    """Returns the name of the function that a custom call calls."""
    return _text(_fields(instruction.data), 28)


def _computation(data: bytes) -> Computation:
    fields = _fields(data)
    instructions = tuple(_instruction(each) for each in fields.get(2, ()))
    return Computation(_last(fields, 5), _last(fields, 6), instructions)


def _instruction(data: bytes) -> Instruction:
    fields = _fields(data)
    return Instruction(
        number=_last(fields, 35),
        name=_text(fields, 1),
        opcode=_text(fields, 2),
        shape=_shape(_last(fields, 3, b"")),
        op_name=_text(_fields(_last(fields, 7, b"")), 2),
        parameter=_last(fields, 9),
        tuple_index=_last(fields, 13),
        operands=tuple(_numbers(fields, 36)),
        called=tuple(_numbers(fields, 38)),
        data=data,
    )


def _shape(data: bytes) -> str:
    fields = _fields(data)
    name = _TYPES.get(_last(fields, 2))
    return f"{name}[{','.join(map(str, _numbers(fields, 3)))}]" if name else ""


def _buffer(data: bytes) -> Buffer:
    fields = _fields(data)
    location = _fields(_last(fields, 3, b""))
    index = tuple(_numbers(location, 3))
    return Buffer(_last(fields, 1), _last(fields, 2), _last(location, 4), index)


def _allocation(data: bytes) -> Allocation:
    fields = _fields(data)
    assigned = [
        (_last(each, 1), _last(each, 2), _last(each, 3)) for each in map(_fields, fields.get(9, ()))
    ]
    return Allocation(
        number=_last(fields, 1),
        size=_last(fields, 2),
        is_thread_local=bool(_last(fields, 3)),
        is_parameter=bool(_last(fields, 5)),
        parameter=_last(fields, 6),
        is_result=bool(_last(fields, 7)),
        is_constant=bool(_last(fields, 12)),
        assigned=tuple(assigned),
    )


def _fields(data: bytes) -> Fields:
    """Returns the values of a message by the numbers of its fields: ints and bytes."""
    fields: Fields = {}
    position, end = 0, len(data)
    while position < end:
        # Nearly all numbers are one byte, and a large program has a million of them.
        tag, position = data[position], position + 1
        if tag > 127:
            tag, position = _varint(data, position - 1)
        kind = tag & 7
        if kind in (0, 2):
            value, position = data[position], position + 1
            if value > 127:
                value, position = _varint(data, position - 1)
            if kind == 2:
                length = value
                value, position = data[position : position + length], position + length
        elif kind in (1, 5):  # 64 and 32 bits
            width = 8 if kind == 1 else 4
            value, position = data[position : position + width], position + width
        else:
            raise ValueError(f"Field {tag >> 3} of a protocol buffer has wire type {kind}.")
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _numbers(fields: Fields, number: int) -> Iterator[int]:
    """Yields repeated numbers, which are fields of their own or packed into one."""
    for value in fields.get(number, ()):
        if isinstance(value, int):
            yield value
            continue
        if value.isascii():  # each number is one byte
            yield from value
            continue
        position = 0
        while position < len(value):
            item, position = _varint(value, position)
            yield item


def _last(fields: Fields, number: int, default: int | bytes = 0) -> Any:
    return fields.get(number, (default,))[-1]


def _text(fields: Fields, number: int) -> str:
    return _last(fields, number, b"").decode("utf-8", "replace")
