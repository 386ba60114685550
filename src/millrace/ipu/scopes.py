"""Scopes of IPU programs.

ipu_scope("/device:IPU:0")      where ipu_compiler.compile runs: the devices of the system
ipu_shard(1)                    a replica takes two devices or more; one of them computes
outside_compilation_scope()     part of the program all the same; use jax.pure_callback
stochastic_rounding             no effect: devices round to nearest
partials_type                   no effect; set jax_default_matmul_precision
frontend_attribute              no effect
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import jax
from keras.backend import standardize_dtype

from millrace.errors import OptionError, PlanError
from millrace.ipu.config import current_system
from millrace.ipu.inert import inert
from millrace.ipu.later import is_within_a_program
from millrace.loops.replication import current_launch
from millrace.options import whole_number
from millrace.strategy.strategy import strategy_in_scope
from millrace.tensorflow.graph_mode import in_graph_mode
from millrace.threads.scoped_value import ScopedValue

_is_outside = ScopedValue(False)
_device = ScopedValue[str | None](None)


@contextmanager
def ipu_scope(device: str = "/device:IPU:0") -> Iterator[None]:
    """Places what is compiled inside on the devices of a logical device of the system."""
    here = nullcontext()
    if not in_graph_mode():
        here = jax.default_device(current_system().devices_of(device)[0])
    with _device.bound_to(device), here:
        yield


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


@contextmanager
def outside_compilation_scope(name: str = "outside") -> Iterator[None]:
    """Surrounds what would run on the host; it becomes part of the program, with equal results.

    Raises:
        PlanError: outside of a program, and within another such scope.
    """
    if not is_within_a_program() or _is_outside.get():
        raise PlanError(
            "outside_compilation_scope() is for operations of a compiled function, and not within "
            "another one. Call it in a function that ipu_compiler.compile() or strategy.run() "
            "compiles."
        )
    inert(
        "outside_compilation_scope",
        "Operations in it are compiled with the others. Python code that needs values goes into "
        "jax.pure_callback().",
    )
    with _is_outside.bound_to(True), jax.named_scope(name):
        yield


@contextmanager
def stochastic_rounding(override: Any = True) -> Iterator[None]:
    """Has no effect: devices round to nearest."""
    inert("stochastic_rounding", "Devices round to nearest: keep weights in float32.")
    yield


@contextmanager
def partials_type(override: Any) -> Iterator[None]:
    """Checks that the type is float16 or float32, and has no effect."""
    if override is None or standardize_dtype(override) not in ("float16", "float32"):
        raise OptionError(
            f"partials_type() takes float16 or float32. Received: {override!r}. Leave it out for "
            "what the device does best."
        )
    inert("partials_type", "Set jax_default_matmul_precision for products of higher precision.")
    yield


@contextmanager
def frontend_attribute(
    attribute_name: str, attribute_value: str, restore_to: Any = None
) -> Iterator[None]:
    """Has no effect."""
    inert("frontend_attribute", f"Nothing reads {attribute_name!r}: leave it out.")
    yield


def placed_on() -> Callable[[], tuple[jax.Device, ...]] | None:
    """Returns what gives the devices of the scope around: an `ipu_scope` or a strategy; or None.

    A program of TensorFlow 1 may configure the system after it has built what is to run there.
    """
    device, strategy = _device.get(), strategy_in_scope()
    if device is not None:
        return lambda: current_system().devices_of(device)
    return None if strategy is None else lambda: strategy.devices
