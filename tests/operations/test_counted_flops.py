"""The FLOPs of programs, against those that XLA counts itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from millrace._compat.jax_executables import module_proto
from millrace.run.memory.hlo_proto import read_module
from millrace.tools.operations.count import OperationCounter


def flops(compiled):
    """XLA's own sum."""
    return compiled.cost_analysis()["flops"]


X = np.ones((4, 12, 10, 6), np.float32)


def conv(kernel, **options):
    def run(x):
        kernel_values = jnp.ones(kernel)
        numbers = ("NHWC", "HWIO", "NHWC")
        result = jax.lax.conv_general_dilated(
            x, kernel_values, dimension_numbers=numbers, **options
        )
        return result, jax.grad(lambda x: (result * x.sum()).sum())(x)

    return run


def conv_gradients(x):
    def loss(kernel):
        numbers = ("NHWC", "HWIO", "NHWC")
        return jnp.square(
            jax.lax.conv_general_dilated(x, kernel, (2, 1), "SAME", dimension_numbers=numbers)
        ).sum()

    return jax.grad(loss)(jnp.ones((3, 3, 6, 8)))


def pooled(x):
    def loss(x):
        most = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")
        return jnp.square(most).sum()

    return jax.grad(loss)(x)


def recurrent(x):
    def step(carry, row):
        return jnp.tanh(carry @ jnp.ones((6, 6)) + row), carry.sum()

    return jax.lax.scan(step, x[0, 0], jnp.ones((9, 10, 6)))


CASES = {
    "dot": lambda x: jnp.einsum("bhwc,bhwd->bcd", x, x),
    "batched dot": lambda x: x @ jnp.ones((6, 5)),
    "elementwise": lambda x: jnp.where(x > 0, jnp.sin(x) * x, jnp.abs(x) / 3 - jnp.exp(x)),
    "softmax": lambda x: jax.nn.softmax(x, axis=-1),
    "conv": conv((3, 3, 6, 8), window_strides=(1, 1), padding="SAME"),
    "conv with strides": conv((3, 2, 6, 8), window_strides=(2, 3), padding="VALID"),
    "conv with dilation": conv(
        (3, 3, 6, 8), window_strides=(1, 1), padding="SAME", rhs_dilation=(2, 2)
    ),
    "transposed conv": conv(
        (3, 3, 6, 8), window_strides=(1, 1), padding=((1, 2), (2, 1)), lhs_dilation=(2, 2)
    ),
    "grouped conv": conv(
        (3, 3, 3, 8), window_strides=(1, 1), padding="SAME", feature_group_count=2
    ),
    "depthwise conv": conv(
        (3, 3, 1, 6), window_strides=(1, 1), padding="SAME", feature_group_count=6
    ),
    "gradients of a conv": conv_gradients,
    "pooling": pooled,
    "sort": lambda x: jnp.sort(x, axis=1),
    "fft": lambda x: jnp.abs(jnp.fft.fft(x[..., 0])),
    "scatter": lambda x: x.at[jnp.array([0, 2])].add(1.0),
    "cumulative sum": lambda x: jnp.cumsum(x, axis=1),
    "loop": recurrent,
    "conditional": lambda x: jax.lax.cond(x[0, 0, 0, 0] > 0, lambda: x @ x.mT, lambda: x @ x.mT),
    "random": lambda x: x * jax.random.normal(jax.random.key(0), x.shape),
    "float16": lambda x: x.astype(jnp.float16) @ jnp.ones((6, 6), jnp.float16),
}


def counted(function, *arguments):
    compiled = jax.jit(function).lower(*arguments).compile()
    counter = OperationCounter(read_module(module_proto(compiled)))
    operations = counter.operations()
    return compiled, operations, counter.unknown_loops


def total(operations):
    return sum(each.times * flops for each in operations for _, flops in each.flops)


def total_once(operations):
    """Returns the FLOPs as XLA counts them: those of a loop's body once."""
    return sum(flops for each in operations for _, flops in each.flops)


@pytest.mark.parametrize("name", CASES)
def test_flops_are_those_of_the_compiler(name):
    compiled, operations, _ = counted(CASES[name], X)
    assert flops(compiled) > 0
    assert total_once(operations) == pytest.approx(flops(compiled), rel=0.001)


def test_a_loop_counts_as_often_as_it_runs():
    _, operations, unknown = counted(recurrent, X)
    products = 2 * 10 * 6 * 6
    assert total(operations) - total_once(operations) == pytest.approx(8 * products, rel=0.4)
    assert total(operations) > 9 * products
    assert unknown == 0


def test_a_loop_of_unknown_length_counts_once_and_is_said():
    def run(x, count):
        return jax.lax.fori_loop(0, count, lambda _, x: x @ jnp.ones((6, 6)), x)

    _, operations, unknown = counted(run, X, 7)
    assert unknown == 1
    assert total(operations) == pytest.approx(2 * X.size * 6, rel=0.01)


def test_bytes_of_a_part_are_those_of_the_part():
    def run(x, row):
        block = jnp.ones((1, 64))
        return jax.lax.dynamic_update_slice(x, block, (row, 0))

    compiled = jax.jit(run, donate_argnums=0).lower(np.ones((4096, 64), np.float32), 3).compile()
    operations = OperationCounter(read_module(module_proto(compiled))).operations()
    assert 0 < sum(each.nbytes for each in operations) < 4096


def test_bytes_of_a_product_are_those_of_its_arrays():
    _, operations, _ = counted(lambda a, b: a @ b, np.ones((32, 64), "f"), np.ones((64, 16), "f"))
    assert sum(each.nbytes for each in operations) == 4 * (32 * 64 + 64 * 16 + 32 * 16)


@pytest.mark.parametrize(("begin", "unknown"), [(0, 0), (None, 1)])
def test_a_loop_whose_begin_is_data_has_no_known_length(begin, unknown):
    def run(x, first):
        first = first if begin is None else begin
        return jax.lax.while_loop(
            lambda state: state[0] < 10, lambda state: (state[0] + 1, state[1] @ x), (first, x)
        )

    lowered = jax.jit(run).trace(np.ones((8, 8), np.float32), 3).lower()  # not yet by XLA's passes
    proto = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    counter = OperationCounter(read_module(proto))
    flops = sum(each.times * count for each in counter.operations() for _, count in each.flops)
    assert counter.unknown_loops == unknown
    assert flops == pytest.approx((1 if unknown else 10) * 2 * 8**3, rel=0.1)
