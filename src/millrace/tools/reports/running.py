"""Finds out whether the processes of a run, and its loops, are still alive, seen from this host."""

import os
import socket
from typing import Literal

from millrace.base.records.loops import LoopRecord, ProcessRecord
from millrace.base.records.run import RunRecords

RunState = Literal["running", "ended", "unknown"]


def run_state(run: RunRecords) -> RunState:
    """Returns "ended" once all processes of this host are gone, and "unknown" without any."""
    last = {each.process: each for each in run.processes}  # a run may be started again
    states = {_process_state(each) for each in last.values()}
    for state in ("running", "unknown"):
        if state in states:
            return state
    return "ended" if states else "unknown"


def outcome_of(run: RunRecords, loop: LoopRecord) -> str:
    """Returns the outcome of a loop; "killed" if its process has gone before it ended."""
    if loop.outcome != "running":
        return loop.outcome
    own = [each for each in run.processes if each.process == loop.process]
    # A run may be started again, and clocks may be set.
    begun = [each for each in own if each.began <= loop.began] or own
    state = _process_state(begun[-1]) if begun else "unknown"
    return {"running": "running", "ended": "killed", "unknown": "running or killed"}[state]


def run_outcome(run: RunRecords) -> str:
    """Returns the outcome of the newest loop; "running" if its process may begin another one."""
    first = min((each.process for each in run.loops), default=0)
    loops = [each for each in run.loops if each.process == first]
    if not loops:
        return ""
    own = [_process_state(each) for each in run.processes if each.process == first]
    return "running" if own[-1:] == ["running"] else outcome_of(run, loops[-1])


def _process_state(record: ProcessRecord) -> RunState:
    if record.ended:
        return "ended"
    if record.host != socket.gethostname():
        return "unknown"
    return "running" if _is_alive(record.pid) else "ended"


def _is_alive(pid: int) -> bool:
    """Whether a process of this number is there."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass  # another user's
    except (OSError, OverflowError):
        return False
    return True
