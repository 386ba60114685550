"""Any value in one line of text that is equal for equal values, in any process.

Numbers, strings and containers are written as in Python, arrays by dtype, shape and contents,
functions, classes and layers by their labels, and other objects as their class was called with
their attributes: `Config(rate=0.1, depth=3)`.
"""

import enum
import hashlib
import io
import logging
import os
import random
import re
import threading
import types
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from millrace._compat.jax_tracing import is_traced
from millrace.explain.library import is_library_class
from millrace.explain.names import class_name, function_text, is_code
from millrace.explain.objects import attributes_of, is_small_keras_object, is_tool
from millrace.explain.walk import Walk

MAX_TEXT = 300  # characters of a text, and of an array's numbers, that are written out
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
MAX_DEPTH = 50  # of containers and objects in one another
MAX_BYTES = 256 * 2**20  # of an array that is read; hashing these takes half a second
_ADDRESS = re.compile(r"( object)? at 0x[0-9a-fA-F]+")
# What no computation depends on.
_SILENT = (
    logging.Logger,
    threading.Thread,
    threading.local,
    type(threading.Lock()),
    type(threading.RLock()),
)
# What has more in it than its attributes say; and the environment, which may have secrets.
_OPAQUE = (
    io.IOBase,
    random.Random,
    types.GeneratorType,
    types.CoroutineType,
    types.FrameType,
    type(os.environ),
)


def text_of(walk: Walk, value: Any) -> str:
    """Returns a value as text, and puts what has to be described besides into the walk's queue."""
    if type(value) in _PLAIN:
        return shortened(repr(value))
    if (label := walk.label_of(value)) is not None:
        return label
    if not walk.count():
        return "..."
    if len(walk.open) == MAX_DEPTH:
        walk.miss(f"what is nested {MAX_DEPTH} deep")
        return "..."
    if id(value) in walk.open:  # it contains itself
        return f"<{type(value).__name__} number {walk.open.index(id(value))} around this>"
    walk.open.append(id(value))
    try:
        return _known(walk, value) or _object(walk, value)
    finally:
        walk.open.pop()


def shortened(text: str) -> str:
    """Returns a text, or the beginning of a long one with what stands for the rest."""
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:60]}... {len(text):,} characters {digest(text.encode())}"


def digest(data: bytes | memoryview) -> str:
    """Returns twelve hexadecimal digits that stand for data."""
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()[:12]


def without_address(text: str) -> str:
    """Returns what an object says of itself without where it lies in memory."""
    return _ADDRESS.sub("", text)


def _known(walk: Walk, value: Any) -> str | None:
    """Returns the text of what is no object with attributes; None otherwise."""
    if is_code(value):
        return function_text(walk, value, text_of)
    if isinstance(value, enum.Enum):
        return f"{class_name(walk, type(value))}.{value.name}"
    if isinstance(value, list | tuple | set | frozenset | Mapping) and not isinstance(
        value, _OPAQUE
    ):
        return _container(walk, value)
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _array(walk, value)
    if isinstance(value, keras.Variable):
        return _variable(walk, value)
    return _plain(walk, value)


def _container(walk: Walk, value: Any) -> str:
    name = "" if type(value).__module__ == "builtins" else class_name(walk, type(value))
    if name.startswith("keras.") or name == "types.MappingProxyType":
        name = ""  # a list or a dict that Keras tracks
    if isinstance(value, Mapping):
        items = (f"{text_of(walk, k)}: {text_of(walk, v)}" for k, v in value.items())
        text = f"{{{', '.join(items)}}}"
    elif isinstance(value, set | frozenset):
        text = f"{{{', '.join(sorted(text_of(walk, item) for item in value))}}}"
    else:
        text = ", ".join(text_of(walk, item) for item in value)
        comma = "," if isinstance(value, tuple) and len(value) == 1 else ""
        text = f"({text}{comma})" if isinstance(value, tuple) else f"[{text}]"
    return f"{name}({text})" if name else text


def _array(walk: Walk, value: Any) -> str:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return f"key {_array(walk, jax.random.key_data(value))}"
    kind = f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if is_traced(value):
        walk.miss(f"a value {kind} of a program that is being traced")
        return f"traced {kind}"
    weak = " weak" if getattr(value, "weak_type", False) else ""
    try:
        host = np.asarray(value)
    except Exception:  # given away, or on devices of other processes
        walk.miss(f"an array {kind} that cannot be read")
        return f"{kind}{weak} that cannot be read"
    if host.dtype.hasobject:
        return f"{kind} {text_of(walk, host.tolist())}"
    if host.size <= 8:
        return f"{kind}{weak} {host.tolist()}"
    if host.nbytes > MAX_BYTES:
        walk.miss(f"an array {kind} of {host.nbytes:,} bytes, of which only a part is read")
        host = host.reshape(-1)[:: host.nbytes // MAX_BYTES + 1]
    contents = np.ascontiguousarray(host).reshape(-1).view(np.uint8)
    return f"{kind}{weak} {digest(contents.data)}"


def _variable(walk: Walk, value: Any) -> str:
    text = f"variable {value.dtype}[{','.join(map(str, value.shape))}]"
    if walk.own_variables is None or id(value) in walk.own_variables:
        return text
    try:
        return f"{text} {_array(walk, value.value)}"
    except Exception:  # without a value, while a loop runs
        walk.miss(f"{text}, which has no value now")
        return text


def _plain(walk: Walk, value: Any) -> str | None:
    if isinstance(value, _SILENT) or is_tool(value):
        return f"<{type(value).__name__}>"
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, np.dtype):
        return f"dtype {value.name}"
    if isinstance(value, weakref.ref):
        return f"reference to {text_of(walk, value())}"
    if isinstance(value, keras.DTypePolicy):
        return value.name
    if isinstance(value, keras.KerasTensor):
        return f"tensor {value.dtype}{list(value.shape)}"
    if isinstance(value, keras.random.SeedGenerator):  # whose seed is a variable
        return "SeedGenerator"
    if isinstance(value, range | slice | type(...) | type(NotImplemented) | jax.Device):
        return repr(value)
    if isinstance(value, jax.sharding.Sharding | jax.sharding.Mesh | jax.sharding.PartitionSpec):
        return without_address(repr(value))
    return None


def _object(walk: Walk, value: Any) -> str:
    kind = type(value)
    if isinstance(value, keras.Layer):
        what = "model" if isinstance(value, keras.Model) else "layer"
        return walk.label(value, f"{what} {kind.__name__}")
    name = class_name(walk, kind)
    if is_small_keras_object(value):
        return f"{name}({_arguments(walk, value.get_config().items())})"
    attributes = attributes_of(value)
    is_value = isinstance(value, _PLAIN)
    if isinstance(value, _OPAQUE) or (attributes is None and not is_value):
        return _opaque(walk, value, name)
    own = [("", value.__reduce_ex__(2)[1][-1])] if is_value and not attributes else []
    items = [*own, *(attributes or {}).items()]
    return f"{name}({_arguments(walk, items)})"


def _opaque(walk: Walk, value: Any, name: str) -> str:
    """The text of an object that hides its state, which may still say it: a date, a path."""
    if is_library_class(type(value)) and not isinstance(value, _OPAQUE):
        text = repr(value)
        if not text.startswith("<") and " at 0x" not in text:
            return shortened(text)
    walk.miss(f"{name}, an object that does not show its state")
    return f"<{name}>"


def _arguments(walk: Walk, items: Iterable[tuple[str, Any]]) -> str:
    return ", ".join(
        f"{name}={text_of(walk, value)}" if name else repr(value) for name, value in items
    )
