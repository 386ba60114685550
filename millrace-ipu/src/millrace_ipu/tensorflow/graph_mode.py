"""Deferred values, as in TensorFlow 1: a program is built first, and run by a session later.

a = placeholder(float32, [2])            Placeholder
b = 2 * (a + 1)                          Deferred(mul, [2, Deferred(add, [a, 1])])
Session().run(b, {a: [1.0, 2.0]})        one compiled program -> [4, 6]

A session collects the deferred values among its fetches, and all that these depend on. It runs

on the device    one compiled program, of the values that were fed    -> arrays
on the host      then functions that read queues, in order
"""

import functools
import operator
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import keras
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from millrace.errors import OptionError
from millrace.extend import CompiledFunction
from millrace_ipu.pytrees import Array
from millrace_ipu.tensorflow.dtypes import as_dtype

KEPT = 64  # compiled programs that sessions remember


_is_graph = [False]


def in_graph_mode() -> bool:
    """Whether the program has switched eager execution off."""
    return _is_graph[0]


def set_graph_mode(value: bool) -> None:
    """Switches between eager execution and deferred values."""
    _is_graph[0] = value


class Deferred:
    """The result of a function that a session will call.

    Args:
        function: of the inputs.
        inputs: positional arguments; nested structures may contain deferred values.
        named: keyword arguments.
        on_host: whether the host calls the function by itself once its arguments are computed,
            instead of compiling it into a program: a function that reads a queue, for example.
        length: number of values that the result can be unpacked into; None forbids unpacking.
    """

    __array_priority__ = 1000  # NumPy arrays leave operators to this class
    __array_ufunc__ = None

    def __init__(
        self,
        function: Callable[..., object],
        inputs: Sequence[object] = (),
        named: Mapping[str, object] | None = None,
        *,
        on_host: bool = False,
        length: int | None = None,
    ):
        self.function, self.inputs, self.named = function, tuple(inputs), dict(named or {})
        self.on_host, self.length = on_host, length

    def __iter__(self) -> Iterator["Deferred"]:
        if self.length is None:
            raise OptionError(
                f"{self!r} is computed later, and its length is not known yet. Run it "
                "in a session, and unpack the result: a, b = session.run(value)."
            )
        return (self[index] for index in range(self.length))

    def __getitem__(self, index: object) -> "Deferred":
        return Deferred(operator.getitem, (self, index))

    def __bool__(self) -> bool:
        raise OptionError(
            f"{self!r} is computed later, so `if` cannot test it now. Use tf.where(...) or "
            "tf.cond(...) instead, or leave eager execution on."
        )

    def __repr__(self) -> str:
        return f"<Deferred {getattr(self.function, '__name__', 'value')}>"


class Placeholder(Deferred):
    """A value that the caller of `Session.run` feeds."""

    def __init__(
        self, dtype: DTypeLike, shape: Sequence[int | None] | None = None, name: str | None = None
    ):
        super().__init__(self._not_fed)
        self.dtype = as_dtype(dtype)
        self.shape = None if shape is None else tuple(shape)
        self.name = name or "Placeholder"

    def array(self, value: ArrayLike) -> np.ndarray:
        """Returns the value that was fed, as an array.

        Raises:
            OptionError: if its shape is not that of the placeholder.
        """
        array = np.asarray(value, self.dtype)
        fits = self.shape is None or (
            len(self.shape) == array.ndim
            and all(a in (None, -1, b) for a, b in zip(self.shape, array.shape))  # noqa: B905
        )
        if not fits:
            raise OptionError(
                f"feed_dict has an array of shape {array.shape} for {self!r}, which takes "
                f"{self.shape}. Feed one of that shape, or set shape=None in tf.placeholder()."
            )
        return array

    def _not_fed(self) -> Any:
        raise OptionError(
            f"{self!r} has no value. Set feed_dict={{placeholder: value}} in Session.run()."
        )

    def __repr__(self) -> str:
        return f"<placeholder {self.name!r} {self.dtype.name}{list(self.shape or ())}>"


def is_deferred(value: object) -> bool:
    """Whether a value, or any value in a nested structure, is computed later."""
    return any(isinstance(leaf, Deferred) for leaf in jax.tree.leaves(value))


