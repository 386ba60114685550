"""Any value in one line of text, equal for equal values in any process.

    1.5   [1, 'a']   {1, 3}          as in Python
    float32[3] [1.0, 2.0, 3.0]       arrays by dtype, shape and contents
    loss()   layer 3 (Dense)         functions, classes and layers by their labels
    Config(rate=0.1, depth=3)        other objects by class and attributes

Labelled functions, classes and layers are described later, from the walk's queue.
"""

import enum
import functools
import hashlib
import io
import logging
import os
import random
import re
import sys
import threading
import types
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from millrace._compat.jax_tracing import is_traced
from millrace.compilation.explain.attributes import attributes_of, is_tool
from millrace.compilation.explain.walk import Walk, is_library_class, is_library_file

MAX_TEXT = 300  # characters of a text, and of an array's numbers, that are written out
MAX_DEPTH = 50  # of containers and objects in one another
MAX_BYTES = 256 * 2**20  # of an array that is read; hashing these takes half a second

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_BUILTIN = (types.BuiltinFunctionType, types.MethodWrapperType, types.MethodDescriptorType)
_BUILTIN += (types.WrapperDescriptorType, types.ClassMethodDescriptorType)
_CODE = (type, FunctionType, types.MethodType, functools.partial, *_BUILTIN)
_WRAPPERS = ("PjitFunction", "_lru_cache_wrapper")  # compiled objects around a function
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
# No computation depends on these.
_SILENT = (logging.Logger, threading.Thread, threading.local, *_LOCKS)
# Their state is not in their attributes; and the environment may have secrets.
_RUNNING = (types.GeneratorType, types.CoroutineType, types.FrameType)
_OPAQUE = (io.IOBase, random.Random, type(os.environ), *_RUNNING)
_ADDRESS = re.compile(r"( object)? at 0x[0-9a-fA-F]+")


def text_of(walk: Walk, value: object) -> str:
    """Returns a value as text, and queues the labelled objects in it."""
    if type(value) in _PLAIN:
        return shortened(repr(value))
    if (label := walk.label_of(value)) is not None:
        return label
    if not walk.count():
        return "..."
    walk.found.append(value)
    if len(walk.open) == MAX_DEPTH:
        walk.miss(f"values nested {MAX_DEPTH} deep")
        return "..."
    if id(value) in walk.open:  # it contains itself
        return f"<{type(value).__name__} number {walk.open.index(id(value))} around this>"
    walk.open.append(id(value))
    try:
        return _special_text(walk, value) or _object(walk, value)
    finally:
        walk.open.pop()


def shortened(text: str) -> str:
    """Returns a text; of a long one the beginning, and a hash of all of it."""
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:60]}... {len(text):,} characters {digest(text.encode())}"


def digest(data: bytes | memoryview) -> str:
    """Returns a hash of data, as twelve hexadecimal digits."""
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()[:12]


def without_address(text: str) -> str:
    """Returns an object's `repr` without its address in memory."""
    return _ADDRESS.sub("", text)


def _special_text(walk: Walk, value: object) -> str | None:
    """Returns the text of a value of a type with its own form of text; None for others."""
    if isinstance(value, _CODE) or _is_wrapper(value):
        return _function_text(walk, value)
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
    if isinstance(value, _SILENT) or is_tool(value):
        return f"<{type(value).__name__}>"
    if isinstance(value, types.ModuleType):
        walk.uses(value.__name__)
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
    placements = jax.Device | jax.sharding.Sharding | jax.sharding.Mesh | jax.sharding.PartitionSpec
    return without_address(repr(value)) if isinstance(value, placements) else None


def _container(walk: Walk, value: Collection[object]) -> str:
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


def _array(walk: Walk, value: Any) -> str:  # of NumPy or JAX
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return f"key {_array(walk, jax.random.key_data(value))}"
    kind = f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if is_traced(value):
        walk.miss(f"a value {kind} of a program that is being traced")
        return f"traced {kind}"
    weak = " weak" if getattr(value, "weak_type", False) else ""
    try:
        host = np.asarray(value)
    except Exception:  # donated, or on devices of other processes
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


def _variable(walk: Walk, value: keras.Variable) -> str:
    text = f"variable {value.dtype}[{','.join(map(str, value.shape))}]"
    if walk.own_variables is None or id(value) in walk.own_variables:
        return text
    try:
        return f"{text} {_array(walk, value.value)}"
    except Exception:  # without a value, while a loop runs
        walk.miss(f"{text}, which has no value now")
        return text


def _is_wrapper(value: object) -> bool:
    return type(value).__name__ in _WRAPPERS and callable(getattr(value, "__wrapped__", None))


def class_name(walk: Walk, kind: type) -> str:
    """Returns the name of a library's class, or the label of one of the user's."""
    name = short_name(kind.__qualname__)
    if is_library_class(kind):
        walk.uses(kind.__module__)
        _label_replaced_methods(walk, kind)
        return name if kind.__module__ == "builtins" else f"{_public(kind.__module__)}.{name}"
    return walk.label(kind, name)


