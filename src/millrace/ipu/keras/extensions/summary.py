"""The table of `print_pipeline_stage_assignment_summary` of IPU programs, as lines.

89 wide for a Functional, 60 for a Sequential. It is the first table of
`millrace.pipelines.assignment.summary.summary_lines`, without that of what each stage costs.
"""

from typing import Any

from millrace.pipelines.assignment.assignment import Assignment, scoped_stages
from millrace.pipelines.assignment.calls import find_calls
from millrace.pipelines.assignment.summary import summary_lines


def ipu_summary_lines(
    model: Any, assignment: Assignment | None, line_length: int | None = None
) -> list[str]:
    """Returns the stage of each layer call of a model.

    Args:
        model: the model; a subclassed one must be built.
        assignment: its stages; None leaves them `None`.
        line_length: characters of each line.
    """
    calls = find_calls(model)
    if assignment is None:
        return summary_lines(model, calls, None, line_length)
    stages = scoped_stages(calls) if assignment.stages is None else assignment.stages
    return summary_lines(model, calls, stages, line_length)
