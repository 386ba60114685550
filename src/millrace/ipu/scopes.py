"""Scopes of IPU programs.

ipu_scope("/device:IPU:0")        where ipu_compiler.compile runs: the devices of the system
ipu_shard(1)                      a replica takes that many devices and one; -> pipelining_ops
outside_compilation_scope()       part of the program all the same; -> jax.pure_callback
stochastic_rounding, partials_type, frontend_attribute     of no effect
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar

import jax

from millrace.ipu.config import current_system
from millrace.ipu.inert import inert
from millrace.ipu.scopes_without_effect import frontend_attribute as frontend_attribute
from millrace.ipu.scopes_without_effect import (
    outside_compilation_scope as outside_compilation_scope,
)
from millrace.ipu.scopes_without_effect import partials_type as partials_type
from millrace.ipu.scopes_without_effect import stochastic_rounding as stochastic_rounding
from millrace.loops.replicated_function import current_launch
from millrace.options import whole_number
from millrace.strategy.strategy import strategy_in_scope
from millrace.tensorflow.graph_mode import in_graph_mode

_device: ContextVar[str | None] = ContextVar("ipu_device", default=None)


def placed_on() -> Callable[[], tuple[jax.Device, ...]] | None:
    """Returns what gives the devices of the scope around: an `ipu_scope` or a strategy; or None.

    A program of TensorFlow 1 may configure the system after it has built what is to run there.
    """
    device, strategy = _device.get(), strategy_in_scope()
    if device is not None:
        return lambda: current_system().devices_of(device)
    return None if strategy is None else lambda: strategy.devices


@contextmanager
def ipu_scope(device: str = "/device:IPU:0") -> Iterator[None]:
    """Places what is compiled inside on the devices of a logical device of the system."""
    here = nullcontext()
    if not in_graph_mode():
        here = jax.default_device(current_system().devices_of(device)[0])
    token = _device.set(device)
    try:
        with here:
            yield
    finally:
        _device.reset(token)


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
