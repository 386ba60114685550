import jax
import jax.numpy as jnp
import pytest

from millrace._compat.jaxpr import trace
from millrace.programs.recomputation.costs import flops_of_calls, shares


def flops(function, *shapes):
    def marked(*arguments):
        with jax.named_scope("mr.L0"):
            return function(*arguments)

    specs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    graph, _ = trace(marked, *specs)
    (found,) = flops_of_calls(graph, 1)
    analysis = jax.jit(function).lower(*specs).compile().cost_analysis()
    return found, analysis["flops"]


def conv(x, kernel):
    return jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, w: x @ w, [(8, 16), (16, 4)]),
        (lambda x, w: jnp.einsum("bij,bjk->bik", x, w), [(3, 8, 16), (3, 16, 4)]),
        (conv, [(2, 8, 8, 3), (3, 3, 3, 5)]),
        (lambda x: x * 2 + 1, [(8, 16)]),
    ],
)
def test_counts_as_xla_does(function, shapes):
    found, by_xla = flops(function, *shapes)
    assert found == pytest.approx(by_xla, rel=0.02)


def test_counts_every_turn_of_a_scan():
    def turns(length):
        def run(x, w):
            return jax.lax.scan(lambda c, _: (c @ w, None), x, None, length=length)[0]

        return flops(run, (4, 4), (4, 4))[0]

    assert turns(10) == 10 * turns(1)


def test_counts_the_dearer_branch_only():
    def run(x, w):
        return jax.lax.cond(x[0, 0] > 0, lambda: x @ w, lambda: x + w)

    found, _ = flops(run, (16, 16), (16, 16))
    assert found == pytest.approx(2 * 16**3, rel=0.01)


def test_shares():
    assert shares([1, 3]) == [0.25, 0.75]
    assert shares([0, 0]) == [0.5, 0.5]
