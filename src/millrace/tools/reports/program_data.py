"""The memory, the operations and the compilations of a run's programs, as a page shows them."""

from collections.abc import Sequence

import numpy as np

from millrace.base.records.codec import encode
from millrace.base.records.memory import by_layer
from millrace.base.records.operations import ProgramOperations
from millrace.base.records.program_memory import ProgramMemory
from millrace.base.records.run import RunRecords
from millrace.tools.reports.columns import Columns
from millrace.tools.reports.shortened import fields_of, shortened
from millrace.tools.reports.thinning import kept_points

PROFILES = 400
POINTS = 2000  # of a curve
_POINTS_IN_ALL = 60_000
_TENSORS, _TENSORS_IN_ALL = 300, 6000


def memory_data(run: RunRecords, columns: Columns) -> dict[str, object]:
    """Returns the curves of all programs, and the tensors that are alive at their peaks."""
    profiles = run.memory_profiles[-PROFILES:]
    points = min(POINTS, max(_POINTS_IN_ALL // max(len(profiles), 1), 100))
    tensors = min(_TENSORS, max(_TENSORS_IN_ALL // max(len(profiles), 1), 20))
    return {
        "profiles": [_profile(each, points, tensors, columns) for each in profiles],
        "in_all": len(run.memory_profiles),
        "reports": [
            fields_of(each, "model", "batch", "verdict", "changes")
            for each in run.memory_reports[-20:]
        ],
        "budgets": shortened(encode(run.budgets[-20:])),
    }


def _profile(
    profile: ProgramMemory, most: int, tensors: int, columns: Columns
) -> dict[str, object]:
    length = min((len(area.curve) for area in profile.areas), default=0)
    areas = {area.role: np.array(area.curve[:length], np.float64) for area in profile.areas}
    curve = np.sum(list(areas.values()), axis=0) if areas else np.zeros(0)
    points = kept_points(curve, most, [profile.point])
    inside = 0 <= profile.point < length
    return {
        **fields_of(profile, "model", "program", "stage", "recomputation", "requirement"),
        **fields_of(profile, "is_trial", "attributed"),
        "devices": [shortened(each) for each in profile.devices[:64]],
        "length": length,
        "program_points": max(profile.num_points, length),
        "point": profile.point if inside else None,
        "peak": float(curve[profile.point]) if inside else profile.requirement,
        "points": columns.counts(points),
        "areas": [
            {"role": role, "curve": columns.floats(values[points])}
            for role, values in areas.items()
        ],
        "segments": _segments(profile, columns),
        **_alive(profile, tensors),
    }


def _segments(profile: ProgramMemory, columns: Columns) -> dict[str, object]:
    segments = sorted(profile.segments, key=lambda each: each.first)
    layers = list(dict.fromkeys(each.layer for each in segments))
    kinds = list(dict.fromkeys(each.kind for each in segments))
    number = {layer: k for k, layer in enumerate(layers)}
    return {
        "first": columns.counts(max(each.first, 0) for each in segments),
        "layer": columns.counts(number[each.layer] for each in segments),
        "kind": columns.counts(kinds.index(each.kind) for each in segments),
        "layers": [shortened(each) for each in layers],
        "kinds": kinds,
    }


def _alive(profile: ProgramMemory, most: int) -> dict[str, object]:
    shown, others = profile.alive[:most], profile.alive[most:]
    layers = by_layer(profile.alive)
    return {
        "tensors": [shortened(encode(each)) for each in shown],
        "other_tensors": [len(others), sum(each.nbytes for each in others)],
        "layers": [[shortened(each.layer), each.nbytes, each.tensors] for each in layers[:most]],
        "other_layers": [len(layers[most:]), sum(each.nbytes for each in layers[most:])],
    }


_GROUPS = 20_000  # of operations, of all programs
_GROUP = ("owner", "role", "kind", "operations", "flops", "bytes", "seconds")  # its columns


def operations_data(programs: Sequence[ProgramOperations]) -> list[dict[str, object]]:
    """Returns the operations of each program, a row for each layer or purpose and pass."""
    most = max(_GROUPS // max(len(programs), 1), 20)
    return [_operations(each, most) for each in programs[-200:]]


def _operations(program: ProgramOperations, most: int) -> dict[str, object]:
    groups = sorted(program.groups, key=lambda g: (-(g.seconds or 0), -g.flops, -g.bytes))
    return {
        **fields_of(program, "model", "program", "stage", "steps", "calls"),
        **fields_of(program, "traced_seconds", "overhead"),
        "left_out": max(len(groups) - most, 0),
        "groups": [list(fields_of(each, *_GROUP).values()) for each in groups[:most]],
    }
