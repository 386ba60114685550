"""The parts of an update that one program runs whole, though no single block holds it.

Micro-batches that share statistics cannot be accumulated by separate calls
(`steps/synchronized_statistics.py`). So calls of such an update only collect their steps, and the
last one runs a program for these very parts.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from millrace.plan import Plan


class BlockSteps(NamedTuple):
    """Consecutive steps of one block."""

    plan: Plan  # of the block
    steps: int


class UpdateParts:
    """The steps of an update so far."""

    def __init__(self) -> None:
        self._parts: list[tuple[Plan, Any, int, int]] = []

    def add(self, plan: Plan, batches: Any, start: int, steps: int) -> None:
        """Adds `steps` steps from `start` on of a block with these batches."""
        if self._parts:
            last, block, first, count = self._parts[-1]
            if last is plan and block is batches and first + count == start:
                self._parts[-1] = (plan, block, first, count + steps)
                return
        self._parts.append((plan, batches, start, steps))

    def __iter__(self) -> Iterator[BlockSteps]:
        return (BlockSteps(plan, steps) for plan, _, _, steps in self._parts)

    @property
    def batches(self) -> list[Any]:
        """The batches of each block."""
        return [batches for _, batches, _, _ in self._parts]

    @property
    def starts(self) -> list[int]:
        """The first step in each block."""
        return [start for _, _, start, _ in self._parts]
