"""TensorFlow's errors, devices, scopes and nested structures. Of devices only the names."""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace

import jax

from millrace.errors import DataError, OptionError, PlanError, UnsupportedError
from millrace.extend import ScopedValue
from millrace_ipu.tensorflow.graph_mode import is_deferred

_device = ScopedValue[str | None](None)
errors = SimpleNamespace(
    FailedPreconditionError=PlanError,
    InvalidArgumentError=OptionError,
    OutOfRangeError=DataError,
    UnimplementedError=UnsupportedError,
)


def get_logger() -> logging.Logger:
    """Returns millrace's logger."""
    return logging.getLogger("millrace")


@contextlib.contextmanager
def device(name: object) -> Iterator[None]:
    """Names the device of what `ipu_compiler.compile` compiles in its block.

    Other operations run on the devices that strategies choose, whatever the name.
    """
    with _device.bound_to(name if isinstance(name, str) else _device.get()):
        yield


def device_name() -> str | None:
    """Returns the name that the `device` around this call has; None outside of all."""
    return _device.get()


@contextlib.contextmanager
def name_scope(name: str, *_: object, **__: object) -> Iterator[str]:
    """Names the operations in its block."""
    with jax.named_scope(name):
        yield name


@contextlib.contextmanager
def control_dependencies(control_inputs: Iterable[object]) -> Iterator[None]:
    """Has no effect: operations run in the order of their calls.

    Raises:
        UnsupportedError: for operations of a session, which runs those alone that it is given.
    """
    if is_deferred(list(control_inputs)):
        raise UnsupportedError(
            "tf.control_dependencies() of operations that a session runs later has no effect here, "
            "and they would not run. Give them to Session.run(), too."
        )
    yield


def no_op(name: str | None = None) -> None:
    """Does nothing."""


def group(*inputs: object, name: str | None = None) -> list[object] | None:
    """Returns the operations of a session that it is given, which runs them all; None of others."""
    return list(inputs) if is_deferred(list(inputs)) else None


def _map_structure(function: Callable[..., object], *trees: object, **_: object) -> object:
    return jax.tree.map(function, *trees)


nest = SimpleNamespace(
    flatten=jax.tree.leaves,
    map_structure=_map_structure,
    assert_same_structure=lambda first, second, **_: jax.tree.map(lambda *_: None, first, second),
    pack_sequence_as=lambda tree, flat, **_: jax.tree.unflatten(jax.tree.structure(tree), flat),
)
