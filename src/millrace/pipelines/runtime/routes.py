"""Where the values that a stage makes go: one move for each group of devices that takes some."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax

from millrace.devices import DeviceGroup
from millrace.pipelines.programs.stages import StageBuilder
from millrace.pipelines.runtime.transfer import Carry, Specs, make_carry, takes_part


class Sent(NamedTuple):
    """A value that goes along a route."""

    place: int  # among what the stage made
    number: int  # of the value
    stages: tuple[int, ...]  # that take it there


class Route(NamedTuple):
    """The way to one group."""

    move: Carry
    sent: list[Sent]
    specs: Specs

    def carry(self, made: list[Any] | None) -> Iterator[tuple[Any, int, tuple[int, ...]]]:
        """Moves values, and yields those that arrive here: array, number, stages.

        Args:
            made: by the stage; None where that is in another process.
        """
        given = None if made is None else [made[each.place] for each in self.sent]
        arrived = self.move(given, self.specs)
        if arrived is not None:
            for array, (_, number, stages) in zip(arrived, self.sent, strict=True):
                yield array, number, stages


def routes(
    sent: Sequence[tuple[int, int, tuple[int, ...]]],
    builder: StageBuilder,
    index: int,
    groups: Sequence[DeviceGroup],
) -> list[Route]:
    """Returns the routes of which this process has an end, in an order that all processes share.

    Args:
        sent: (place, number, stages that take it) of each value.
        builder: of the stages, for the values' shapes.
        index: of the stage that makes them.
        groups: of each stage.
    """
    by_group: dict[DeviceGroup, list[Sent]] = {}
    for place, number, stages in sent:
        for group in dict.fromkeys(groups[stage] for stage in stages):
            there = tuple(stage for stage in stages if groups[stage] == group)
            by_group.setdefault(group, []).append(Sent(place, number, there))
    found = []
    for group, values in by_group.items():
        if not takes_part(groups[index], group):
            continue
        lead = (group.replicas,) if group.replicas > 1 else ()
        shapes = [builder.split.values[each.number] for each in values]
        specs = [jax.ShapeDtypeStruct((*lead, *shape.shape), shape.dtype) for shape in shapes]
        found.append(Route(make_carry(groups[index], group), values, specs))
    return found
