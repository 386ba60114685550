"""Eight numbers about one tensor, reduced on the device.

Passes over memory are what they cost. Four reductions give mean, std, norm, minimum and maximum, a
fifth the zeros; NaN and infinity are counted only where the sum of squares is not finite. Sums go
down the columns first: XLA vectorizes that on CPU without changing the order of additions.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

# Above this many elements a second pass for the standard deviation costs more than it is worth.
_TWO_PASSES = 1 << 14


def statistics_of(value: Any) -> jax.Array:
    """Returns `[8]` float32: mean, std, min, max, norm, share of zeros, NaNs, infinities.

    The standard deviation is that of the population, as NumPy's. Where there are NaNs or
    infinities the numbers are NumPy's too: `mean` of a tensor with a NaN is NaN.

    Args:
        value: of any shape; integers and booleans count as numbers.
    """
    value = jnp.asarray(value).astype(jnp.float32)
    if not value.size:
        return jnp.full(8, jnp.nan).at[6:].set(0.0)
    if value.size <= _TWO_PASSES:
        return _exact(value)
    rows = value.reshape(-1, value.shape[-1])
    # Sums of squares lose all digits of a standard deviation that is small next to the mean, so
    # they are taken about a mean that is nearly right.
    center = rows[0].mean()
    size = jnp.float32(value.size)
    first = (rows - center).sum(0).sum()
    squares = jnp.square(rows - center).sum(0).sum()
    offset = first / size
    quick = jnp.stack(
        [
            center + offset,
            jnp.sqrt(jnp.maximum(squares / size - offset * offset, 0.0)),
            rows.min(0).min(),
            rows.max(0).max(),
            jnp.sqrt(squares + 2 * center * first + size * center * center),
            (size - jnp.abs(jnp.sign(rows)).sum(0).sum()) / size,
            jnp.float32(0),
            jnp.float32(0),
        ]
    )
    return lax.cond(jnp.isfinite(squares), lambda: quick, lambda: _exact(value))


def _exact(value: jax.Array) -> jax.Array:
    mean = value.mean()
    return jnp.stack(
        [
            mean,
            jnp.sqrt(jnp.square(value - mean).mean()),
            value.min(),
            value.max(),
            jnp.sqrt(jnp.square(value).sum()),
            (value == 0).mean(dtype=jnp.float32),
            jnp.isnan(value).sum(dtype=jnp.float32),
            jnp.isinf(value).sum(dtype=jnp.float32),
        ]
    )
