import random
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import millrace
from millrace.compilation.explain.program_difference import difference
from millrace.errors import OptionError

pytestmark = pytest.mark.quick

X = np.ones((2, 3), np.float32)


def text(factor=0.345, rows=32, more=False, width=5, places=False, table=None):
    def step(x, w):
        y = jnp.sin(x @ w) * factor
        if table is not None:
            y = y + table
        return jnp.tanh(y) if more else y

    lowered = jax.jit(step).lower(jnp.ones((rows, 10)), jnp.ones((10, width)))
    return lowered.as_text(debug_info=places)


def test_a_constant_is_named_with_both_values():
    assert difference(text(), text(0.678)) == ("constant tensor<f32> 0.345 -> 0.678",)


def test_shapes_are_named_with_what_computes_them_the_largest_first():
    assert difference(text(), text(rows=17)) == (
        "tensor<32x10xf32> -> tensor<17x10xf32> in stablehlo.dot_general and 1 other operation",
        "tensor<32x5xf32> -> tensor<17x5xf32> in stablehlo.dot_general and 5 other operations",
    )


def test_operations_that_came_or_went_are_counted():
    assert difference(text(), text(more=True)) == ("1 x stablehlo.tanh added",)
    assert difference(text(more=True), text()) == ("1 x stablehlo.tanh removed",)


def test_places_in_the_source_do_not_count():
    found = difference(text(places=True), text(0.678, places=True))
    assert found == ("constant tensor<f32> 0.345 -> 0.678",)
    assert difference(text(places=True), text(rows=17, places=True)) == difference(
        text(), text(rows=17)
    )
    assert difference(text(places=True), text()) == ()


def test_long_constants_are_shown_by_shape_and_hash():
    one, other = jnp.arange(5.0), jnp.arange(5.0) * 1.5
    (found,) = difference(text(table=one), text(table=other))
    assert found.startswith("constant tensor<5xf32> ")
    assert len(found) < 100


def test_equal_programs_do_not_differ():
    assert difference(text(), text()) == ()
    renamed = text().replace("%0", "%7").replace("%cst", "%cst_3").replace("@main", "@main_1")
    assert difference(text(), renamed) == ()


def test_an_attribute_that_differs_is_shown():
    changed = text().replace("[DEFAULT, DEFAULT]", "[HIGHEST, HIGHEST]")
    (found,) = difference(text(), changed)
    assert found.startswith("stablehlo.dot_general: ")
    assert "DEFAULT" in found
    assert "HIGHEST" in found


def test_at_most_so_many_are_shown():
    def program(rows):
        return "\n".join(f"%{n} = stablehlo.abs %x : tensor<{rows}x{n}xf32>" for n in range(9))

    found = difference(program(2), program(3), limit=4)
    assert found[0] == "tensor<2x8xf32> -> tensor<3x8xf32> in stablehlo.abs"
    assert found[4] == "and 5 more"


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_megabyte_takes_less_than_two_seconds(shuffled):
    names = ("add", "multiply", "convolution", "dot_general", "transpose", "reduce")
    choice = random.Random(0)

    def program(rows):
        lines = [
            f"    %{n} = stablehlo.{choice.choice(names) if shuffled else names[n % 6]} %{n - 1}, "
            f"%arg{n}, dims = [0, 1] : (tensor<{rows}x{n % 50}xf32>) -> tensor<{rows}xf32>"
            for n in range(10_000)
        ]
        return "\n".join(lines)

    old, new = program(32), program(17)
    assert len(old) > 1_000_000
    begin = time.process_time()
    assert difference(old, new)
    assert time.process_time() - begin < 2


def test_aligning_ends_in_time_where_little_is_alike():
    choice = random.Random(0)
    lines = [f"%{n} = stablehlo.{choice.choice('abcdefgh')} %x" for n in range(7_000)]
    begin = time.process_time()
    difference("\n".join(lines[:3_500]), "\n".join(lines[3_500:]))
    assert time.process_time() - begin < 2


def lowered(factor, weights=None, compiler=millrace.compile):
    weights = np.ones((3, 4), np.float32) if weights is None else weights
    return compiler(lambda x: factor * (x @ weights)).lower(X)


@pytest.mark.parametrize("compiler", [millrace.compile, jax.jit])
def test_a_constant(compiler):
    a, b = lowered(10.0, compiler=compiler), lowered(0.3, compiler=compiler)
    assert millrace.diff_programs(a, b) == ("constant tensor<f32> 10 -> 0.3",)
    assert millrace.diff_programs(a.as_text(), b.as_text()) == millrace.diff_programs(a, b)
    assert millrace.diff_programs(a, a) == ()


def test_frozen_weights_show_by_their_hashes():
    random = np.random.default_rng(0)
    weights = [random.random((3, 400), np.float32) for _ in range(2)]
    (text,) = millrace.diff_programs(lowered(1.0, weights[0]), lowered(1.0, weights[1]))
    before, after = text.removeprefix("constant tensor<3x400xf32> ").split(" -> ")
    assert len(before) == len(after) == 8
    assert before != after


def test_what_is_no_program():
    with pytest.raises(OptionError, match=r"Received: b=<function.*Set b=fn.lower\(\*args\)"):
        millrace.diff_programs(lowered(1.0), lowered)
