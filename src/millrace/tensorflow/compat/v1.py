"""`tf.compat.v1`: placeholders, sessions, and switching eager execution off.

All else is what `tf` has.
"""

import contextlib
import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from millrace.tensorflow.graph_mode import Deferred, Placeholder, in_graph_mode, set_graph_mode
from millrace.tensorflow.graph_mode import Session as Session


def placeholder(dtype: Any, shape: Any = None, name: str | None = None) -> Placeholder:
    """Returns a value that `Session.run` is fed."""
    return Placeholder(dtype, shape, name)


def disable_v2_behavior() -> None:
    """Lets programs be built first and run by sessions."""
    set_graph_mode(True)


disable_eager_execution = disable_v2_behavior


def enable_v2_behavior() -> None:
    """Lets values be computed where they are written."""
    set_graph_mode(False)


enable_eager_execution = enable_v2_behavior


def executing_eagerly() -> bool:
    """Whether values are computed where they are written."""
    return not in_graph_mode()


def global_variables_initializer() -> Deferred:
    """Returns an operation that does nothing: variables have values from the beginning."""
    return Deferred(_nothing, on_host=True)


local_variables_initializer = tables_initializer = global_variables_initializer


def _nothing() -> None:
    return None


class ConfigProto(SimpleNamespace):
    """Takes any option: they are about devices of TensorFlow's."""


class Graph:
    """All programs are in one graph: what is not run costs nothing."""

    @contextlib.contextmanager
    def as_default(self) -> Iterator["Graph"]:
        """Does nothing."""
        yield self


@contextlib.contextmanager
def variable_scope(name: str, *_: Any, **__: Any) -> Iterator[Any]:
    """Does nothing: variables are told apart by themselves, not by their names."""
    yield SimpleNamespace(name=name, reuse_variables=_nothing)


def get_variable_scope() -> Any:
    """Returns a scope in which variables may be used again."""
    return SimpleNamespace(name="", reuse_variables=_nothing)


def set_random_seed(seed: int) -> None:
    """Sets the seed of Python, NumPy and Keras."""
    importlib.import_module("millrace.tensorflow.random").set_seed(seed)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(importlib.import_module("millrace.tensorflow"), name)
