"""Columns of numbers for a page, compressed: the thousands of spans, samples and points.

In the JSON of the page a column is `{"at": 0, "type": "u32", "count": 9, "bytes": 36}`. All bytes
lie behind one another, compressed by gzip and written in base 64, which browsers undo themselves.
"""

import base64
import gzip
import json
from collections.abc import Iterable

import numpy as np

_TYPES = {"u1": "u8", "u2": "u16", "u4": "u32", "f8": "f64"}
_ALIGNED = 8  # bytes, at which a column begins: JavaScript reads arrays from there only


class Columns:
    """Takes columns, one after the other."""

    def __init__(self):
        self._parts: list[bytes] = []
        self._size = 0

    def floats(self, values: Iterable[float] | np.ndarray) -> dict[str, object]:
        """Adds numbers of any size, NaN and infinities among them."""
        return self._add(np.fromiter(values, np.float64), "f8")

    def counts(self, values: Iterable[int] | np.ndarray) -> dict[str, object]:
        """Adds whole numbers from 0 to 2**32 - 1, in as few bytes as the largest needs."""
        array = np.maximum(np.fromiter(values, np.int64), 0)
        most = int(array.max(initial=0))
        return self._add(array, "u1" if most < 2**8 else "u2" if most < 2**16 else "u4")

    def texts(self, values: list[str]) -> dict[str, object]:
        """Adds texts: thousands of names that are nearly the same."""
        return self._keep(json.dumps(values).encode(), "json", len(values))

    def text(self) -> str:
        """Returns all columns, compressed, in base 64."""
        return base64.b64encode(gzip.compress(b"".join(self._parts), 6, mtime=0)).decode()

    def _add(self, array: np.ndarray, kind: str) -> dict[str, object]:
        return self._keep(array.astype(f"<{kind}").tobytes(), _TYPES[kind], len(array))

    def _keep(self, raw: bytes, kind: str, count: int) -> dict[str, object]:
        at = self._size
        padded = raw + bytes(-len(raw) % _ALIGNED)
        self._parts.append(padded)
        self._size += len(padded)
        return {"at": at, "type": kind, "count": count, "bytes": len(raw)}
