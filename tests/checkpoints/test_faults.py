"""Saves in which one operation on files fails, falls short or is the last one of its process.

Each operation is numbered, and the fault is put at each number in turn: no checkpoint that was
complete may be lost, none that is incomplete may be found, and the failure is reported.
"""

import errno
import itertools
import os

import pytest
import servers
from servers import ALL, COUNT, DEAD, FAIL, FULL, KILL_AFTER, KILL_BEFORE, SHORT, SHORT_FAIL, WRITES

from case_marks import exhaustive

STOPPED = -9
FAULTS = {
    "killed before": (KILL_BEFORE, 0, ALL),
    "killed after": (KILL_AFTER, 0, ALL),
    "no space": (FAIL, errno.ENOSPC, ALL),
    "input/output error": (FAIL, errno.EIO, ALL),
    "no space from here on": (FULL, errno.ENOSPC, ALL),
    "input/output errors from here on": (DEAD, errno.EIO, ALL),
    "short write": (SHORT, 0, WRITES),
    "short write, then no space": (SHORT_FAIL, errno.ENOSPC, WRITES),
}
STEPS = {  # of the checkpoints that are there before
    "save": [5, 10], "keep": [5, 10], "replace": [20], "aside": [5, 10, 20], "start": [5, 10],
    "fit": [],
}  # fmt: skip
KEEP = {"keep": 1, "replace": 1}


class Points:
    """Tries faults at points of an action, in a server."""

    def __init__(self, ask, directory):
        self.ask, self.directory = ask, directory
        self.expected = ask({"action": "expected"})
        self.tried = 0
        self._numbers = itertools.count()
        self._templates, self._digests = {}, {}

    def template(self, action):
        if action not in self._templates:
            path = str(self.directory / f"template {action}")
            steps = STEPS[action]
            assert self.ask({"action": "template", "template": path, "steps": steps}) == {
                "status": 0
            }
            self._templates[action] = path
        return self._templates[action]

    def run(self, action, points, in_thread=False):
        answer = self.ask(
            {
                "action": action,
                "template": self.template(action),
                "work": str(self.directory / f"work {next(self._numbers)}"),
                "in_thread": in_thread,
                "keep": KEEP.get(action),
                "points": points,
            }
        )
        assert answer["status"] == 0, answer
        for result in answer["results"]:
            assert "broken" not in result, result
        return answer["results"]

    def count(self, action, kinds=ALL, in_thread=False):
        [result] = self.run(action, [[COUNT, 0, 0, kinds]], in_thread)
        assert result["error"] is None
        CHECKS[action](self, result, None)
        return result["count"]

    def try_all(self, action, fault, in_thread=False, last=None):
        """Tries a fault at each operation; returns the number of them."""
        mode, number, kinds = FAULTS[fault]
        last = last or self.count(action, kinds, in_thread)
        points = [[mode, k, number, kinds] for k in range(1, last + 1)]
        results = self.run(action, points, in_thread)
        met = 0
        for result in results:
            CHECKS[action](self, result, fault)
            met += bool(result["hit"])
        self.tried += met
        return met


def check_restart(points, result, steps, versions=()):
    """The next start finds one of the checkpoints, whole, and leaves nothing partial."""
    restart = result["restart"]
    assert restart["error"] is None, result
    assert restart["step"] in steps, result
    digests = {points.expected[name] for name in (str(restart["step"]), *versions)}
    assert restart["digest"] in digests, result
    for name in restart["names"]:
        assert name == "lock" or not any(f".{kind}-" in name for kind in ("partial", "removed")), (
            result
        )


def check_report(result, fault):
    """A failure is reported with the step, the directory and the reason of the system."""
    if result["error"] is None:
        return
    reason = os.strerror(FAULTS[fault][1])
    assert result["error"].startswith("CheckpointError: The checkpoint of step 20 "), result
    assert reason in result["error"], result
    assert "could not be written to /" in result["error"], result
    assert "Traceback" not in result["error"], result


