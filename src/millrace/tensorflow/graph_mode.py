"""Values that are computed later, as TensorFlow 1 has them: a program is built, then run.

a = placeholder(float32, [2])            Placeholder
b = 2 * (a + 1)                          Deferred(mul, [2, Deferred(add, [a, 1])])
Session().run(b, {a: [1.0, 2.0]})        one compiled program -> [4, 6]

A session collects the deferred values among its fetches, and what they depend on:

on the device    one compiled program of all that was fed      -> arrays
on the host      then what reads queues and the like, in order
"""

import operator
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import keras
import numpy as np

from millrace.errors import OptionError
from millrace.loops.function import CompiledFunction
from millrace.tensorflow.dtypes import as_dtype

KEPT = 64  # programs, by what they compute


def in_graph_mode() -> bool:
    """Whether the program has switched eager execution off."""
    return _Mode.is_graph


def set_graph_mode(value: bool) -> None:
    """Switches between values that are there and values that are computed later."""
    _Mode.is_graph = value


class Deferred:
    """The result of a function that a session will call.

    Args:
        function: of the inputs.
        inputs: arguments; trees that may have deferred values in them.
        named: arguments by name.
        on_host: it is called by itself after what it is given, not as part of a program: what
            reads a queue, say.
        length: how many values it can be unpacked into; None for one that cannot be.
    """

    __array_priority__ = 1000  # NumPy arrays leave operators to this class
    __array_ufunc__ = None

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Any] = (),
        named: Mapping[str, Any] | None = None,
        *,
        on_host: bool = False,
        length: int | None = None,
    ):
        self.function, self.inputs, self.named = function, tuple(inputs), dict(named or {})
        self.on_host, self.length = on_host, length

    def __iter__(self) -> Iterator["Deferred"]:
        if self.length is None:
            raise OptionError(
                f"{self!r} is computed later, and the number of its parts is not known yet. Run it "
                "in a session, and unpack the result: a, b = session.run(value)."
            )
        return (self[index] for index in range(self.length))

    def __getitem__(self, index: Any) -> "Deferred":
        return Deferred(operator.getitem, (self, index))

    def __bool__(self) -> bool:
        raise OptionError(
            f"{self!r} is computed later, so `if` cannot ask for it now. Set tf.where(...) or "
            "tf.cond(...) in its place, or leave eager execution on."
        )

    def __repr__(self) -> str:
        return f"<Deferred {getattr(self.function, '__name__', 'value')}>"


