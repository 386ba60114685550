"""One writer of a run's directory at a time: a lock of the system, which ends with its process.

one process                     exclusive
processes of one run            shared: each writes files of its own
a process that was forked       none: it closes the lock of its parent
"""

import fcntl
import os
import pathlib

_descriptors: dict[tuple[int, int], int] = {}  # of locked directories, by device and inode


def take(path: pathlib.Path, shared: bool) -> bool:
    """Locks a directory until this process ends; returns whether no other process has locked it.

    A file system without locks locks nothing, and True is returned.

    Args:
        path: of the directory, which exists.
        shared: whether other processes of the run lock it, too.
    """
    status = path.stat()
    key = status.st_dev, status.st_ino
    if key in _descriptors:
        return True
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_NB | (fcntl.LOCK_SH if shared else fcntl.LOCK_EX))
    except OSError as error:
        os.close(descriptor)
        return not isinstance(error, BlockingIOError)
    _descriptors[key] = descriptor
    return True


def _close_all() -> None:
    for descriptor in _descriptors.values():
        os.close(descriptor)
    _descriptors.clear()


# A worker of a data set may outlive its parent, and would keep the directory locked.
os.register_at_fork(after_in_child=_close_all)
