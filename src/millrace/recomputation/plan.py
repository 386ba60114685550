"""The plan of a recomputation, from the options and from a budget.

    segments 0 1 2 3                                         held while 3 runs
    Once(0) Once(1) Once(2) Once(3)                          inputs and kept bytes of 0, 1 and 2
    Again(Once(0) Once(1)) Once(2) Once(3)                   input of 0, input and kept bytes of 2
    Again(Again(Once(0)) Once(1)) Again(Once(2)) Once(3)     inputs of 0 and 2

`Once` runs a segment in one of its ways, which determines the values kept. `Again` is a group of
segments whose forward keeps only the group's input: right before the group's backward it runs a
second time, as its items describe.

    peak()             = 0
    peak(first, *rest) = max(own(first), held(first) + peak(rest))

                  held            own              extra
    Once(s, w)    input + kept    input + working  that of the way
    Again(items)  input           peak(items)      the forwards of its segments + that of items
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from millrace.errors import PlanError
from millrace.options import Recomputation, RecomputationMode
from millrace.plan import Recompute

THEN = RecomputationMode.RECOMPUTE_THEN_BACKPROPAGATE
INTERLEAVED = RecomputationMode.RECOMPUTE_AND_BACKPROPAGATE_INTERLEAVED

# The schedules that come from IPU programs, with the modes that they have there.
_MODES = {"1f1b": (THEN,), "grouped": (THEN, INTERLEAVED), "sequential": (INTERLEAVED,)}


def recompute_of(
    recomputation: Recomputation, schedule: object, spans_processes: bool = False
) -> Recompute | None:
    """Returns the recomputation of a plan; None: nothing runs again.

    Args:
        recomputation: the options.
        schedule: of a pipeline; None for a model in one piece.
        spans_processes: whether some stages are in other processes.

    Raises:
        PlanError: if the schedule and the mode do not go together, or a budget is set for a
            pipeline of several processes.
    """
    mode = recomputation.mode
    if recomputation.budget is not None:
        if schedule is not None and spans_processes:
            raise PlanError(
                f"budget={recomputation.budget} is for a pipeline within one process: each knows "
                "the memory of its own stages only. Set recomputation_mode='auto' in "
                "set_pipelining_options() instead."
            )
        return Recompute(budget=recomputation.budget)
    if mode is RecomputationMode.NONE:
        return None
    name = schedule.lower() if isinstance(schedule, str) else None
    legal = _MODES.get(name or "", (THEN, INTERLEAVED))
    if mode is RecomputationMode.AUTO:
        mode = THEN if schedule is not None and THEN in legal else INTERLEAVED
    if schedule is not None and mode not in legal:
        others = [option for option, modes in _MODES.items() if mode in modes]
        raise PlanError(
            f"recomputation_mode={mode.value!r} does not go with pipeline_schedule={schedule!r}. "
            f"Set recomputation_mode={legal[0].value!r}, or one of the schedules {others}."
        )
    if schedule is None and mode is THEN:
        return None  # the only stage is the last: its backward follows its forward immediately
    return Recompute(whole_stages=mode is THEN)


@dataclass(frozen=True, slots=True)
class Way:
    """Costs of one way to run a segment."""

    kept_bytes: int  # from its forward until its backward, besides the input
    working_bytes: int  # while either of them runs: with `kept_bytes`, without the input
    extra_flops: float  # that its backward adds


@dataclass(frozen=True, slots=True)
class ChainLink:
    """Memory and FLOPs of a segment in the chain."""

    input_bytes: int  # of values from earlier segments, held until the backward
    forward_flops: float
    ways: tuple[Way, ...]  # at least one, in any order


@dataclass(frozen=True, slots=True)
class Once:
    """A segment whose forward runs once, in one of its ways."""

    segment: int
    way: int


@dataclass(frozen=True, slots=True)
class Again:
    """Consecutive segments that run a second time; until then only their input is kept."""

    items: tuple["Item", ...]


Item = Once | Again


def peak_of(links: Sequence[ChainLink], items: Sequence[Item]) -> int:
    """Returns the most bytes alive at once when the chain runs as planned."""
    peak = 0
    for item in reversed(items):
        if isinstance(item, Once):
            link = links[item.segment]
            way = link.ways[item.way]
            own, held = link.input_bytes + way.working_bytes, link.input_bytes + way.kept_bytes
        else:
            own, held = peak_of(links, item.items), links[segments_of(item)[0]].input_bytes
        peak = max(own, held + peak)
    return peak


def extra_of(links: Sequence[ChainLink], items: Sequence[Item]) -> float:
    """Returns the FLOPs that recomputation adds when the chain runs as planned."""
    extra = 0.0  # added up from the end, as in `Fronts`: float sums depend on their order
    for item in reversed(items):
        if isinstance(item, Once):
            own = links[item.segment].ways[item.way].extra_flops
        else:
            own = forward_of(links[segment] for segment in segments_of(item))
            own += extra_of(links, item.items)
        extra = own + extra
    return extra


def forward_of(links: Iterable[ChainLink]) -> float:
    """Returns the FLOPs of one forward of `links`, rounded once."""
    return math.fsum(link.forward_flops for link in links)


def segments_of(item: Item) -> list[int]:
    """Returns the segments that an item runs."""
    if isinstance(item, Once):
        return [item.segment]
    return [segment for inner in item.items for segment in segments_of(inner)]
