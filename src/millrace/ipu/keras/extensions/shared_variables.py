"""A variable of layers in several stages is on one device: that of all these stages.

The native pipeline has no such rule: it brings the variable to the other devices.
"""

from typing import Any

from millrace.errors import PlanError
from millrace.pipelines.assignment.assignment import Assignment, scoped_stages
from millrace.pipelines.assignment.calls import find_calls, leaves


def check_shared_variables(model: Any, assignment: Assignment, mapping: Any) -> None:
    """Refuses stages on several devices that use one variable.

    Args:
        model: a pipelined model.
        assignment: its stages.
        mapping: the device of each stage.

    Raises:
        PlanError: naming the variable, the stages and their devices.
    """
    if len(mapping) != assignment.num_stages:
        return  # refused where devices are shared out
    calls = find_calls(model)
    stages = scoped_stages(calls) if assignment.stages is None else assignment.stages
    used: dict[int, tuple[Any, set[int]]] = {}
    for leaf, stage in zip(leaves(calls), stages, strict=True):
        if stage is not None:
            for variable in getattr(leaf.operation, "weights", ()):
                used.setdefault(id(variable), (variable, set()))[1].add(stage)
    for variable, users in used.values():
        devices = [mapping[stage] for stage in sorted(users)]
        if len(set(devices)) > 1:
            raise PlanError(
                f"The variable '{variable.path}' is used in the pipeline stages {sorted(users)}, "
                f"which are on the devices {devices}. Put these stages on one device with "
                "device_mapping in set_pipelining_options(), or their layers into one stage."
            )
