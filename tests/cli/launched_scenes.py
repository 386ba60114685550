"""What each process does that `test_launch.py` starts: `launched_scenes.py scene [argument...]`.

Without JAX, which takes seconds to import.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

TOLD = json.loads(os.environ["MILLRACE_LAUNCH"])
INDEX = TOLD["process_id"]
DIRECTORY = pathlib.Path(TOLD["directory"])


def nothing():
    pass


def cores():
    print(sorted(os.sched_getaffinity(0)))


def told(*arguments):
    print(TOLD, list(arguments))


def connected():
    (DIRECTORY / f"initialized-{INDEX}").touch()


def failure():
    print("last words", INDEX)
    sys.exit(3 * INDEX)


def killed():
    if INDEX == 0:
        os.kill(os.getpid(), 9)


def note_of_a_failure():
    if INDEX == 1:
        (DIRECTORY / "failed").write_text("1\nno memory")
    time.sleep(INDEX)
    sys.exit(4 + INDEX)


def unfinished_note():
    if INDEX == 1:
        (DIRECTORY / "failed").touch()
        sys.exit(3)


def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if INDEX == 1:
        sys.exit(3)
    print(os.getpid(), flush=True)
    time.sleep(1000)


def child():
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    print(started.pid)
    started.returncode = 0  # or Python would warn


def count_run():
    """Notes this run in the directory of the launcher; returns how many there were before."""
    run = len(list(DIRECTORY.glob(f"run-{INDEX}-*")))
    (DIRECTORY / f"run-{INDEX}-{run}").write_text(TOLD["coordinator_address"])
    return run


def failures(number):
    run = count_run()
    print("run", run)
    if INDEX == 1 and run < int(number):
        sys.exit(5)


def failure_of_each_run(how):
    count_run()
    if INDEX == 0 and how.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[how])
    elif INDEX == 0:
        sys.exit(int(how))


def notes_of_the_first_run():
    if count_run():
        sys.exit(4 - 4 * INDEX)
    if INDEX == 1:
        (DIRECTORY / "failed").write_text("1\nno memory")
        (DIRECTORY / "initialized-1").touch()
        sys.exit(3)


def listen(name):
    """Returns after the signal, and after a while in which it could come again."""
    counted = []

    def count(number, frame):
        counted.append(number)
        print("received", number, flush=True)

    signal.signal(signal.Signals[name], count)
    (DIRECTORY / f"ready-{INDEX}").touch()
    while not counted:
        time.sleep(0.01)
    time.sleep(0.3)


def saves(name):
    listen(name)
    print("saved")
    sys.exit(143)


def reader():
    started = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    listen("SIGTERM")
    print(started.poll())


def sleeps(name, *indices):
    """The processes of these numbers do not end by themselves."""
    listen(name)
    if str(INDEX) in indices:
        time.sleep(1000)


def failure_and_signal():
    if INDEX == 1:
        sys.exit(3)
    listen("SIGTERM")


def wait(how="plain"):
    if how == "counts":
        signal.signal(
            signal.SIGINT, lambda *_: (DIRECTORY / f"got-{INDEX}").open("a").write("got\n")
        )
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    elif how == "ends with its launcher":
        from millrace.run.processes.agreement import Launched

        Launched.take().end_with_launcher()
    print(os.getpid(), flush=True)
    (DIRECTORY / f"pid-{INDEX}").write_text(str(os.getpid()))
    time.sleep(1000)


globals()[sys.argv[1]](*sys.argv[2:])
