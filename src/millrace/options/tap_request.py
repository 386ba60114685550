"""The tensors that a callback watches while a model trains."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TapRequest:
    """Tensors whose statistics leave the programs of training, by patterns of names.

    A pattern is as in a shell, `dense*`, and matches a whole name or its last part.
    """

    activations: tuple[str, ...] = ()
    micro_gradients: tuple[str, ...] = ()  # of every micro-batch
    gradients: tuple[str, ...] = ()  # as they are applied
    every: int = 1  # updates
    bins: int = 0  # of histograms; 0 for none
    norms: bool = False  # only norms, and counts of NaNs and infinities, are wanted
    loss: bool = False  # the loss of every micro-batch, too
    stops: bool = False  # before the first update with a gradient that is not finite

    def __bool__(self) -> bool:
        return bool(self.activations or self.micro_gradients or self.gradients)

    def __or__(self, other: "TapRequest") -> "TapRequest":
        """Returns the request that covers both."""
        return TapRequest(
            activations=_union(self.activations, other.activations),
            micro_gradients=_union(self.micro_gradients, other.micro_gradients),
            gradients=_union(self.gradients, other.gradients),
            every=math.gcd(self.every, other.every),
            bins=max(self.bins, other.bins),
            norms=(self.norms or not self) and (other.norms or not other),
            loss=self.loss or other.loss,
            stops=self.stops or other.stops,
        )


def _union(some: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*some, *more)))


NO_TAPS = TapRequest()
