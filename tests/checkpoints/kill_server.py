"""Kills trainings at random and starts them again, each time in a process that starts at once.

This process has imported everything and started no thread; it forks for each start. It answers each
line of JSON with a line:

    {"kind": "pipeline", "seed": 3, "kills": 5, "work": DIR}
"""

import functools
import json
import os
import random
import select
import shutil
import signal
import sys
import time
import traceback

import training_runs

LONGEST = 120  # seconds in which a training has to continue
PACE = 0.5  # seconds of an epoch that are spent waiting, so that saves lie beside them


def start(kind, path):
    """Starts a training; returns its process and the descriptor of its lines."""
    here, there = os.pipe()
    pid = os.fork()
    if pid:
        os.close(there)
        return pid, here
    status = 3
    try:
        os.dup2(2, 1)
        os.close(here)
        pace = PACE * training_runs.KINDS[kind].executed / 24
        digest = training_runs.fit(path, kind=kind, log=there, pace=pace)
        os.write(there, f"end {digest}\n".encode())
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def read(descriptor, lines, number):
    """Reads lines until there are so many more; returns whether the training got that far."""
    wanted = len(lines) + number
    rest = b""
    while len(lines) < wanted or rest:
        ready, _, _ = select.select([descriptor], [], [], LONGEST)
        if not ready:
            raise TimeoutError("the training hangs")
        part = os.read(descriptor, 1 << 16)
        if not part:
            return False
        *whole, rest = (rest + part).split(b"\n")
        lines.extend(each.decode() for each in whole)
    return True


def run(kind, path, lines, kill=None):
    """Runs a training, up to its end or until it is killed; returns its status."""
    pid, descriptor = start(kind, path)
    try:
        if kill is not None:
            number, seconds = kill
            if read(descriptor, lines, number):
                time.sleep(seconds)
            os.kill(pid, signal.SIGKILL)
        read(descriptor, lines, sys.maxsize)
    except TimeoutError as error:
        os.kill(pid, signal.SIGKILL)
        lines.append(f"broken {error}")
    os.close(descriptor)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@functools.cache
def without_a_break(kind):
    lines = []
    status = run(kind, None, lines)
    return status, lines


def killed_run(job):
    kind, path = job["kind"], job["work"]
    generator = random.Random(job["seed"])
    status, expected = without_a_break(kind)
    if status:
        return {"status": status, "lines": expected}
    kills, lines, statuses = 0, [], []
    for _ in range(job["kills"]):
        number = generator.choice([0, 1, *range(2, max(len(expected) // 3, 4))])
        # before the first step: somewhere in its start
        seconds = generator.uniform(0, 0.05 if number else 1.0)
        statuses.append(run(kind, path, lines, (number, seconds)))
        kills += statuses[-1] == -signal.SIGKILL
        if statuses[-1] == 0:
            break
    statuses.append(run(kind, path, lines))
    remains = sorted(os.listdir(path))
    shutil.rmtree(path)
    return {
        "status": 0, "kills": kills, "statuses": statuses, "expected": expected, "lines": lines,
        "names": remains,
    }  # fmt: skip


def main():
    assert len(os.listdir("/proc/self/task")) <= 3, "a thread that a fork does not have"
    for line in sys.stdin:
        print(json.dumps(killed_run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
