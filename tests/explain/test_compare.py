"""What differs between two programs that the user has."""

import jax
import numpy as np
import pytest

import millrace
from millrace.errors import OptionError

X = np.ones((2, 3), np.float32)


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
