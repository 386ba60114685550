import jax
import jax.numpy as jnp
import pytest

from millrace._compat.jax_executables import (
    argument_bytes,
    buffers_proto,
    kept_arguments,
    module_proto,
    requirement,
)
from millrace._compat.jax_memory import is_out_of_memory
from millrace.run.memory.hlo_proto import _fields, read_buffers, read_module


def known_program(state, batch, unused):
    del unused
    with jax.named_scope("dense"):
        return jnp.sin(state["w"] @ batch), state["w"] + 1


@pytest.fixture(scope="module")
def compiled():
    state = {"b": jnp.ones(3), "w": jnp.ones((8, 4))}
    return jax.jit(known_program, donate_argnums=0).lower(state, jnp.ones((4, 2)), 1.0).compile()


def test_it_reads_what_a_program_computes(compiled):
    module = read_module(module_proto(compiled))
    assert module.name == "jit_known_program"
    entry = module.computations[module.entry]
    assert module.entry in module.schedule
    assert set(module.schedule[module.entry]) == {each.number for each in entry.instructions}
    parameters = {each.parameter: each for each in entry.instructions if each.opcode == "parameter"}
    assert [parameters[k].shape for k in (0, 1)] == ["f32[8,4]", "f32[4,2]"]
    assert parameters[0].op_name == "state['w']"
    (root,) = [each for each in entry.instructions if each.number == entry.root]
    assert root.opcode == "tuple"
    assert len(root.operands) == 2
    inner = [each for c in module.computations.values() for each in c.instructions]
    assert any(each.op_name.endswith("dense/dot_general") for each in inner)
    assert all(c in module.computations for each in inner for c in each.called)


def test_it_reads_where_buffers_lie(compiled):
    assignment = read_buffers(buffers_proto(compiled))
    allocations = [each for each in assignment.allocations if not each.is_thread_local]
    given = {each.parameter: each.size for each in allocations if each.is_parameter}
    assert given == {0: 8 * 4 * 4, 1: 4 * 2 * 4}
    assert any(each.is_parameter and each.is_result for each in allocations)  # it was donated
    known = {each.number for each in read_module(module_proto(compiled)).computations.values()}
    assert known
    for each in allocations:
        for buffer, offset, size in each.assigned:
            assert assignment.buffers[buffer].size == size
            assert 0 <= offset <= offset + size <= each.size


def test_it_knows_which_arguments_were_dropped(compiled):
    names = [jax.tree_util.keystr(path) for path in kept_arguments(compiled)]
    assert names == ["[0]['w']", "[1]"]


def test_the_requirement_counts_donated_memory_once(compiled):
    assert argument_bytes(compiled) == 8 * 4 * 4 + 4 * 2 * 4
    results = 8 * 2 * 4
    assert 0 <= requirement(compiled) - argument_bytes(compiled) - results < 200


@pytest.mark.parametrize(
    ("data", "fields"),
    [
        (b"", {}),
        (b"\x08\x96\x01", {1: [150]}),
        (b"\x12\x02ab\x12\x01c", {2: [b"ab", b"c"]}),
        (b"\x1d\x01\x02\x03\x04\x08\x01", {3: [b"\x01\x02\x03\x04"], 1: [1]}),
    ],
)
def test_the_wire_format(data, fields):
    assert _fields(data) == fields


def test_a_message_that_is_none_is_refused():
    with pytest.raises(ValueError, match="Field 1 of a protocol buffer has wire type 3"):
        _fields(b"\x0b")


def test_what_is_a_lack_of_memory():
    assert is_out_of_memory(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"))
    assert not is_out_of_memory(jax.errors.JaxRuntimeError("INTERNAL: no"))
    assert not is_out_of_memory(ValueError("RESOURCE_EXHAUSTED"))
    assert not is_out_of_memory(None)
