"""Runs saves with faults in them, each in a process of its own that takes no time to start.

This process has imported everything and started no thread; for each fault it forks. It is started
with `faults.c` in front of the C library, reads jobs as lines of JSON and answers each with a line:

    {"action": "save", "template": DIR, "work": DIR, "in_thread": false, "keep": null,
     "points": [[mode, k, errno, kinds], ...]}
"""

import ctypes
import hashlib
import json
import os
import pathlib
import select
import shutil
import signal
import sys
import traceback

import numpy as np
import training_runs

from millrace.base.checkpoints.directory import CheckpointDirectory
from millrace.base.checkpoints.stored import Snapshot
from millrace.base.checkpoints.writer import CheckpointWriter

LONGEST = 120  # seconds of a child
ALL = (1 << 9) - 1  # kinds of operations
faults = ctypes.CDLL(None)


def snapshot(step, version=0):
    random = np.random.default_rng([step, version])
    return Snapshot(
        step=step,
        epoch=step // 10,
        epoch_step=step % 10,
        kind="fit",
        model={"trainable": [random.normal(size=(20, 30)).astype("float32"), np.zeros(3000)]},
        others={"history": [step, version, None], "seed": random.integers(0, 99, 5)},
    )


def digest(model, others):
    text = hashlib.sha256(repr(others).encode())
    for array in model["trainable"]:
        text.update(array.tobytes())
    return text.hexdigest()


def arm(job, point, fd=-1):
    mode, k, number, kinds = point
    faults.fault_arm(os.fsencode(job["path"]), mode, ctypes.c_long(k), number, kinds, fd)


def armed(function, job, point, fd):
    """Returns a function during which there are faults."""

    def run(*args):
        arm(job, point, fd)
        try:
            return function(*args)
        finally:
            faults.fault_disarm()

    return run


# Actions: each runs with faults, in a copy of the template.


def save(job, point, fd):
    directory = CheckpointDirectory(job["path"], job["keep"])
    writer = CheckpointWriter(directory, job["in_thread"])

    def write():
        writer.write(snapshot(20, 1))
        writer.wait()

    with directory.locked():
        armed(write, job, point, fd)()


def keep(job, point, fd):
    directory = CheckpointDirectory(job["path"], job["keep"])
    directory._remove_old = armed(directory._remove_old, job, point, fd)
    with directory.locked():
        directory.write(snapshot(20, 1))


def replace(job, point, fd):
    directory = CheckpointDirectory(job["path"], job["keep"])
    directory._replace = armed(directory._replace, job, point, fd)
    with directory.locked():
        directory.write(snapshot(20, 1))


def aside(job, point, fd):
    directory = CheckpointDirectory(job["path"], job["keep"])
    for step in (10, 20):
        path = directory.path_of(step) / "arrays.safetensors"
        path.write_bytes(path.read_bytes()[:-1])
    armed(directory.newest, job, point, fd)()


def start(job, point, fd):
    """The start of a training, which removes what an earlier one has left."""
    directory = CheckpointDirectory(job["path"], job["keep"])
    path = directory.path_of(10)
    for name in (
        "step-00000020.partial-1",
        "step-00000005.removed-2-1",
        "step-00000010.replaced-3",
    ):
        shutil.copytree(path, path.with_name(name))

    def locked():
        with directory.locked():
            return

    armed(locked, job, point, fd)()


def fit(job, point, fd):
    arm(job, point, fd)
    try:
        training_runs.fit(job["path"], epochs=2, async_save=job["in_thread"], keep=job["keep"])
    finally:
        faults.fault_disarm()


ACTIONS = {each.__name__: each for each in (save, keep, replace, aside, start, fit)}


def error_of(function, *args):
    try:
        function(*args)
    except BaseException as error:
        known = type(error).__name__ == "CheckpointError"
        return f"{type(error).__name__}: {error}" + ("" if known else traceback.format_exc())
    return None


def restart(job, path):
    """Does what the next start does, and returns what it finds."""
    directory = CheckpointDirectory(path, job["keep"])
    names = []

    def begin():
        with directory.locked():
            names.extend(sorted(os.listdir(path)))

    found = {"error": error_of(begin), "names": names}
    try:
        newest = directory.newest()
        assert newest is not None
        checkpoint, values = newest
        found.update(step=checkpoint.manifest.step, digest=digest(*values))
    except Exception:
        found["error"] = traceback.format_exc()
    found["names_after"] = sorted(os.listdir(path))
    return found


def restart_fit(job, path):
    with_checkpoints = training_runs.fit(path, epochs=2, keep=job["keep"])
    return {"digest": with_checkpoints, "names": sorted(os.listdir(path)), "error": None}


def child(function, *args):
    """Runs a function in a fork: returns its status, and what it has written to its descriptor."""
    sys.stdout.flush()
    here, there = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(here)
        status = 3
        try:
            os.dup2(2, 1)  # what libraries print is no answer
            function(*args, there)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(there)
    parts = []
    while True:
        ready, _, _ = select.select([here], [], [], LONGEST)
        if not ready:
            os.kill(pid, signal.SIGKILL)
            parts.append(b"\nhangs")
            break
        part = os.read(here, 1 << 16)
        if not part:
            break
        parts.append(part)
    os.close(here)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), b"".join(parts).decode().splitlines()


def try_point(job, point, fd):
    error = error_of(ACTIONS[job["action"]], job, point, fd)
    os.write(fd, b"\n" + json.dumps({"error": error, "count": faults.fault_count()}).encode())


def restart_all(job, fd):
    function = restart_fit if job["action"] == "fit" else restart
    for path in job["paths"]:
        os.write(fd, json.dumps(function(job, path)).encode() + b"\n")


def make_template(job, fd):
    directory = CheckpointDirectory(job["template"])
    for step in job["steps"]:
        directory.write(snapshot(step))


def make_fit_template(job, fd):
    training_runs.fit(job["template"], epochs=1)


def answer(job):
    if job["action"] == "template":
        status, _ = child(make_template if job["steps"] else make_fit_template, job)
        return {"status": status}
    if job["action"] == "expected":
        digests = [digest(each.model, each.others) for each in (snapshot(5), snapshot(10),
                   snapshot(20), snapshot(20, 1))]  # fmt: skip
        return dict(zip(("5", "10", "20", "20 new"), digests, strict=True))
    if job["action"] == "fit without a break":
        job.update(action="fit", paths=[job["path"]], keep=None)
        status, lines = child(restart_all, job)
        return {"status": status, "digest": json.loads(lines[0])["digest"]}
    results, paths = [], []
    for number, point in enumerate(job["points"]):
        job["path"] = str(pathlib.Path(job["work"]) / f"{number}")
        shutil.copytree(job["template"], job["path"])
        status, lines = child(try_point, job, point)
        result = {"point": point, "status": status, "hit": lines[0] if lines else ""}
        if status == 0:
            result.update(json.loads(lines[-1]))
        elif status != -signal.SIGKILL or "hangs" in lines:
            result["broken"] = lines
        results.append(result)
        paths.append(job["path"])
    status, lines = child(restart_all, {**job, "paths": paths})
    for result, line in zip(results, lines, strict=False):
        result["restart"] = json.loads(line)
    shutil.rmtree(job["work"])
    return {"status": status, "results": results}


def main():
    assert threads() <= 3, "a thread that a fork does not have"
    faults.fault_count.restype = ctypes.c_long
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


def threads():
    return len(os.listdir("/proc/self/task"))


if __name__ == "__main__":
    main()
