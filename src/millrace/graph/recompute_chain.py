"""The least memory of a chain for each amount of recomputation, and the other way round.

proto
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from millrace.graph.recompute_plan import Again, Item, Link, Once

@dataclass(frozen=True, slots=True)
class Choice:
    peak_bytes: int
    extra_flops: float
    items: tuple[Item, ...]

INNER = 64
OUTER = 512
STAT = {}

class _Fronts:
    """Fronts one after another that share their begin or their end, in the order of `ranks`."""

    def __init__(self, scale: int, **values):
        self.scale = scale
        self.v = values
        self.keys = values["rank"] * scale + values["peak"]

    def append(self, **values):
        self.v = {k: np.concatenate([self.v[k], values[k]]) for k in self.v}
        self.keys = np.concatenate([self.keys, values["rank"] * self.scale + values["peak"]])

    def find(self, ranks, budgets):
        at = np.searchsorted(self.keys, ranks * self.scale + budgets, side="right") - 1
        return at, self.v["rank"][at] == ranks


def solve(links, inner=None, outer=None):
    inner = inner or INNER; outer = outer or OUTER
    n = len(links)
    scale = 1 + sum(l.input_bytes + max(w.working_bytes for w in l.ways) for l in links)
    I = lambda x: np.asarray(x, np.int64)
    columns = [_Fronts(scale, rank=I([n - e]), peak=I([0]), extra=np.zeros(1), begin=I([e]), place=I([0])) for e in range(n + 1)]
    rows = [None] * n
    for b in reversed(range(n)):
        link = links[b]
        h = link.input_bytes
        row = _Fronts(scale, rank=I([b]), peak=I([0]), extra=np.zeros(1), again=np.zeros(1), left=I([0]), right=I([0]))
        held = I([h + w.kept_bytes for w in link.ways])[:, None]
        own = I([h + w.working_bytes for w in link.ways])[:, None]
        wextra = np.asarray([w.extra_flops for w in link.ways])[:, None]
        wcode = I([-1 - w for w in range(len(link.ways))])[:, None]
        last = {}
        for e in range(b + 1, n + 1):
            col = columns[e]
            c, r = col.v, row.v
            # once
            start = np.searchsorted(col.keys, (n - b - 1) * scale)
            peak = np.maximum(own, held + c["peak"][start:])
            extra = wextra + c["extra"][start:]
            right = np.broadcast_to(np.arange(start, len(c["peak"])), peak.shape)
            left = np.broadcast_to(wcode, peak.shape)
            # again
            at, ok = col.find(n - r["rank"], r["peak"] - h)
            i = np.flatnonzero(ok); j = at[i]
            p1, x1 = r["peak"][i], r["again"][i] + c["extra"][j]
            at, ok = row.find(c["begin"], c["peak"] + h)
            j2 = np.flatnonzero(ok); i2 = at[j2]
            p2, x2 = c["peak"][j2] + h, r["again"][i2] + c["extra"][j2]
            peak = np.concatenate([peak.ravel(), p1, p2])
            extra = np.concatenate([extra.ravel(), x1, x2])
            left = np.concatenate([left.ravel(), i, i2])
            right = np.concatenate([right.ravel(), j, j2])
            keep = front(peak, extra)
            STAT[b, e] = len(keep)
            keep = thin(peak, extra, keep, outer if e == n else inner)
            peak, extra, left, right = peak[keep], extra[keep], left[keep], right[keep]
            forward = math.fsum(l.forward_flops for l in links[b:e])
            place = np.arange(len(r["peak"]), len(r["peak"]) + len(peak))
            row.append(rank=np.full(len(peak), e), peak=peak, extra=extra, again=forward + extra, left=left, right=right)
            col.append(rank=np.full(len(peak), n - b), peak=peak, extra=extra, begin=np.full(len(peak), b), place=place)
        rows[b] = row
    return rows, columns

def front(peak, extra):
    if len(peak) > 400:
        g = front(peak[::8], extra[::8])
        pg, xg = peak[::8][g], extra[::8][g]
        bound = np.concatenate([[np.inf], xg])[np.searchsorted(pg, peak, side="left")]
        s = np.flatnonzero(extra < bound)   # strictly lower peak points dominate
        return s[front0(peak[s], extra[s])]
    return front0(peak, extra)

def front0(peak, extra):
    order = np.lexsort((extra, peak))
    x = extra[order]
    best = np.minimum.accumulate(x)
    return order[np.concatenate([[True], x[1:] < best[:-1]])]

def thin(peak, extra, keep, most):
    if len(keep) <= most:
        return keep
    p, x = peak[keep], extra[keep]
    s = (p - p[0]) / (p[-1] - p[0]) + (x[0] - x) / (x[0] - x[-1])
    at = np.searchsorted(s, np.linspace(0, 2, most))
    return keep[np.unique(np.minimum(at, len(keep) - 1))]
