"""Records of a run: written, killed in the middle, read."""

import json

import pytest

import millrace
from millrace.base.records.compilation import CompileRecord
from millrace.base.records.directory import KINDS, RunDirectory
from millrace.base.records.flight import FlightNote
from millrace.base.records.loops import EpochRecord, LoopRecord
from millrace.base.records.memory import LiveBuffer
from millrace.base.records.program_memory import MemoryArea, ProgramMemory, ProgramSegment
from millrace.base.records.tensors import Tensor, TensorSeries
from millrace.base.records.timeline import Span
from millrace.base.records.trace import ActivitySpan, ExecutionTrace
from millrace.errors import DataError

pytestmark = pytest.mark.quick

LOOP = LoopRecord(
    number=0, model="mlp", mode="train", began=5.0, options={"steps_per_execution": "2"}
)
MEMORY = ProgramMemory(
    model="mlp",
    program="train_run",
    requirement=50,
    areas=(MemoryArea("parameters", (10, 10, 10)), MemoryArea("activations", (0, 30, 20))),
    point=1,
    alive=(LiveBuffer("tanh.1", 30, "dense", "fusion", inferred=True),),
    segments=(ProgramSegment(0, "dense", "forward"),),
)


def trace(process=0, began=100.0, **fields):
    return ExecutionTrace(
        model="mlp",
        mode="train",
        loop=0,
        epoch=1,
        update=3,
        began=began,
        num_groups=2,
        process=process,
        spans=(Span(process, "F", 0, process, 0.0, 1.0),),
        activities=(ActivitySpan("host", "dispatch", 0.0, 0.5),),
        **fields,
    )


def test_records_come_back_as_they_were(tmp_path):
    nan = float("nan")
    series = TensorSeries(
        model="mlp",
        tensor=Tensor("loss", ""),
        epoch=1,
        steps=(0, 1),
        values=((1.0, nan), (2.5, float("inf"))),
    )
    directory = RunDirectory(tmp_path / "run")
    for record in (LOOP, MEMORY, trace(), series):
        directory.add(record)
    run = millrace.records.load(tmp_path / "run")
    assert run.loops == (LOOP,)
    assert run.memory_profiles == (MEMORY,)
    assert run.traces == (trace(),)
    assert str(run.tensors[0].values) == "((1.0, nan), (2.5, inf))"
    assert run.memory["train"].peak.tensors[0].layer == "dense"
    assert run.memory["train_run"].peak.bytes == 40
    assert run.timeline.bubble == 0.5
    assert run.damaged == {}


def test_the_last_record_of_a_loop_holds(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.add(LOOP)
    ended = LoopRecord(number=0, model="mlp", mode="train", began=5.0, ended=7.0, outcome="failed")
    directory.add(ended)
    assert millrace.records.load(tmp_path).loops == (ended,)


def test_a_line_that_was_cut_off_costs_that_record_only(tmp_path):
    epochs = [EpochRecord(loop=0, epoch=n, ended=float(n), logs={"loss": 0.5}) for n in (1, 2, 3)]
    directory = RunDirectory(tmp_path)
    directory.add(epochs[0])
    directory.add(epochs[1])
    file = tmp_path / "epochs.jsonl"
    file.write_bytes(file.read_bytes()[:-9])  # killed while writing
    RunDirectory(tmp_path).add(epochs[2])  # and started again
    run = millrace.records.load(tmp_path)
    assert run.epochs == (epochs[0], epochs[2])
    assert run.damaged == {"epochs.jsonl": 1}


def test_processes_write_files_of_their_own(tmp_path):
    for process, began in enumerate((100.0, 100.25)):
        RunDirectory(tmp_path, process).add(trace(process, began))
    (together,) = millrace.records.load(tmp_path).traces
    assert together.spans == (Span(0, "F", 0, 0, 0.0, 1.0), Span(1, "F", 0, 1, 0.25, 1.25))
    assert [each.row for each in together.activities] == ["host of process 0", "host of process 1"]


def test_a_run_that_was_started_again_keeps_its_traces_apart(tmp_path):
    for began in (100.0, 900.0):
        RunDirectory(tmp_path).add(trace(0, began))
    assert [each.began for each in millrace.records.load(tmp_path).traces] == [100.0, 900.0]


def test_the_newest_of_several_runs_is_read(tmp_path):
    for name in ("first", "second"):
        RunDirectory(tmp_path / name).add(LOOP)
    assert millrace.records.load(tmp_path).path == tmp_path / "second"


def test_a_full_disk_does_not_end_the_run(tmp_path, caplog):
    directory = RunDirectory(tmp_path)
    (tmp_path / "loops.jsonl").mkdir()  # cannot be written to
    directory.add(LOOP)
    directory.add(LOOP)
    (message,) = caplog.messages
    assert message.startswith(f"Records are no longer written to {tmp_path}: ")


@pytest.mark.parametrize(
    "header", [{"version": 2}, {"kind": "epochs"}, {"version": "1"}], ids=["version", "kind", "str"]
)
def test_records_of_a_newer_millrace(tmp_path, header):
    first = {"format": "millrace records", "version": 1, "kind": "loops"} | header
    (tmp_path / "loops.jsonl").write_text(json.dumps(first) + "\n")
    with pytest.raises(DataError, match=r"loops\.jsonl has records of version.*or a newer one"):
        millrace.records.load(tmp_path)


@pytest.mark.parametrize("exists", [True, False])
def test_a_directory_without_records(tmp_path, exists):
    path = tmp_path if exists else tmp_path / "absent"
    with pytest.raises(DataError, match=r"report_dir=.*MILLRACE_REPORT_DIR"):
        millrace.records.load(path)


def test_fields_of_a_newer_version_are_left_out_and_missing_ones_have_defaults(tmp_path):
    record = {"model": "m", "directory": "d", "text": "t", "time": 1, "color": "red"}
    (tmp_path / "flights.jsonl").write_text(json.dumps(record) + "\n")
    (flight,) = millrace.records.load(tmp_path).flights
    assert flight == FlightNote(model="m", directory="d", text="t", time=1.0)


def test_every_kind_is_a_field_of_a_run():
    names = {"memory": "memory_profiles", "compile_log": "compilations"}
    fields = millrace.base.records.run.RunRecords.__dataclass_fields__
    assert {names.get(kind, kind) for kind in KINDS} <= set(fields)
    assert CompileRecord in KINDS.values()
