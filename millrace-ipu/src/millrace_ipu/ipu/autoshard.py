"""Automatic sharding: its scope is taken without effect, since a replica computes on one device."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from millrace_ipu.ipu.no_effect import warn_no_effect
from millrace_ipu.ipu.replacements import IPU as _IPU
from millrace_ipu.ipu.replacements import other_name as _other_name


@contextmanager
def ipu_autoshard() -> Iterator[None]:
    """Has no effect: all operations of a replica run on one device."""
    warn_no_effect("ipu_autoshard", f"To spread a model over devices: {_IPU['ipu.autoshard']}.")
    yield


def __getattr__(name: str) -> Any:
    return _other_name(__name__, name)
