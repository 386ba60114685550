"""What a process holds: threads, file descriptors, child processes, files and device arrays."""

import contextlib
import ctypes
import gc
import multiprocessing
import os
import tempfile
import threading
import time
from dataclasses import dataclass

import jax


@dataclass(frozen=True)
class Resources:
    """Counts at one moment; threads and files by name, so that a difference says what is left."""

    threads: tuple[str, ...]
    descriptors: int
    children: int
    files: tuple[str, ...]  # temporary ones, and those in shared memory
    arrays: int

    def is_within(self, other):
        """Whether nothing is here that was not there."""
        return (
            set(self.files) <= set(other.files)
            and len(self.threads) <= len(other.threads)
            and self.descriptors <= other.descriptors
            and self.children <= other.children
            and self.arrays <= other.arrays
        )


def held():
    """Returns what this process holds now."""
    gc.collect()
    multiprocessing.active_children()  # reaps those that have ended
    return Resources(
        threads=tuple(sorted(thread.name for thread in threading.enumerate())),
        descriptors=len(os.listdir("/proc/self/fd")),
        children=_children(),
        files=(*_names(tempfile.gettempdir()), *_shared_memory()),
        arrays=len(jax.live_arrays()),
    )


def held_at_last(before, seconds=3.0):
    """Returns what the process holds, after up to `seconds` in which things may still end."""
    deadline = time.monotonic() + seconds
    while True:
        now = held()
        if now.is_within(before) or time.monotonic() > deadline:
            return now
        time.sleep(0.05)


def resident_bytes():
    """Returns what the process holds in memory, where the system says so in /proc."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _children():
    """Returns the number of child processes of all threads, with those of C libraries."""
    children = 0
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children") as file:
                children += len(file.read().split())
        except OSError:  # the thread has ended, or the system does not say
            continue
    return children


def _names(directory):
    try:
        return [entry.path for entry in os.scandir(directory)]
    except OSError:
        return []


def _shared_memory():
    """Returns the files in shared memory that no other process has in use."""
    files = {name for name in _names("/dev/shm") if os.stat(name).st_uid == os.getuid()}
    for process in _names("/proc") if files else ():
        if process.rpartition("/")[2].isdigit() and process != f"/proc/{os.getpid()}":
            try:
                with open(f"{process}/maps") as maps:
                    files -= {line.split()[-1] for line in maps if "/dev/shm/" in line}
            except OSError:  # of somebody else, or ended
                continue
    return files


def give_back():
    """Gives free memory back to the system, where the C library can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