def _label_replaced_methods(walk: Walk, kind: type) -> None:
    """Queues the methods of a library's class that the user has replaced."""
    if kind in walk.searched:
        return
    walk.searched.add(kind)
    for base in filter(is_library_class, kind.__mro__):
        for name, member in vars(base).items():
            method = getattr(member, "__func__", getattr(member, "fget", member))
            if isinstance(method, FunctionType):
                file = method.__code__.co_filename
                # Code that was made from text, such as that of a dataclass, has no file.
                if not is_library_file(file) and not file.startswith("<"):
                    walk.label(method, f"{short_name(base.__qualname__)}.{name}()")


def _function_text(walk: Walk, function: Any) -> str:
    """Returns the name of a function or a class, and the parts of one that a call has made."""
    if isinstance(function, type):
        return class_name(walk, function)
    if isinstance(function, FunctionType):
        return _plain_function(walk, function)
    if isinstance(function, functools.partial):
        texts = [text_of(walk, each) for each in (function.func, *function.args)]
        texts += [f"{name}={text_of(walk, value)}" for name, value in function.keywords.items()]
        return f"partial({', '.join(texts)})"
    if isinstance(function, types.MethodType):
        return f"{text_of(walk, function.__func__)} of {text_of(walk, function.__self__)}"
    if _is_wrapper(function):
        return f"{type(function).__name__}({text_of(walk, function.__wrapped__)})"
    owner, name = getattr(function, "__self__", None), function.__qualname__
    if owner is None or isinstance(owner, types.ModuleType):
        return f"{_public(getattr(function, '__module__', None) or 'builtins')}.{name}()"
    return f"{name}() of {text_of(walk, owner)}"


def _plain_function(walk: Walk, function: FunctionType) -> str:
    if not is_library_file(function.__code__.co_filename):
        return walk.label(function, f"{short_name(function.__qualname__)}()")
    walk.uses(function.__module__)
    name = f"{_public(function.__module__)}.{short_name(function.__qualname__)}"
    if not function.__closure__ or _is_found_by_name(function):
        return f"{name}()"
    # Made by a call, of `jax.vmap` say, from the function and options that it closes over.
    return f"{name}({', '.join(f'{k}={text}' for k, text in closure_of(walk, function))})"


def closure_of(walk: Walk, function: FunctionType) -> Iterator[tuple[str, str]]:
    """Yields the variables that a function closes over: names, and values as text."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name == "__class__":
            continue
        try:
            value = cell.cell_contents
        except ValueError:
            yield name, "not assigned yet"
        else:
            yield name, text_of(walk, value)


def _is_found_by_name(function: FunctionType) -> bool:
    named: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        named = getattr(named, name, None)
    return function in (named, getattr(named, "__wrapped__", None))


def short_name(qualified_name: str) -> str:
    """Returns the readable name of a function: `loss`, `Scaled.call`, `lambda in step`."""
    *outer, name = qualified_name.split(".<locals>.")
    if name == "<lambda>":
        return f"lambda in {short_name(outer[-1])}" if outer else "lambda"
    return name.replace(".<lambda>", ".lambda")


def _public(module: str) -> str:
    """Returns `keras` for `keras.src.losses.losses`."""
    top, _, path = module.partition(".")
    return top if path.startswith(("src", "_src")) else module


def _object(walk: Walk, value: object) -> str:
    kind = type(value)
    if isinstance(value, keras.Layer):
        what = "model" if isinstance(value, keras.Model) else "layer"
        return walk.label(value, f"{what} {kind.__name__}")
    name = class_name(walk, kind)
    if isinstance(value, keras.Initializer) and is_library_class(kind):  # it draws a seed
        return f"{name}({_arguments(walk, value.get_config().items())})"
    attributes = attributes_of(value)
    is_value = isinstance(value, _PLAIN)
    if isinstance(value, _OPAQUE) or (attributes is None and not is_value):
        return _opaque(walk, value, name)
    own = [("", value.__reduce_ex__(2)[1][-1])] if is_value and not attributes else []
    return f"{name}({_arguments(walk, [*own, *(attributes or {}).items()])})"


def _opaque(walk: Walk, value: object, name: str) -> str:
    """Returns the text of an object without attributes; that of a date or a path is its value."""
    if is_library_class(type(value)) and not isinstance(value, _OPAQUE):
        text = repr(value)
        if not text.startswith("<") and " at 0x" not in text:
            return shortened(text)
    walk.miss(f"{name}, an object that does not show its state")
    return f"<{name}>"


def _arguments(walk: Walk, items: Iterable[tuple[str, object]]) -> str:
    return ", ".join(
        f"{name}={text_of(walk, value)}" if name else repr(value) for name, value in items
    )