class Session:
    """Computes deferred values. Sessions share their programs, so each is compiled only once."""

    def __init__(self, target: str = "", graph: object = None, config: object = None):
        """Takes what is about TensorFlow's servers, without effect."""

    def run(self, fetches: object, feed_dict: Mapping[Any, ArrayLike] | None = None) -> Any:
        """Computes deferred values, and returns them as NumPy arrays.

        Args:
            fetches: one deferred value, or lists, tuples and dicts of them. Values that are not
                deferred are returned unchanged, and Keras variables as their values.
            feed_dict: values of placeholders.

        Raises:
            OptionError: if a placeholder has no value, or a key of `feed_dict` is no placeholder.
        """
        feeds = dict(feed_dict or {})
        for key in feeds:
            if not isinstance(key, Placeholder):
                raise OptionError(
                    f"feed_dict has a value for {key!r}, which is no placeholder. Set "
                    "feed_dict={placeholder: value}, with the placeholder that tf.placeholder() "
                    "returned."
                )
        computed: dict[int, Any] = {id(key): key.array(value) for key, value in feeds.items()}
        targets = [leaf for leaf in jax.tree.leaves(fetches) if isinstance(leaf, Deferred)]
        compiled = _on_device(targets)
        if compiled:
            values = _program(compiled, list(feeds))([computed[id(key)] for key in feeds])
            computed.update(zip(map(id, compiled), values, strict=True))
        return jax.tree.map(_fetched, evaluate(fetches, computed))

    def close(self) -> None:
        """Has no effect: the programs belong to all sessions."""

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _on_device(targets: list[Deferred]) -> list[Deferred]:
    """Returns the values that a program computes: targets, and inputs of functions on the host."""
    on_device: dict[int, Deferred] = {}

    def visit(node: Deferred) -> None:
        if isinstance(node, Placeholder):
            return
        if not _needs_host(node):
            on_device[id(node)] = node
            return
        for leaf in jax.tree.leaves((node.inputs, node.named)):
            if isinstance(leaf, Deferred):
                visit(leaf)

    for node in targets:
        visit(node)
    return list(on_device.values())


def _needs_host(node: Deferred) -> bool:
    leaves = jax.tree.leaves((node.inputs, node.named))
    return node.on_host or any(_needs_host(x) for x in leaves if isinstance(x, Deferred))


_lock = threading.Lock()


def _program(targets: list[Deferred], placeholders: list[Placeholder]) -> CompiledFunction:
    """Returns the program that computes the targets of fed values; it is compiled once."""
    with _lock:
        return _compiled(_Identical(targets), _Identical(placeholders))


class _Identical(tuple[Deferred, ...]):
    """Deferred values, equal to the very same ones."""

    def __hash__(self) -> int:
        return hash(tuple(map(id, self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple) and [*map(id, self)] == [*map(id, other)]


@functools.lru_cache(maxsize=KEPT)
def _compiled(targets: _Identical, placeholders: _Identical) -> CompiledFunction:
    def compute(arrays: list[Array]) -> list[Any]:
        computed = dict(zip(map(id, placeholders), arrays, strict=True))
        return [evaluate(node, computed) for node in targets]

    compute.__name__ = getattr(targets[0].function, "__name__", "session")
    return CompiledFunction(compute)


def _fetched(leaf: object) -> Any:
    if isinstance(leaf, keras.Variable):
        leaf = leaf.value
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf


def evaluate(value: object, computed: dict[int, Any]) -> Any:
    """Returns a nested structure with its deferred values computed.

    Args:
        value: the structure.
        computed: results so far, by the address of the deferred value; extended by the call.
    """

    def compute(leaf: object) -> object:
        if not isinstance(leaf, Deferred):
            return leaf
        if id(leaf) not in computed:
            args, named = evaluate((leaf.inputs, leaf.named), computed)
            computed[id(leaf)] = leaf.function(*args, **named)
        return computed[id(leaf)]

    return jax.tree.map(compute, value)


def _operator(name: str, is_reflected: bool = False) -> Callable[..., Deferred]:
    function = getattr(operator, name)
    step = -1 if is_reflected else 1
    return lambda *operands: Deferred(function, operands[::step])


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
    setattr(Deferred, f"__{_name}__", _operator(_name))
    setattr(Deferred, f"__r{_name}__", _operator(_name, is_reflected=True))
for _name in ("neg", "abs", "lt", "le", "gt", "ge"):
    setattr(Deferred, f"__{_name}__", _operator(_name))
