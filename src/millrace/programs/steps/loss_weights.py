"""The weight of each micro-batch in an update: what its loss divides by.

    loss of a micro-batch   sum over its tokens / its tokens
    loss of an update       sum over all tokens / all tokens  =  a mean of these, weighed by tokens

The number of tokens is known after forward. So gradients are added up with it as their coefficient,
it is added up behind them, and the update divides by its sum.

That takes a loss of one kind. Where a model has several that divide by different numbers, such as
one over tokens and one over rows, their gradients would need sums of their own; such micro-batches
are weighed by rows.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import keras

from millrace._compat.keras_losses import losses_noticed
from millrace.base.options import Reduction
from millrace.base.threads.scoped_value import Notes, ScopedValue
from millrace.programs.plan import Mode, Plan
from millrace.programs.taps.taps import Tapped, collecting, tap, tap_again

logger = logging.getLogger("millrace")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Divisor:
    """The key of a number of the data that a loss divides by."""

    number: int


@dataclass(slots=True)
class Losses:
    """The losses that one step reduces to a mean or a sum.

    Attributes:
        taps: whether the numbers that they divide by are tapped, as `Divisor`s.
        sizes: for each loss that divides by a number of the data, how many values it adds up.
        differ: whether some of these numbers follow from other masks or weights.
        others: number of the others.
        sums: number of those that are sums.
    """

    taps: bool = False
    sizes: list[int] = field(default_factory=list)
    differ: bool = False
    others: int = 0
    sums: int = 0

    @contextmanager
    def noticed(self) -> Iterator[None]:
        """Notices the losses that are computed inside; a step may be traced again."""
        self.sizes, self.differ, self.others, self.sums = [], False, 0, 0
        first: tuple[object, ...] = ()

        def notice(divisor: jax.Array | None, size: int, sources: tuple[object, ...]) -> None:
            nonlocal first
            if divisor is None:
                self.others += 1
                self.sums += size == 0
                return
            if self.taps:
                tap(Divisor(len(self.sizes)), divisor)
            first = first or sources
            self.differ |= any(a is not b for a, b in zip(first, sources, strict=True))
            self.sizes.append(size)

        with losses_noticed(notice):
            yield

    @property
    def have_one_divisor(self) -> bool:
        """Whether a number of the data weighs all of the loss."""
        return len(set(self.sizes)) == 1 and not (self.differ or self.others)


def weight_in_rows(plan: Plan, divisor: jax.Array) -> jax.Array:
    """Returns the weight of a micro-batch, for each of its rows."""
    return divisor.astype(jnp.float32) / plan.batch.rows


def without_divisors(tapped: Tapped) -> tuple[Tapped, list[jax.Array]]:
    """Returns what is tapped except numbers that losses divide by, and these."""
    others = [(key, value) for key, value in tapped.items() if not isinstance(key, Divisor)]
    divisors = [value for key, value in tapped.items() if isinstance(key, Divisor)]
    return Tapped(tuple(k for k, _ in others), tuple(v for _, v in others)), divisors


def with_divisors(function: Callable[..., Made]) -> Callable[..., tuple[Made, list[jax.Array]]]:
    """Makes a function return the numbers that its losses divide by, too."""

    def run(*args: Any, **kwargs: Any) -> tuple[Made, list[jax.Array]]:
        result, tapped = collecting(function)(*args, **kwargs)
        others, divisors = without_divisors(tapped)
        tap_again(others)
        return result, divisors

    return run


_found = ScopedValue[list[Losses] | None](None)
_notes = Notes()


def report(losses: Losses) -> None:
    """Tells `weighed_by_loss` of the losses of a step that has been traced."""
    if (found := _found.get()) is not None:
        found.append(losses)


def weighed_by_loss(
    model: keras.Model, plan: Plan, make: Callable[[Plan], Made], is_part: bool = False
) -> Made:
    """Makes what trains by a plan, which weighs micro-batches by their losses where it can.

    Args:
        model: a compiled Keras model.
        plan: of a mode and batch.
        make: traces a step by a plan, and `report`s its losses.
        is_part: whether the batch is a part of another one.
    """
    is_auto = plan.accumulation.reduction is Reduction.AUTO
    is_alone = plan.update_steps == 1 and not is_part
    if plan.mode is not Mode.TRAIN or is_alone or not is_auto:
        return make(plan)
    with _found.bound_to([]):
        made = make(plan)
        found: Sequence[Losses] = _found.get() or ()
    if not any(losses.sizes for losses in found):
        return made
    if all(losses.have_one_divisor for losses in found):
        return make(replace(plan, weighs_losses=True))
    if _notes.is_new(model.name):
        logger.warning(
            "model %r has several losses, and one divides by a number of the data (tokens of a "
            "mask, a sum of sample weights). So the %d micro-batches of an update are weighed by "
            "their rows, which differs from one big batch where these numbers differ. Add the "
            "losses up in compute_loss() before they are divided, or give batches equal numbers.",
            model.name,
            plan.update_steps,
        )
    return made
