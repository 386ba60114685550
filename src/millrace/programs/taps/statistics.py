"""Eight numbers about one tensor, reduced on the device.

Their cost is that of passes over memory. Off CPU, XLA fuses all reductions of a tensor into one
pass; on CPU it would make one pass for each, so there a loop goes over rows of a thousand elements
and keeps all sums in the first-level cache: this takes a third of the time, and a fifth for a
million elements.

NaNs and infinities are counted only where the sum of squares is not finite.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from millrace.base.options import TapRequest
from millrace.base.records.tensors import STATISTICS

LANES = 1024  # elements of a row: with five sums, 24 KiB
# Above this share of the mean square, a variance computed as a difference of two means has lost no
# more than two of seven digits.
_VARIANCE = 1e-2

_ROW = 256  # elements whose squares are added up at once

_NORM, _LEAST, _MOST = (STATISTICS.index(name) for name in ("norm", "min", "max"))

Sums = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]


def statistics_of(value: ArrayLike) -> jax.Array:
    """Returns `[8]` float32: mean, std, min, max, norm, share of zeros, NaNs, infinities.

    The standard deviation is that of the population, as in NumPy. NaNs and infinities enter as in
    NumPy, too: `mean` of a tensor with a NaN is NaN.

    Args:
        value: of any shape; integers and booleans count as numbers.
    """
    value = jnp.asarray(value).astype(jnp.float32).reshape(-1)
    size = value.size
    if not size:
        return jnp.full(len(STATISTICS), jnp.nan).at[6:].set(0.0)
    if size < 4 * LANES:
        return _exact(value)
    total, squares, least, most, others = lax.platform_dependent(
        value, cpu=_by_rows, default=_reduced
    )
    mean = total / size
    variance = squares / size - mean * mean
    nothing = jnp.float32(0)
    quick = jnp.stack(
        [
            mean,
            jnp.sqrt(jnp.maximum(variance, 0.0)),
            least,
            most,
            jnp.sqrt(squares),
            (size - others) / size,
            nothing,
            nothing,
        ]
    )
    is_good = jnp.isfinite(squares) & (variance * size > _VARIANCE * squares)
    return lax.cond(is_good, lambda: quick, lambda: _exact(value))


def reduction_of(taps: TapRequest) -> Callable[[Sequence[jax.Array]], jax.Array]:
    """Returns the function that makes a row of each tensor: `[8]`, or `[8 + bins]`."""
    if taps.bins:
        return functools.partial(_with_histograms, bins=taps.bins)
    return all_norms if taps.norms else all_statistics


def _with_histograms(values: Sequence[jax.Array], bins: int) -> jax.Array:
    rows = all_statistics(values)
    counts = [
        histogram_of(value, row[_LEAST], row[_MOST], bins)
        for value, row in zip(values, rows, strict=True)
    ]
    return jnp.concatenate([rows, jnp.stack(counts)], axis=1)


def histogram_of(value: ArrayLike, least: jax.Array, most: jax.Array, bins: int) -> jax.Array:
    """Returns how many elements are in each of `bins` equal intervals of [least, most], `[bins]`.

    Elements that are not finite are not counted; if a bound is not finite, no element is.
    """
    value = jnp.asarray(value).astype(jnp.float32).reshape(-1)
    width = jnp.where(most > least, most - least, 1.0)
    index = jnp.clip(jnp.floor((value - least) / width * bins), 0, bins - 1)
    counted = jnp.isfinite(value) & jnp.isfinite(least) & jnp.isfinite(most)
    index = jnp.where(counted, index, bins).astype(jnp.int32)
    return jnp.zeros(bins).at[index].add(1.0, mode="drop")


def all_statistics(values: Sequence[ArrayLike]) -> jax.Array:
    """Returns `statistics_of` each value, `[values, 8]`."""
    return jnp.stack([statistics_of(value) for value in values])


def all_norms(values: Sequence[ArrayLike]) -> jax.Array:
    """Returns `[values, 8]` like `all_statistics`, but only norms and the two counts.

    It takes one pass over memory, by the fastest code there is, and one conditional for all
    tensors. The other statistics are NaN.
    """
    flat = [jnp.asarray(value).astype(jnp.float32).reshape(-1) for value in values]
    squares = jnp.stack([_sum_of_squares(value) for value in flat])
    blank = jnp.full((len(flat), len(STATISTICS)), jnp.nan)
    quick = blank.at[:, _NORM].set(jnp.sqrt(squares)).at[:, 6:].set(0.0)
    return lax.cond(
        jnp.isfinite(squares).all(),
        lambda: quick,
        lambda: (
            blank.at[:, 6:]
            .set(jnp.stack([_exact(value)[6:] for value in flat]))
            .at[:, _NORM]
            .set(jnp.sqrt(squares))
        ),
    )


def _sum_of_squares(value: jax.Array) -> jax.Array:
    """Returns the sum of squares as products of rows with themselves.

    One product of the whole takes as long, and jax 0.10.0 adds its terms one by one: the result is
    0.3 % off for a million elements around 100.
    """
    number = value.size // _ROW
    rows, tail = value[: number * _ROW].reshape(number, _ROW), value[number * _ROW :]
    return jnp.einsum("ij,ij->i", rows, rows).sum() + jnp.vdot(tail, tail)


def _reduced(value: jax.Array) -> Sums:
    """Returns sum, sum of squares, minimum, maximum, and the number of nonzero elements."""
    return (
        value.sum(),
        jnp.square(value).sum(),
        value.min(),
        value.max(),
        jnp.abs(jnp.sign(value)).sum(),
    )


def _by_rows(value: jax.Array) -> Sums:
    """Returns the result of `_reduced`, in one pass."""
    number = value.size // LANES
    remainder = value[number * LANES :]
    zeros = jnp.zeros(LANES)
    first = (zeros, zeros, zeros + jnp.inf, zeros - jnp.inf, zeros)

    def add(index: jax.Array, sums: Sums) -> Sums:
        # Sliced here: the rows of a scan would be a copy if the size is not a multiple.
        row = lax.dynamic_slice_in_dim(value, index * LANES, LANES)
        return _joined(sums, (row, row * row, row, row, jnp.abs(jnp.sign(row))))

    total, squares, least, most, others = lax.fori_loop(0, number, add, first)
    sums = (total.sum(), squares.sum(), least.min(), most.max(), others.sum())
    return _joined(sums, _reduced(remainder)) if remainder.size else sums


def _joined(sums: Sums, more: Sums) -> Sums:
    """Returns sums of some elements and of more elements."""
    return (
        sums[0] + more[0],
        sums[1] + more[1],
        jnp.minimum(sums[2], more[2]),
        jnp.maximum(sums[3], more[3]),
        sums[4] + more[4],
    )


def _exact(value: jax.Array) -> jax.Array:
    mean = value.mean()
    nans = jnp.isnan(value).sum(dtype=jnp.float32)
    # XLA's vectorized minimum and maximum on CPU may skip a NaN.
    bound = jnp.where(nans > 0, jnp.nan, 0.0)
    return jnp.stack(
        [
            mean,
            jnp.sqrt(jnp.square(value - mean).mean()),
            value.min() + bound,
            value.max() + bound,
            jnp.sqrt(jnp.square(value).sum()),
            (value == 0).mean(dtype=jnp.float32),
            nans,
            jnp.isinf(value).sum(dtype=jnp.float32),
        ]
    )
