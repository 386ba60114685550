"""Connects two processes of a run that are on one machine.

    process 0                                       process 1
    listens at a random name of the machine
    name and token  ──── store of the run ────>     connects to the name, if it is there
                    <──────── token ──────────
                    <── store: yes or no ──────

A name without a file ("abstract") ends with its process. It belongs to the network namespace: two
containers on one machine do not see each other's, and so count as two machines. Any process of the
machine may connect, so the token, which only processes of the run can read, comes first.
"""

import collections
import contextlib
import itertools
import json
import secrets
import socket
from collections.abc import Iterator

import jax

from millrace._compat.jax_processes import key_value_store, process_index
from millrace.errors import ProcessError

_SECONDS = 300  # for the other process to come
_TOKEN_SECONDS = 5.0
_WAITING = 16  # connections that have not been accepted
# Connections so far, by process and pair: the two may connect again after an error.
_numbers: dict[tuple[int, str], Iterator[int]] = collections.defaultdict(itertools.count)


def connect_locally(process: int, is_able: bool = True) -> socket.socket | None:
    """Returns a socket to another process; None if the two do not see each other.

    Both processes call this, and wait for each other. The socket keeps the bounds of messages.

    Args:
        process: number of the other process.
        is_able: whether this process can use it. If one of the two cannot, both get None.

    Raises:
        ProcessError: if the other process does not come in time.
    """
    here = process_index()
    pair = f"millrace/channel/{min(here, process)}-{max(here, process)}"
    key = f"{pair}/{next(_numbers[here, pair])}"
    try:
        return (_invite if here < process else _accept)(key, is_able)
    except jax.errors.JaxRuntimeError as error:
        raise ProcessError(
            f"Process {here} waited {_SECONDS} seconds for process {process} to connect. Run the "
            "same script in every process: fit, evaluate and predict must be called by all of "
            "them."
        ) from error


def _invite(key: str, is_able: bool) -> socket.socket | None:
    """Offers a name to the other process, and returns the connection if it has come."""
    store, token = key_value_store(), secrets.token_hex(16)
    with contextlib.ExitStack() as stack:
        name, server = "", None
        if is_able:
            with contextlib.suppress(OSError, AttributeError):
                server = stack.enter_context(_socket())
                server.bind(_path(name := f"millrace-{secrets.token_hex(16)}"))
                server.listen(_WAITING)
        store.key_value_set(key, json.dumps([name if server is not None else "", token]))
        answer = store.blocking_key_value_get(f"{key}/answer", int(1000 * _SECONDS))
        while server is not None and answer == "yes":
            server.settimeout(_TOKEN_SECONDS)
            connected, _ = server.accept()
            connected.settimeout(_TOKEN_SECONDS)
            with contextlib.suppress(OSError):
                if secrets.compare_digest(connected.recv(len(token)), token.encode()):
                    return connected
            connected.close()  # a stranger
    return None


def _accept(key: str, is_able: bool) -> socket.socket | None:
    """Connects to the name that the other process offers, and answers whether that worked."""
    store = key_value_store()
    name, token = json.loads(store.blocking_key_value_get(key, int(1000 * _SECONDS)))
    connected = None
    if name and is_able:
        with contextlib.suppress(OSError, AttributeError):
            connected = _socket()
            try:
                connected.connect(_path(name))
                connected.sendall(token.encode())
            except OSError:  # another machine
                connected.close()
                connected = None
    store.key_value_set(f"{key}/answer", "no" if connected is None else "yes")
    return connected


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _path(name: str) -> str:
    return f"\0{name}"
