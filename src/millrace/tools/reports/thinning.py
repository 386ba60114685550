"""Fewer points of a long curve, such that its picture stays the same."""

import itertools
from collections.abc import Iterable

import numpy as np


def kept_points(curve: np.ndarray, most: int, keep: Iterable[int] = ()) -> np.ndarray:
    """Returns the numbers of the points to draw, in order.

    Of each of some stretches of equal length the least and the greatest value stay, as well as the
    first point and the last one: peaks keep their heights.

    Args:
        curve: its values; those that are NaN never stay for their size.
        most: about how many points may stay.
        keep: numbers of points that stay in any case.
    """
    if len(curve) <= most:
        return np.arange(len(curve))
    edges = np.linspace(0, len(curve), max(most // 2, 1) + 1).astype(np.int64)
    kept = {0, len(curve) - 1, *(point for point in keep if 0 <= point < len(curve))}
    plain = np.nan_to_num(np.asarray(curve, np.float64))
    for first, last in itertools.pairwise(edges.tolist()):
        if first < last:
            part = plain[first:last]
            kept |= {int(first + part.argmin()), int(first + part.argmax())}
    return np.array(sorted(kept))
