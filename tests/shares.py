"""Shares of the slow tests: each run of CI has one of three."""

import zlib
from typing import Any, NamedTuple


class Share(NamedTuple):
    """One of several shares; a test stays in its own when others come or go."""

    number: int
    count: int

    @classmethod
    def of_text(cls, text: str) -> "Share":
        """Reads `1/3`; 0/3 and 3/3 are the same."""
        number, count = map(int, text.split("/"))
        if count < 1:
            raise ValueError(text)
        return cls(number % count, count)

    def has(self, item: Any) -> bool:
        """Whether a test is in it: those that are not slow, or marked `every_share`, are in all."""
        marks = {mark.name for mark in item.iter_markers()}
        is_shared = "slow" in marks and "every_share" not in marks
        return not is_shared or zlib.crc32(item.nodeid.encode()) % self.count == self.number
