"""Private Keras: the reduction of a loss to one number, for parts of a batch.

A loss object of Keras computes a loss for each row or element, and divides their sum by a number
that may depend on the data: a mask's valid elements, or a sum of sample weights. A part of a batch
knows its own share of that number only. So the losses of a part are multiplied by

    sum_over_batch_size, mean           rows are what it divides by: nothing
      of a masked prediction            valid of the part / valid of the batch x rows / rows of part
    mean_with_sample_weight             weight of the part / weight of the batch x ...
    sum                                 rows of the batch / rows of the part

whose mean over the parts, weighed by their rows, is the loss of the batch.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import keras

from millrace._compat.patch_table import REDUCE_LOSS
from millrace._compat.patches import held, replace
from millrace.base.threads.scoped_value import ScopedValue

_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


@dataclass(slots=True)
class LossParts:
    """The losses of a part of a batch, while they are traced.

    Attributes:
        share: rows of the part, as a share of those of the batch.
        totals: divisors of the whole batch, in the order of the losses that have one.
        count: losses that have one so far. Where a step is traced again, they begin anew.
    """

    share: float
    totals: Sequence[jax.Array] = ()
    count: int = 0

    def scaled(self, loss: Any, divisor: jax.Array | None) -> Any:
        """Returns a loss of the part, or its sum without a divisor, multiplied as above."""
        if divisor is None:
            return loss / self.share
        number, self.count = self.count, self.count + 1
        total = self.totals[number % len(self.totals)]
        part: Any = keras.ops.divide_no_nan(divisor, total)
        factor = part / self.share
        return loss * keras.ops.cast(factor, loss.dtype)


# Receives what a reduced loss is divided by if that follows from the data, else None, and how many
# values it is a mean over (0 for a sum), with the mask and the weights that it follows from.
Notice: TypeAlias = Callable[[jax.Array | None, int, tuple[object, object]], None]
_parts = ScopedValue[LossParts | None](None)
_notice = ScopedValue[Notice | None](None)


@contextmanager
def losses_of_part(parts: LossParts) -> Iterator[None]:
    """Makes losses of Keras that are computed inside those of a part of a batch."""
    with held(), _parts.bound_to(parts):
        replace(REDUCE_LOSS, _reducing)
        yield


@contextmanager
def losses_noticed(notice: Notice) -> Iterator[None]:
    """Tells of each loss of Keras that is reduced inside."""
    with held(), _notice.bound_to(notice):
        replace(REDUCE_LOSS, _reducing)
        yield


def _reducing(original: Callable[..., Any]) -> Callable[..., Any]:
    def reduce_weighted_values(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: str | None = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        loss = original(
            values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype
        )
        parts, notice = _parts.get(), _notice.get()
        if not values.shape or (parts is None and notice is None):
            return loss
        by_weight = reduction == "mean_with_sample_weight"
        if by_weight and (sample_weight is not None or mask is not None):
            ones = jnp.ones(values.shape, loss.dtype)
            divisor = original(ones, sample_weight, mask, "sum", loss.dtype)
        elif reduction in _MEANS and mask is not None:
            divisor = jnp.sum(jnp.asarray(mask).astype(bool), dtype=loss.dtype)
        else:
            divisor = None
        if divisor is not None:
            divisor = jax.lax.stop_gradient(divisor)
        if notice is not None:
            size = 0 if reduction == "sum" else values.size
            notice(divisor, size, (mask, sample_weight if by_weight else None))
        if parts is None or (divisor is None and reduction != "sum"):
            return loss
        return parts.scaled(loss, divisor)

    return reduce_weighted_values
