"""Sessions, as TensorFlow 1 has them: `session.run(fetches, feed_dict)`.

fetches -> deferred values among them, and what they depend on
on the device    one compiled program of all that was fed      -> arrays
on the host      then what reads queues and the like, in order
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import jax
import keras
import numpy as np

from millrace.errors import OptionError
from millrace.loops.function import CompiledFunction
from millrace.tensorflow.graph_mode import Deferred, Placeholder, evaluate

KEPT = 64  # programs, by what they compute


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
        """Does nothing: programs belong to nobody."""

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
