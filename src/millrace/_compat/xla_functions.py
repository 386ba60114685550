"""Private XLA: Python functions that a compiled program calls with its own memory, on CPU.

    program  ->  custom call "name"  ->  function(arguments, results)     views, nothing is copied

`jax.pure_callback` copies arguments and results, and its executables cannot be written to a cache.
XLA finds a function of `jax.ffi` by its name, and calls it with a description of its arrays: the
structures of `xla/ffi/api/c_api.h`, of version 0.3. Of a jaxlib with another version, or another
size of one of them, `is_usable` returns False.
"""

import contextlib
import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["DTYPES", "HostFunction", "is_usable", "register"]

# Arguments and results, which are writable; flat. An error ends the program.
HostFunction: TypeAlias = Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], None]

_VERSION = (0, 3)
_METADATA, _EXECUTE, _UNAVAILABLE = 1, 3, 14
_ADDRESS = ctypes.c_void_p
# Of the numbers that can be added.
_DTYPES = {
    number: np.dtype(dtype)
    for number, dtype in {
        2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64,
        6: np.uint8, 7: np.uint16, 8: np.uint32, 9: np.uint64,
        10: np.float16, 11: np.float32, 12: np.float64, 16: jnp.bfloat16,
    }.items()
}  # fmt: skip
DTYPES = frozenset(_DTYPES.values())


class _Structure(ctypes.Structure):
    """Begins with its size and the address of an extension, as all of XLA's do."""

    _fields_ = (("size", ctypes.c_size_t), ("extension", _ADDRESS))


class _Version(_Structure):
    _fields_ = (("major", ctypes.c_int32), ("minor", ctypes.c_int32))


class _Arrays(_Structure):
    _fields_ = (("count", ctypes.c_int64), ("types", _ADDRESS), ("buffers", _ADDRESS))


class _CallAttributes(_Structure):
    _fields_ = (
        ("count", ctypes.c_int64),
        ("types", _ADDRESS),
        ("names", _ADDRESS),
        ("values", _ADDRESS),
    )


class _Buffer(_Structure):
    _fields_ = (
        ("dtype", ctypes.c_int32),
        ("data", _ADDRESS),
        ("rank", ctypes.c_int64),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
    )


class _CallFrame(_Structure):
    _fields_ = (
        ("api", _ADDRESS),
        ("context", _ADDRESS),
        ("stage", ctypes.c_int32),
        ("arguments", _Arrays),
        ("results", _Arrays),
        ("attributes", _CallAttributes),
    )


class _Api(_Structure):
    _fields_ = (("version", _Version), ("internal", _ADDRESS), ("make_error", _ADDRESS))


class _Error(_Structure):
    _fields_ = (("message", ctypes.c_char_p), ("code", ctypes.c_int32))


class _Metadata(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("version", _Version),
        ("traits", ctypes.c_uint32),
        ("state_type", ctypes.c_int64),
    )


class _MetadataExtension(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("kind", ctypes.c_int32),
        ("next", _ADDRESS),
        ("metadata", ctypes.POINTER(_Metadata)),
    )


_MAKE_ERROR = ctypes.CFUNCTYPE(_ADDRESS, ctypes.POINTER(_Error))
_HANDLER = ctypes.CFUNCTYPE(_ADDRESS, _ADDRESS)
_registered: dict[str, tuple[Any, HostFunction]] = {}  # XLA keeps only the addresses
_fits: dict[str, bool] = {}


def register(name: str, function: HostFunction) -> None:
    """Lets programs call a function as `jax.ffi.ffi_call(name, ...)`; replaces an earlier one.

    Args:
        name: of the custom call.
        function: called in a thread of XLA, which holds the lock of the interpreter.
    """
    if name in _registered:
        _registered[name] = (_registered[name][0], function)
        return
    handler = _HANDLER(lambda address: _handle(name, address))
    _registered[name] = (handler, function)
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler), platform="cpu")


@functools.cache
def is_usable(name: str) -> bool:
    """Whether the structures of this jaxlib are those that are known here. JAX has started."""
    spec = jax.ShapeDtypeStruct((1,), jnp.float32)
    call = jax.jit(jax.ffi.ffi_call(name, spec))
    with jax.default_device(jax.local_devices(backend="cpu")[0]), contextlib.suppress(Exception):
        call.lower(spec).compile()  # XLA asks for the version, and refuses another one
    return _fits.get(name, False)


def _handle(name: str, address: int) -> int | None:
    call = _CallFrame.from_address(address)
    try:
        if call.extension:
            _fits[name] = _answer(call)
        elif call.stage == _EXECUTE:
            _registered[name][1](_views(call.arguments), _views(call.results))
    except BaseException as error:
        return _error_of(call, f"{type(error).__name__}: {error}")
    return None


def _answer(call: _CallFrame) -> bool:
    """Tells XLA the version of its structures that this file has, and returns whether it has it."""
    asked = _MetadataExtension.from_address(call.extension)
    if asked.kind != _METADATA:
        return False
    version = _Api.from_address(call.api).version
    metadata = asked.metadata.contents
    # The compiler's size of metadata ends with its last field but one.
    fits = (
        (version.major, version.minor) == _VERSION
        and call.size >= ctypes.sizeof(_CallFrame)
        and call.arguments.size == ctypes.sizeof(_Arrays)
        and call.attributes.size == ctypes.sizeof(_CallAttributes)
        and metadata.version.size == ctypes.sizeof(_Version)
        and metadata.size == _Metadata.traits.offset + _Metadata.traits.size
    )
    if fits:
        metadata.version.major, metadata.version.minor = _VERSION
        metadata.traits = metadata.state_type = 0
    return fits


def _views(arrays: _Arrays) -> list[np.ndarray]:
    if not arrays.count:
        return []
    addresses = (_ADDRESS * arrays.count).from_address(arrays.buffers)
    return [_view(_Buffer.from_address(address)) for address in addresses]


def _view(buffer: _Buffer) -> np.ndarray:
    dtype = _DTYPES[buffer.dtype]
    size = math.prod(buffer.shape[: buffer.rank]) * dtype.itemsize
    if not size:
        return np.empty(0, dtype)
    memory: Any = (ctypes.c_char * size).from_address(buffer.data)
    return np.frombuffer(memory, dtype)


def _error_of(call: _CallFrame, text: str) -> int | None:
    make = _MAKE_ERROR(_Api.from_address(call.api).make_error)
    error = _Error(ctypes.sizeof(_Error), None, text.encode(), _UNAVAILABLE)
    return make(ctypes.byref(error))
