"""Directories and files that no other user can write: executables are code, and run as this user.

    make_private(directory)      makes it and its missing parents, mode 0700
    check_private(directory)     refuses one that others can write, or that belongs to another user
    open_private(path)           refuses such a file, by what it has opened and not by its path

Since every file is checked when it is open, the directories above need no check: whoever can rename
those can put only files of their own in place. Root can write everywhere, so its files are trusted.
"""

import errno
import os
import pathlib
import pwd
import shlex
import stat

_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_ENTERED_BY_OTHERS = stat.S_IXGRP | stat.S_IXOTH


class NotPrivateError(Exception):
    """Another user can write a directory or a file; the message has its mode and the remedy."""


def make_private(directory: pathlib.Path) -> None:
    """Makes a directory, and its missing parents, for this user alone.

    Raises:
        OSError: if it cannot be made.
    """
    if directory.is_dir():
        return
    if directory.parent != directory:
        make_private(directory.parent)
    try:
        # `parents=True` would give this mode to the last one only.
        directory.mkdir(mode=0o700)
    except FileExistsError:
        if not directory.is_dir():  # else another process was first
            raise


def check_private(directory: pathlib.Path) -> None:
    """Refuses a directory that other users can write. A missing one passes.

    Raises:
        NotPrivateError: if its mode or its owner permits that.
    """
    try:
        status = directory.stat()  # of the target of a link
    except OSError:  # missing, or not accessible: nothing will be read from it
        return
    _check(directory, status)


def open_private(path: pathlib.Path) -> int:
    """Opens a file that no other user can write, and returns its descriptor.

    Raises:
        OSError: if it cannot be opened.
        NotPrivateError: if other users can write it, or it is a pipe or a device.
    """
    # Without O_NONBLOCK a pipe would wait for its writer.
    flags = os.O_RDONLY | os.O_NONBLOCK
    descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise NotPrivateError(f"{path} is a pipe or a device and not a file. Remove it")
        # Of no use to others if they cannot enter the directory.
        is_open = bool(path.parent.stat().st_mode & _ENTERED_BY_OTHERS)
        _check(path, status, _BY_OTHERS if is_open else 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_private(path: pathlib.Path) -> bytes:
    """Returns the bytes of a file that no other user can write.

    Raises:
        OSError: if it cannot be read.
        NotPrivateError: as `open_private`.
    """
    with open(open_private(path), "rb") as file:
        return file.read()


def _check(path: pathlib.Path, status: os.stat_result, refused: int = _BY_OTHERS) -> None:
    mode, name = f"{stat.S_IMODE(status.st_mode):04o}", shlex.quote(str(path))
    user = os.geteuid()
    if status.st_uid not in (user, 0):
        raise NotPrivateError(
            f"{path} belongs to the user {_name(status.st_uid)} (mode {mode}), who can change "
            f"it. Use one of your own; or, if you trust its content, run `chown -R "
            f"{_name(user)} {name} && chmod go-w {name}`"
        )
    if status.st_mode & refused:
        raise NotPrivateError(
            f"Other users can write to {path} (mode {mode}). If you trust its content, run "
            f"`chmod go-w {name}`"
        )


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
