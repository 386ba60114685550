"""Decoders of XLA's two descriptions of an executable: its program, and its buffers.

No small package has their definitions, so the few fields in use are named here by their numbers,
from XLA's `hlo.proto`:

    HloModuleProto           1 name, 3 computations, 6 entry, 7 schedule
    HloInstructionProto      1 name, 2 opcode, 3 shape, 7 metadata, 9 parameter, 13 tuple index,
                             35 id, 36 operands, 38 called computations
    BufferAssignmentProto    1 logical buffers, 3 allocations

A test decodes a known program, and so finds a change of these numbers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Fields = dict[int, list[Any]]  # of a message, by number: ints and bytes

# Of `xla.PrimitiveType`, as XLA writes them.
_TYPES = {1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64"}
_TYPES |= {10: "f16", 11: "f32", 12: "f64", 15: "c64", 16: "bf16", 18: "c128"}


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


@dataclass(frozen=True, slots=True)
class Computation:
    """A function of a module: its entry, a loop's body, what a fusion computes."""

    number: int
    root: int
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Module:
    """A compiled program."""

    name: str
    entry: int
    computations: dict[int, Computation]
    schedule: dict[int, tuple[int, ...]]  # instructions in order, by computation


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
        tag, position = _varint(data, position)
        kind = tag & 7
        if kind == 0:
            value, position = _varint(data, position)
        elif kind == 2:
            length, position = _varint(data, position)
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


def _numbers(fields: Fields, number: int) -> Iterator[int]:
    """Yields repeated numbers, which are fields of their own or packed into one."""
    for value in fields.get(number, ()):
        if isinstance(value, int):
            yield value
            continue
        position = 0
        while position < len(value):
            item, position = _varint(value, position)
            yield item


def _last(fields: Fields, number: int, default: int | bytes = 0) -> Any:
    return fields.get(number, (default,))[-1]


def _text(fields: Fields, number: int) -> str:
    return _last(fields, number, b"").decode("utf-8", "replace")
