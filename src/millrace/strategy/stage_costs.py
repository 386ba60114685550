"""What the layers of a model cost: for balancing its stages, and for their summary."""

from typing import Any

from millrace.graph.assignment import Assignment
from millrace.graph.calls import find_calls, leaves
from millrace.graph.summary import summary_lines


def balanced(model: Any, word: str, num_stages: int | None) -> Assignment:
    raise NotImplementedError


def stage_summary(model: Any, assignment: Assignment | None, line_length: int | None) -> list[str]:
    """Returns the lines of the summary."""
    calls = find_calls(model)
    stages = assignment.stages if assignment else None
    return summary_lines(model, calls, stages or [None] * len(leaves(calls)), line_length)
