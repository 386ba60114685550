"""Scopes of IPU programs.

ipu_scope("/device:IPU:0")      the devices on which ipu_compiler.compile runs
ipu_shard(1)                    a replica takes two devices or more, of which one computes
outside_compilation_scope()     part of the program all the same; use jax.pure_callback
stochastic_rounding             without effect: devices round to nearest
partials_type                   without effect; set jax_default_matmul_precision
frontend_attribute              without effect
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import jax
from keras.backend import standardize_dtype

from millrace.errors import OptionError, PlanError
from millrace.extend import ScopedValue, strategy_in_scope, whole_number
from millrace_ipu.ipu.config import current_system
from millrace_ipu.ipu.deferral import is_within_a_program
from millrace_ipu.ipu.replica_launches import current_launch
from millrace_ipu.tensorflow.framework import device_name
from millrace_ipu.tensorflow.graph_mode import in_graph_mode
from millrace_ipu.tensorflow.no_operation import warn_no_effect

_is_outside = ScopedValue(False)
_device = ScopedValue[str | None](None)


@contextmanager
def ipu_scope(device: str = "/device:IPU:0") -> Iterator[None]:
    """Runs programs that are compiled inside on the devices of a logical device."""
    default_device = nullcontext()
    if not in_graph_mode():
        default_device = jax.default_device(current_system().devices_of(device)[0])
    with _device.bound_to(device), default_device:
        yield


@contextmanager
def ipu_shard(index: int) -> Iterator[None]:
    """Reserves at least `index + 1` devices for each replica of the program.

    One of these computes all operations. To spread a model over devices, use a pipeline.
    """
    index, launch = whole_number("index", index, 0), current_launch()
    warn_no_effect(
        "ipu_shard", "A replica computes on one device: set pipelining_ops.pipeline() for more."
    )
    if launch is not None:
        launch.shards = max(launch.shards, index + 1)
    yield


@contextmanager
def outside_compilation_scope(name: str = "outside") -> Iterator[None]:
    """Marks operations that ran on the host of an IPU; here they are compiled with the others.

    Raises:
        PlanError: outside of a program, and within another such scope.
    """
    if not is_within_a_program() or _is_outside.get():
        raise PlanError(
            "outside_compilation_scope() is for operations of a compiled function, and not within "
            "another one. Call it in a function that ipu_compiler.compile() or strategy.run() "
            "compiles."
        )
    warn_no_effect(
        "outside_compilation_scope",
        "Operations in it are compiled with the others. Call Python code that needs values by "
        "jax.pure_callback().",
    )
    with _is_outside.bound_to(True), jax.named_scope(name):
        yield


@contextmanager
def partials_type(override: jax.typing.DTypeLike | None) -> Iterator[None]:
    """Has no effect, apart from a check that the type is float16 or float32."""
    if override is None or standardize_dtype(override) not in ("float16", "float32"):
        raise OptionError(
            f"partials_type() takes float16 or float32. Received: {override!r}. Leave the scope "
            "out to let the device choose."
        )
    warn_no_effect(
        "partials_type", "Set jax_default_matmul_precision for products of higher precision."
    )
    yield


def without_effect(name: str, advice: str) -> Callable[..., AbstractContextManager[None]]:
    """Returns a scope that warns, and takes any arguments."""

    @contextmanager
    def scope(*_: object, **__: object) -> Iterator[None]:
        """Has no effect: warns, and takes any arguments."""
        warn_no_effect(name, advice)
        yield

    return scope


frontend_attribute = without_effect("frontend_attribute", "Nothing reads it: leave it out.")
stochastic_rounding = without_effect(
    "stochastic_rounding", "Devices round to nearest: keep weights in float32."
)


def devices_in_scope() -> Callable[[], tuple[jax.Device, ...]] | None:
    """Returns a function that gives the devices of the current scope; None outside of all scopes.

    The scope is an `ipu_scope`, a `tf.device` of an IPU, or a strategy's. A program of TensorFlow 1
    may configure the system after it has built its operations, so the devices are looked up when
    these run.
    """
    device, strategy = _device.get(), strategy_in_scope()
    name = device_name()
    if device is None and name is not None and ":IPU:" in name:
        device = name
    if device is not None:
        return lambda: current_system().devices_of(device)
    return None if strategy is None else lambda: strategy.devices
