"""Scopes of IPU programs.

ipu_scope("/device:IPU:0")        where ipu_compiler.compile runs: the devices of the system
ipu_shard(1)                      a replica takes that many devices and one; -> pipelining_ops
outside_compilation_scope()       part of the program all the same; -> jax.pure_callback
stochastic_rounding, partials_type, frontend_attribute     of no effect
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax

from millrace.errors import OptionError
from millrace.ipu.config import current_system
from millrace.ipu.inert import inert
from millrace.ipu.scopes_without_effect import frontend_attribute as frontend_attribute
from millrace.ipu.scopes_without_effect import (
    outside_compilation_scope as outside_compilation_scope,
)
from millrace.ipu.scopes_without_effect import partials_type as partials_type
from millrace.ipu.scopes_without_effect import stochastic_rounding as stochastic_rounding
from millrace.options import whole_number
from millrace.programs.replication import current_launch
from millrace.strategy.strategy import strategy_in_scope

_devices: ContextVar[tuple[jax.Device, ...] | None] = ContextVar("ipu_devices", default=None)


def placed_on() -> tuple[jax.Device, ...] | None:
    """Returns the devices of the scope around: of an `ipu_scope` or a strategy; None without."""
    strategy = strategy_in_scope()
    return _devices.get() or (None if strategy is None else strategy.devices)


@contextmanager
def ipu_scope(device: str = "/device:IPU:0") -> Iterator[None]:
    """Places what is compiled inside on the devices of a logical device of the system."""
    match, groups = re.fullmatch(r"/device:IPU:(\d+)", device), current_system().groups
    if match is None or int(match[1]) >= len(groups):
        raise OptionError(
            f"ipu_scope() takes '/device:IPU:0' up to {len(groups) - 1}, for each logical device "
            f"of the system. Received: {device!r}. Configure more with auto_select_ipus=[1, 1]."
        )
    token = _devices.set(groups[int(match[1])])
    try:
        with jax.default_device(groups[int(match[1])][0]):
            yield
    finally:
        _devices.reset(token)


@contextmanager
def ipu_shard(index: int) -> Iterator[None]:
    """Says that a replica of the program takes at least `index + 1` devices.

    Of these one computes: operations are not placed one by one. A pipeline places its stages.
    """
    index, launch = whole_number("index", index, 0), current_launch()
    inert("ipu_shard", "A replica computes on one device: set pipelining_ops.pipeline() for more.")
    if launch is not None:
        launch.shards = max(launch.shards, index + 1)
    yield
