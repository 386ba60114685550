"""Records whose types are right and whose numbers cannot be shown are left out, and counted."""

import dataclasses
import json
import math

import pytest

from millrace.base.records.codec import decode, encode
from millrace.base.records.compilation import CompileRecord
from millrace.base.records.directory import KINDS, RunDirectory
from millrace.base.records.flight import FlightNote
from millrace.base.records.loops import EpochRecord
from millrace.base.records.memory_report import DeviceMemory, MemoryReport
from millrace.base.records.program_memory import MemoryArea, ProgramMemory
from millrace.base.records.run import last_loop, load
from millrace.base.records.timeline import Span
from millrace.base.records.trace import ActivitySpan, ExecutionTrace
from millrace.base.records.validity import check_record

pytestmark = pytest.mark.quick

SPAN = Span(0, "F", 0, 0, 0.0, 1.0)
TRACE = ExecutionTrace(
    model="m", mode="train", loop=0, epoch=1, update=0, began=1.0, num_groups=1, spans=(SPAN,)
)
MEMORY = ProgramMemory(
    model="m", program="p", requirement=2, areas=(MemoryArea("other", (1, 2)),), point=1, alive=()
)
EPOCH = EpochRecord(loop=0, epoch=1, ended=1.0)


def span(**fields):
    return dataclasses.replace(TRACE, spans=(dataclasses.replace(SPAN, **fields),))


@pytest.mark.parametrize(
    ("kind", "record", "reason"),
    [
        ("traces", dataclasses.replace(TRACE, num_groups=10**12), "1000000000000 device groups"),
        ("traces", dataclasses.replace(TRACE, num_groups=-1), "-1 device groups"),
        ("traces", span(group=1), "device group 1"),
        ("traces", span(group=-1), "device group -1"),
        ("traces", span(stage=10**9), "stage 1000000000"),
        ("traces", span(kind="X"), "unknown pass"),
        ("traces", span(start=math.nan), "at no time"),
        ("traces", span(end=math.inf), "at no time"),
        ("traces", dataclasses.replace(TRACE, spans=(SPAN,) * 2000), "too many times"),
        (
            "traces",
            dataclasses.replace(TRACE, activities=(ActivitySpan("host", "x", -math.inf, 1.0),)),
            "at no time",
        ),
        ("memory", dataclasses.replace(MEMORY, point=2), "at none of its points"),
        ("memory", dataclasses.replace(MEMORY, point=-1), "at none of its points"),
        ("memory", dataclasses.replace(MEMORY, areas=(MemoryArea("other", ()),), point=0), "curve"),
        (
            "memory",
            dataclasses.replace(MEMORY, areas=(*MEMORY.areas, MemoryArea("batches", (1,)))),
            "different lengths",
        ),
        ("memory_reports", MemoryReport("m", "8", (DeviceMemory((), "p", (), ()),)), "no name"),
        ("epochs", dataclasses.replace(EPOCH, ended=1e300), "which is no time"),
        ("epochs", dataclasses.replace(EPOCH, ended=math.nan), "which is no time"),
        ("flights", FlightNote(model="m", directory="", text="", time=-math.inf), "no time"),
        (
            "compile_log",
            CompileRecord("m", "p", "b", 1, None, 0.0, 0.0, 0, began=1e18),
            "which is no time",
        ),
    ],
)
def test_what_cannot_be_shown(tmp_path, kind, record, reason):
    with pytest.raises(ValueError, match=reason):
        check_record(record)
    if kind != "compile_log":  # whose reader refuses the file
        RunDirectory(tmp_path).add(record, record)
        run = load(tmp_path)
        assert dict(run.damaged) == {f"{kind}.jsonl": 2}


def test_what_can_be_shown():
    for record in (TRACE, MEMORY, EPOCH):
        check_record(record)


@pytest.mark.parametrize(
    "value", [10**400, 2**63, -(2**63), "x", None, True, [], {}, [[[]]], math.inf]
)
def test_what_is_no_count(value):
    fields = {**encode(EPOCH), "epoch": value}
    with pytest.raises(ValueError, match=r"\w") as error:
        decode(EpochRecord, fields)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("value", [10**400, "1e", None, True, [], {}])
def test_what_is_no_number(value):
    with pytest.raises(ValueError, match=r"\w"):
        decode(EpochRecord, {**encode(EPOCH), "ended": value})


@pytest.mark.parametrize("line", ["[" * 100_000, '{"a":' * 2000, "9" * 5000, "1", "null", "[1]"])
def test_lines_that_are_no_objects(tmp_path, line):
    directory = RunDirectory(tmp_path)
    directory.add(EPOCH)
    for kind in KINDS:
        if kind != "compile_log":
            with (tmp_path / f"{kind}.jsonl").open("a") as file:
                file.write(f"{line}\n")
    assert len(load(tmp_path).epochs) == 1
    assert last_loop(tmp_path, 0) == -1


def test_a_number_of_a_loop_that_none_has(tmp_path):
    (tmp_path / "loops.jsonl").write_text(
        "\n".join(json.dumps({"number": n}) for n in (3, 10**300, True, "7", None))
    )
    assert last_loop(tmp_path, 0) == 3
