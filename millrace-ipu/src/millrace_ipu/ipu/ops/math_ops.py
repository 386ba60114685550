"""Sums of segments."""

from typing import Any

import keras

from millrace_ipu.ipu.replacements import other_name as _other_name


def segment_sum(data: Any, segment_ids: Any, num_segments: int, name: str | None = None) -> Any:
    """Returns the sum of the rows of each segment, `[num_segments, ...]`.

    Args:
        data: `[rows, ...]`.
        segment_ids: the segment of each row, in ascending order.
        num_segments: number of segments.
        name: ignored.
    """
    del name
    return keras.ops.segment_sum(data, segment_ids, num_segments, sorted=True)


def __getattr__(name: str) -> Any:
    return _other_name(__name__, name)
