"""Connects the processes of a run when a program first asks for them."""

import functools

import jax

from millrace import distributed
from millrace.extend import Launched, backends_are_initialized


@functools.cache
def connect() -> None:
    """Connects this process with the others of its run, if there are others and it is not yet.

    Raises:
        DeviceError: if a launcher started this process, and JAX has started too early.
    """
    if jax.distributed.is_initialized():
        return
    if Launched.exists() or not backends_are_initialized():
        distributed.initialize()