def check_save(points, result, fault):
    was_killed = result["status"] == STOPPED
    if not was_killed:
        check_report(result, fault)
    is_written = not was_killed and result["error"] is None
    check_restart(points, result, [20] if is_written else [10, 20], ["20 new"])
    assert {"step-00000005", "step-00000010"} <= set(result["restart"]["names"]), result
    if fault == "short write":
        assert is_written, result
    if result["hit"] and fault in ("no space", "no space from here on", "input/output error"):
        # An error at the close of a file that is on the disk, or is only a lock, says nothing new;
        # nor does one in making a directory that is there, or in removing a file that is not.
        harmless = ("close", "unlink", "mkdir")
        assert not is_written or result["hit"].split()[0] in harmless, result


def check_keep(points, result, fault):
    check_restart(points, result, [20], ["20 new"])
    if result["status"] != STOPPED:
        assert result["error"] is None, result


def check_replace(points, result, fault):
    if result["status"] != STOPPED:
        check_report(result, fault)
    check_restart(points, result, [20], ["20 new"])
    if result["status"] != STOPPED and result["error"] is None:
        assert result["restart"]["digest"] == points.expected["20 new"], result


def check_aside(points, result, fault):
    if result["status"] != STOPPED:
        assert result["error"] is None, result
    check_restart(points, result, [5])
    names = set(result["restart"]["names_after"])
    assert names == {"lock", "step-00000005", "step-00000010.damaged", "step-00000020.damaged"}


def check_start(points, result, fault):
    if result["status"] != STOPPED and result["error"] is not None:
        assert result["error"].startswith("CheckpointError: "), result
        assert os.strerror(FAULTS[fault][1]) in result["error"], result
    check_restart(points, result, [10])
    assert set(result["restart"]["names"]) == {"lock", "step-00000005", "step-00000010"}, result


def check_fit(points, result, fault):
    if result["status"] != STOPPED and result["error"] is not None:
        assert result["error"].startswith("CheckpointError: "), result
        assert os.strerror(FAULTS[fault][1]) in result["error"], result
    restart = result["restart"]
    assert restart["error"] is None, result
    assert restart["digest"] == points.without_a_break, result
    assert not [name for name in restart["names"] if "partial" in name or "removed" in name]


CHECKS = {
    "save": check_save, "keep": check_keep, "replace": check_replace, "aside": check_aside,
    "start": check_start, "fit": check_fit,
}  # fmt: skip


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    directory = tmp_path_factory.mktemp("faults")
    library = servers.built(directory)
    with servers.server(
        "fault_server.py",
        directory,
        LD_PRELOAD=str(library),
        MILLRACE_CACHE_DIR=str(directory / "cache"),
    ) as ask:
        yield Points(ask, directory)


@pytest.mark.slow
def test_operations_of_a_save_are_seen(points):
    assert points.count("save") >= 12
    assert points.count("save", WRITES) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("in_thread", [False, True])
def test_every_operation_of_a_save_meets_every_fault(points, in_thread):
    for fault, (_, _, kinds) in FAULTS.items():
        tried = points.try_all("save", fault, in_thread)
        assert tried >= (3 if kinds == WRITES else 12), fault


@pytest.mark.slow
@pytest.mark.parametrize("action", ["keep", "replace", "aside", "start"])
@pytest.mark.parametrize("fault", ["killed before", "no space", "input/output errors from here on"])
def test_faults_beside_a_save(points, action, fault):
    assert points.try_all(action, fault, last=6) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "in_thread"),
    [
        ("killed before", False),
        ("killed before", True),
        ("no space", False),
        exhaustive("no space", True),
    ],
)
def test_fit_goes_on_after_a_fault(points, fault, in_thread):
    points.without_a_break = points.ask(
        {"action": "fit without a break", "path": str(points.directory / f"{fault} {in_thread}")}
    )["digest"]
    mode, number, kinds = FAULTS[fault]
    some = [[mode, k, number, kinds] for k in (1, 10, 20)]
    for result in points.run("fit", some, in_thread):
        check_fit(points, result, fault)
        assert result["hit"], result


@pytest.mark.exhaustive
@pytest.mark.parametrize("action", ["keep", "replace", "aside", "start"])
@pytest.mark.parametrize("fault", [name for name in FAULTS if "short" not in name])
def test_every_operation_beside_a_save_meets_every_fault(points, action, fault):
    tried = points.try_all(action, fault)
    print(f"points: {tried}")
    assert tried >= (2 if action == "aside" else 7)
