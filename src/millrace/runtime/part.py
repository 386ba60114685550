"""What a runner gives back."""

from typing import Any, NamedTuple


class Part(NamedTuple):
    """What one call of compiled code, or one micro-batch, gave: its result, and its steps."""

    result: Any  # logs or outputs
    steps: int
    records: int  # length of the result's first axis, where every step has one
    first: int = 0  # of these, where replicas before it had no batch
