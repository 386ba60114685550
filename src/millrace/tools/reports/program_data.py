"""The operations of the programs of a run, and its compilations, as a page shows them."""

from collections.abc import Sequence

from millrace.base.records.codec import encode
from millrace.base.records.compilation import CompileRecord
from millrace.base.records.operations import ProgramOperations
from millrace.tools.reports.shortened import shortened

COMPILATIONS = 1500
_GROUPS = 20_000  # of operations, of all programs


def operations_data(programs: Sequence[ProgramOperations]) -> list[dict[str, object]]:
    """Returns the operations of each program, a row for each layer or purpose and pass."""
    most = max(_GROUPS // max(len(programs), 1), 20)
    return [_operations(each, most) for each in programs[-200:]]


def _operations(program: ProgramOperations, most: int) -> dict[str, object]:
    groups = sorted(program.groups, key=lambda g: (-(g.seconds or 0), -g.flops, -g.bytes))
    return {
        "model": shortened(program.model),
        "program": shortened(program.program),
        "stage": program.stage,
        "steps": program.steps,
        "calls": program.calls,
        "traced_seconds": encode(program.traced_seconds),
        "overhead": encode(program.overhead),
        "left_out": max(len(groups) - most, 0),
        "groups": [
            [
                shortened(g.owner),
                g.role,
                g.kind,
                g.operations,
                encode(g.flops),
                encode(g.bytes),
                encode(g.seconds),
            ]
            for g in groups[:most]
        ],
    }


def compilations_data(records: Sequence[CompileRecord]) -> list[object]:
    """Returns the latest compilations."""
    return [shortened(encode(each), 1500) for each in records[-COMPILATIONS:]]
