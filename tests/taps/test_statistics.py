"""Statistics of tensors against NumPy in double precision."""

import jax
import numpy as np
import pytest

from millrace.base.options import TapRequest
from millrace.base.records.tensors import STATISTICS
from millrace.programs.taps.statistics import all_norms, histogram_of, reduction_of, statistics_of


def tensors():
    random = np.random.default_rng(0)
    normal = random.standard_normal
    with_some = normal((300, 200))
    with_some[3, 4], with_some[5, 6], with_some[7, 8] = np.nan, np.inf, -np.inf
    return {
        "one element": np.array(3.0),
        "a bias": normal(7),
        "a vector": normal(5000),
        "a matrix": normal((300, 201)),
        "a large mean": normal((300, 200)) * 0.01 + 100,
        "half zeros": np.maximum(normal((64, 128)), 0),
        "constant": np.full((200, 100), 7.0),
        "nothing but zeros": np.zeros((200, 100)),
        "four axes": normal((3, 5, 7, 64)),
        "a million": normal((1024, 1024)) + 3,
        "NaNs and infinities": with_some,
        "few with a NaN": np.array([1.0, np.nan, 0.0]),
    }


def by_numpy(value):
    value = value.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return [
            value.mean(),
            value.std(),
            value.min(),
            value.max(),
            np.sqrt((value**2).sum()),
            (value == 0).mean(),
            np.isnan(value).sum(),
            np.isinf(value).sum(),
        ]


@pytest.mark.parametrize("name", tensors())
def test_all_eight(name):
    value = tensors()[name].astype("float32")
    found = jax.jit(statistics_of)(value)
    np.testing.assert_allclose(found, by_numpy(value), rtol=2e-6, atol=1e-6)


def test_numbers_of_other_types():
    for value in (np.arange(5), np.array([True, False]), np.ones(9000, np.float16)):
        np.testing.assert_allclose(statistics_of(value), by_numpy(value), rtol=1e-6)


def test_norms_are_those_of_all_statistics():
    values = [value.astype("float32") for value in tensors().values()]
    rows = np.asarray(jax.jit(all_norms)(values))
    norm = STATISTICS.index("norm")
    for value, row in zip(values, rows, strict=True):
        want = np.array(by_numpy(value))
        np.testing.assert_allclose(row[[norm, 6, 7]], want[[norm, 6, 7]], rtol=2e-6)
        assert np.isnan(np.delete(row, [norm, 6, 7])).all()


@pytest.mark.parametrize("name", ["a bias", "a matrix", "half zeros", "a large mean"])
def test_histograms_are_numpys(name):
    value = tensors()[name].astype("float32")
    counts = jax.jit(histogram_of, static_argnums=3)(value, value.min(), value.max(), 16)
    want, _ = np.histogram(value, bins=16)
    assert counts.sum() == value.size
    # An element on the border of two parts may be rounded into either.
    assert np.abs(np.asarray(counts) - want).sum() <= 1e-3 * value.size + 2


def test_rows_with_histograms():
    value = np.array([0.0, 1.0, 1.0, 4.0], "float32")
    (row,) = reduction_of(TapRequest(activations=("*",), bins=4))([value])
    np.testing.assert_array_equal(row[8:], [1, 2, 0, 1])
    np.testing.assert_array_equal(row[:8], statistics_of(value))


def test_what_is_not_finite_is_in_no_part():
    value = np.array([0.0, np.nan, 1.0], "float32")
    np.testing.assert_array_equal(histogram_of(value, 0.0, 1.0, 2), [1, 1])
    np.testing.assert_array_equal(histogram_of(value, np.nan, 1.0, 2), [0, 0])
