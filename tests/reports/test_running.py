"""Whether a run is still running, and how its loops have ended."""

import dataclasses
import os
import pathlib
import socket
import subprocess
import sys
import time

import pytest

from millrace.base.records.loops import LoopRecord, ProcessRecord
from millrace.base.records.run import RunRecords
from millrace.tools.reports.running import outcome_of, run_outcome, run_state


def process(**fields):
    values = {"process": 0, "pid": os.getpid(), "host": socket.gethostname(), "cores": 1}
    return ProcessRecord(
        **{**values, "began": time.time(), "platform": "cpu", "devices": ("cpu:0",), **fields}
    )


def of(*processes):
    return RunRecords(path=pathlib.Path("run"), processes=processes)


def test_whether_a_run_goes_on():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    pid = gone.pid
    gone.wait()
    assert run_state(of(process(pid=pid))) == "ended"
    assert run_state(of()) == "unknown"
    assert run_state(of(process())) == "running"
    assert run_state(of(process(host="elsewhere"))) == "unknown"
    assert run_state(of(process(), process(process=1, pid=pid))) == "running"
    assert run_state(of(process(pid=pid), process(process=1, pid=pid))) == "ended"
    # Of a run that was started again in the same directory, the later process counts.
    assert run_state(of(process(), process(pid=pid))) == "ended"
    assert run_state(of(process(pid=-1))) == "ended"
    assert run_state(of(process(host="elsewhere", ended=time.time()))) == "ended"


GONE, ALIVE, FAR = {"pid": -1}, {}, {"host": "elsewhere"}
FINISHED = {"ended": 300.0, "outcome": "finished"}


@pytest.mark.parametrize(
    ("processes", "last", "of_loop", "of_run"),
    [
        ([GONE], {}, "killed", "killed"),
        ([ALIVE], {}, "running", "running"),
        ([FAR], {}, "running or killed", "running or killed"),
        ([], {}, "running or killed", "running or killed"),
        ([{**FAR, "ended": 400.0}], FINISHED, "finished", "finished"),
        ([ALIVE], FINISHED, "finished", "running"),  # another loop may follow
        ([{**ALIVE, "ended": 400.0}], FINISHED, "finished", "finished"),
        ([GONE], FINISHED, "finished", "finished"),
        ([GONE, {**ALIVE, "began": 500.0}], {}, "killed", "running"),  # it was started again
        ([{**ALIVE, "ended": 400.0}, {**ALIVE, "process": 1}], FINISHED, "finished", "finished"),
    ],
)
def test_how_a_loop_and_its_run_ended(processes, last, of_loop, of_run):
    loop = LoopRecord(number=0, model="mlp", mode="train", began=200.0, **last)
    run = of(*(process(**{"began": 100.0, **each}) for each in processes))
    run = dataclasses.replace(run, loops=(loop,))
    assert (outcome_of(run, loop), run_outcome(run)) == (of_loop, of_run)
