"""Two processes with one directory for their records."""

import os
import pathlib
import subprocess
import sys

import pytest

import millrace
from millrace.errors import OptionError
from millrace.tools.recording import in_use


@pytest.fixture
def other(tmp_path):
    """Starts another process that locks the directory; returns whether it could."""
    started = []

    def start(kind):
        script = pathlib.Path(__file__).parent / "lock_script.py"
        command = [sys.executable, str(script), str(tmp_path), kind]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        started.append(process)
        return process.stdout.readline().strip() == "True", process

    yield start
    for process in started:
        process.communicate()


def test_the_second_process_is_refused_until_the_first_has_ended(other, tmp_path):
    locked, process = other("alone")
    assert locked
    with pytest.raises(
        OptionError,
        match=r"is in use by another process that is still running.*"
        r"Set a directory for each process, or set MILLRACE_REPORT_DIR",
    ):
        millrace.Strategy(devices=1, report_dir=tmp_path)
    process.communicate()
    millrace.Strategy(devices=1, report_dir=tmp_path)
    millrace.Strategy(devices=1, report_dir=tmp_path)  # of the same process, as often as wanted
    again, process = other("alone")
    assert not again
    in_use._descriptors.clear()  # this process as another one sees it
    with pytest.raises(OptionError, match=r"in use by another process \(process \d+ on"):
        millrace.Strategy(devices=1, report_dir=tmp_path)


def test_processes_of_one_run_share_it(other, tmp_path):
    assert other("shared")[0]
    assert in_use.take(tmp_path, shared=True)


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    class NoLocks:
        LOCK_NB = LOCK_SH = LOCK_EX = 0

        def flock(self, *arguments):
            raise OSError("no locks")

    monkeypatch.setattr(in_use, "fcntl", NoLocks())
    assert in_use.take(tmp_path, shared=False)


def test_a_process_that_was_forked_does_not_keep_it(tmp_path):
    assert in_use.take(tmp_path, shared=False)
    child = os.fork()
    if not child:
        os._exit(len(in_use._descriptors))
    assert os.waitpid(child, 0)[1] == 0