class Placeholder(Deferred):
    """A value that the caller of `Session.run` feeds."""

    def __init__(self, dtype: Any, shape: Any = None, name: str | None = None):
        super().__init__(self._not_fed)
        self.dtype = as_dtype(dtype)
        self.shape = None if shape is None else tuple(shape)
        self.name = name or "Placeholder"

    def array(self, value: Any) -> np.ndarray:
        """Returns what was fed as an array.

        Raises:
            OptionError: if it is of another shape.
        """
        array = np.asarray(value, self.dtype)
        fits = self.shape is None or (
            len(self.shape) == array.ndim
            and all(size in (None, -1, own) for size, own in zip(self.shape, array.shape))  # noqa: B905
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


def is_deferred(value: Any) -> bool:
    """Whether a value, or any in a tree of them, is computed later."""
    return any(isinstance(leaf, Deferred) for leaf in jax.tree.leaves(value))


class Session:
    """Runs deferred values. Sessions share their programs, so a second one compiles nothing."""

    def __init__(self, target: str = "", graph: Any = None, config: Any = None):
        del target, graph, config  # where and how a server of TensorFlow's would run

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> Any:
        """Returns values for a tree of deferred ones, as NumPy arrays.

        Args:
            fetches: one, or lists, tuples and dicts of them. What is there already is returned
                as it is; variables as their values.
            feed_dict: values of placeholders.

        Raises:
            OptionError: if a placeholder has no value, or what is fed is none.
        """
        feeds = dict(feed_dict or {})
        for key in feeds:
            if not isinstance(key, Placeholder):
                raise OptionError(
                    f"feed_dict has a value for {key!r}, which is no placeholder. Set "
                    "feed_dict={placeholder: value}, with what tf.placeholder() returned."
                )
        known = {id(key): key.array(value) for key, value in feeds.items()}
        wanted = [leaf for leaf in jax.tree.leaves(fetches) if isinstance(leaf, Deferred)]
        compiled = _on_device(wanted)
        if compiled:
            values = _program(compiled, list(feeds))([known[id(key)] for key in feeds])
            known.update(zip(map(id, compiled), values, strict=True))
        return jax.tree.map(_fetched, evaluate(fetches, known))

    def close(self) -> None:
        """Does nothing: all sessions share their programs."""

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _on_device(wanted: list[Deferred]) -> list[Deferred]:
    """Returns what a program computes: what is wanted of it, and what is done on the host with."""
    found: dict[int, Deferred] = {}

    def visit(node: Deferred) -> None:
        if isinstance(node, Placeholder):
            return
        if not _needs_host(node):
            found[id(node)] = node
            return
        for leaf in jax.tree.leaves((node.inputs, node.named)):
            if isinstance(leaf, Deferred):
                visit(leaf)

    for node in wanted:
        visit(node)
    return list(found.values())


def _needs_host(node: Deferred) -> bool:
    leaves = jax.tree.leaves((node.inputs, node.named))
    return node.on_host or any(_needs_host(x) for x in leaves if isinstance(x, Deferred))


_lock = threading.Lock()
_programs: OrderedDict[Any, tuple[CompiledFunction, Any]] = OrderedDict()


def _program(wanted: list[Deferred], fed: list[Placeholder]) -> CompiledFunction:
    """Returns the program that computes values of what is fed; it is made once."""
    key = tuple(map(id, wanted)), tuple(map(id, fed))
    with _lock:
        if key not in _programs:

            def compute(arrays: list[Any]) -> list[Any]:
                known = dict(zip(map(id, fed), arrays, strict=True))
                return [evaluate(node, known) for node in wanted]

            compute.__name__ = getattr(wanted[0].function, "__name__", "session")
            # With what the key identifies by address, which would else be given to others.
            _programs[key] = CompiledFunction(compute), (wanted, fed)
            if len(_programs) > KEPT:
                _programs.popitem(last=False)
        _programs.move_to_end(key)
        return _programs[key][0]


def _fetched(leaf: Any) -> Any:
    if isinstance(leaf, keras.Variable):
        leaf = leaf.value
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf


def evaluate(value: Any, known: dict[int, Any]) -> Any:
    """Returns a tree with deferred values computed.

    Args:
        value: the tree.
        known: what has been computed so far, by address; added to.
    """

    def compute(leaf: Any) -> Any:
        if not isinstance(leaf, Deferred):
            return leaf
        if id(leaf) not in known:
            args, named = evaluate((leaf.inputs, leaf.named), known)
            known[id(leaf)] = leaf.function(*args, **named)
        return known[id(leaf)]

    return jax.tree.map(compute, value)


class _Mode:
    is_graph = False


def _add_operators() -> None:
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
        function = getattr(operator, name)
        setattr(Deferred, f"__{name}__", _method(function))
        setattr(Deferred, f"__r{name}__", _reflected(function))
    for name in ("neg", "abs", "lt", "le", "gt", "ge"):
        setattr(Deferred, f"__{name}__", _method(getattr(operator, name)))


def _method(function: Callable[..., Any]) -> Callable[..., Deferred]:
    return lambda *operands: Deferred(function, operands)


def _reflected(function: Callable[..., Any]) -> Callable[..., Deferred]:
    return lambda right, left: Deferred(function, (left, right))


_add_operators()
