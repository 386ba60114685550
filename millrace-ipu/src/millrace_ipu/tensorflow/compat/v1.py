"""`tf.compat.v1`: placeholders, sessions, variables by name, the switch for eager execution.

All other names are those of `tf`.
"""

import importlib
import logging as _logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from jax.typing import DTypeLike

from millrace_ipu.tensorflow.dispatch import real_name
from millrace_ipu.tensorflow.extras import V1_INITIALIZERS
from millrace_ipu.tensorflow.extras import v1_train as train  # noqa: F401 - a name of this module
from millrace_ipu.tensorflow.graph_mode import Deferred, Placeholder, in_graph_mode, set_graph_mode
from millrace_ipu.tensorflow.graph_mode import Session as Session
from millrace_ipu.tensorflow.graph_variables import AUTO_REUSE as AUTO_REUSE
from millrace_ipu.tensorflow.graph_variables import Graph as Graph
from millrace_ipu.tensorflow.graph_variables import get_variable as get_variable
from millrace_ipu.tensorflow.graph_variables import get_variable_scope as get_variable_scope
from millrace_ipu.tensorflow.graph_variables import variable_scope as variable_scope
from millrace_ipu.tensorflow.replacements import ADVICE, TENSORFLOW


def placeholder(
    dtype: DTypeLike, shape: Sequence[int | None] | None = None, name: str | None = None
) -> Placeholder:
    """Returns a placeholder, for a value that is fed to `Session.run`."""
    return Placeholder(dtype, shape, name)


def disable_v2_behavior() -> None:
    """Switches to graphs: programs are built first, and run by sessions."""
    set_graph_mode(True)


disable_eager_execution = disable_v2_behavior


def enable_v2_behavior() -> None:
    """Switches to eager execution: each operation runs where it is called."""
    set_graph_mode(False)


enable_eager_execution = enable_v2_behavior


def executing_eagerly() -> bool:
    """Returns whether each operation runs where it is called."""
    return not in_graph_mode()


def global_variables_initializer() -> Deferred:
    """Returns an operation without effect: variables have values from the beginning."""
    return Deferred(lambda: None, on_host=True)


local_variables_initializer = tables_initializer = global_variables_initializer


class ConfigProto(SimpleNamespace):
    """Takes any option, without effect: all of them are about TensorFlow's devices."""


def set_random_seed(seed: int) -> None:
    """Sets the seed of Python, NumPy and Keras."""
    importlib.import_module("millrace_ipu.tensorflow.random").set_seed(seed)


globals().update(V1_INITIALIZERS)
_logger = _logging.getLogger("tensorflow")
_LEVELS = ("debug", "info", "warning", "warn", "error", "fatal")
logging = SimpleNamespace(
    **{level: getattr(_logger, level) for level in _LEVELS},
    **{level.upper(): getattr(_logging, level.upper()) for level in _LEVELS},
    log=_logger.log,
    get_verbosity=_logger.getEffectiveLevel,
    set_verbosity=_logger.setLevel,
)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    own = importlib.import_module("millrace_ipu.tensorflow")
    listed = f"tensorflow.compat.v1.{name}"
    if name not in vars(own) and (listed in TENSORFLOW or listed in ADVICE):
        return real_name(f"compat.v1.{name}")
    return getattr(own, name)
