"""Memory as slices of addresses, each in use for some time.

address |  ____
        | |____|______     bytes are of the first kind that uses them
        | |___________|
        +---------------- program points
"""

from collections.abc import Sequence

import numpy as np

Slice = tuple[int, int, int, int, int]  # first and last point, begin and end, kind


def stacked(slices: Sequence[Slice], shape: tuple[int, int]) -> np.ndarray:
    """Returns the bytes in use by each kind at each program point, `[kinds, points]`.

    Args:
        slices: at some addresses from their first to their last point. An address that several
            use counts for the one of the smallest kind.
        shape: the numbers of kinds and of points.
    """
    kinds, points = shape
    used = np.zeros(shape, np.int64)
    if not slices:
        return used
    edges = np.unique([edge for _, _, *ends, _ in slices for edge in ends])
    widths, counts = np.diff(edges), np.zeros((kinds + 1, len(edges) - 1), np.int32)
    counts[kinds] = 1  # not in use
    lows = np.searchsorted(edges, [begin for _, _, begin, _, _ in slices])
    highs = np.searchsorted(edges, [end for _, _, _, end, _ in slices])
    changes: list[list[tuple[int, int, int, int]]] = [[] for _ in range(points + 1)]
    for (first, last, _, _, kind), low, high in zip(
        slices, lows.tolist(), highs.tolist(), strict=True
    ):
        changes[first].append((1, low, high, kind))
        changes[last + 1].append((-1, low, high, kind))
    change = np.zeros((points + 1, kinds + 1), np.int64)
    for point, at_point in enumerate(changes):
        for step, low, high, kind in at_point:
            part, width = counts[:, low:high], widths[low:high]
            owners = (part > 0).argmax(axis=0)
            part[kind] += step
            new = (part > 0).argmax(axis=0)
            moved = owners != new
            np.subtract.at(change[point], owners[moved], width[moved])
            np.add.at(change[point], new[moved], width[moved])
    return change[:points, :kinds].cumsum(axis=0).T


class Uncovered:
    """The addresses that no slice has taken yet."""

    def __init__(self) -> None:
        self._taken: list[tuple[int, int]] = []  # ascending, apart from each other

    def take(self, begin: int, end: int) -> int:
        """Takes the addresses from `begin` to before `end`; returns how many were free."""
        new, kept = end - begin, list[tuple[int, int]]()
        low, high = begin, end
        for start, stop in self._taken:
            if stop < begin or start > end:
                kept.append((start, stop))
                continue
            new -= max(0, min(stop, end) - max(start, begin))
            low, high = min(low, start), max(high, stop)
        self._taken = sorted([*kept, (low, high)])
        return new
