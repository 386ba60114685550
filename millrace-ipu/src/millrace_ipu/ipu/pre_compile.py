"""Programs that are compiled and not run: `device_connection.type = PRE_COMPILE`.

    the files of --executable_cache_path      MILLRACE_CACHE_DIR
    fit, evaluate, predict                    model.precompile(the first batch), and zeros
    strategy.run(fn), ipu_compiler.compile    the program of the function, and zeros

Results are zeros, so Python code that branches on them may compile other programs than a real run.
The files serve the same program with the same versions and kind of device, on any machine.
"""

import contextlib
import inspect
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np

from millrace.errors import PlanError
from millrace.extend import (
    EntryLabels,
    ProgramListener,
    compiles_only,
    get_data_adapter,
    is_array_adapter,
    register_listener,
    unregister_listener,
    use_cache,
)
from millrace_ipu.ipu.environment import cache_directory

_until = contextlib.ExitStack()
_DATA = ("x", "y", "sample_weight", "batch_size", "class_weight")


def begin_pre_compile() -> None:
    """Makes programs compile from now on without running.

    Raises:
        PlanError: without a directory for compiled programs.
    """
    use_cache()
    if cache_directory() is None:
        raise PlanError(
            "device_connection.type=PRE_COMPILE fails a precondition: without a compile cache its "
            'programs would be lost. Set TF_POPLAR_FLAGS="--executable_cache_path=DIRECTORY" '
            "or MILLRACE_CACHE_DIR=DIRECTORY."
        )
    end_pre_compile()
    register_listener(_listener)
    _listener.is_registered = True
    _until.callback(_unregister)


def end_pre_compile() -> None:
    """Makes programs run again."""
    _until.close()


def pre_compiles() -> bool:
    """Whether programs are compiled and not run."""
    return _listener.is_registered


def functions_compiled_only() -> contextlib.AbstractContextManager[Any]:
    """Surrounds a call of functions, which are compiled and not run if that is configured."""
    return compiles_only.bound_to(pre_compiles())


def compiled(loop: Callable[..., object], model: keras.Model, *args: object, **kwargs: Any) -> Any:
    """Compiles the programs of `fit`, `evaluate` or `predict`.

    Returns:
        The result of the call, with zeros for all values.
    """
    bound = inspect.signature(loop).bind(*args, **kwargs)
    bound.apply_defaults()
    name, arguments = loop.__name__, bound.arguments
    adapter: Any = get_data_adapter(**{k: arguments[k] for k in _DATA if k in arguments})
    batch: Any = next(iter(adapter.get_jax_iterator()))
    steps = arguments.get("steps_per_epoch") or arguments.get("steps") or adapter.num_batches
    if not is_array_adapter(adapter) and steps and steps > model.steps_per_execution:
        steps = None  # blocks hold an execution, not an epoch
    model.precompile(batch, steps_per_epoch=steps)  # type: ignore[attr-defined]
    x, *_ = batch
    if name == "predict":
        symbolic = jax.tree.map(lambda leaf: keras.KerasTensor(leaf.shape, str(leaf.dtype)), x)
        specs: Any = model.compute_output_spec(symbolic)
        rows = len(jax.tree.leaves(x)[0]) * (adapter.num_batches or 1)
        if is_array_adapter(adapter):
            rows = len(jax.tree.leaves(arguments["x"])[0])
        return jax.tree.map(lambda spec: np.zeros((rows, *spec.shape[1:]), spec.dtype), specs)
    logs = dict.fromkeys(model.get_metrics_result(), 0.0)
    if name == "evaluate":
        values = list(logs.values())
        return logs if arguments["return_dict"] else values[0] if len(values) == 1 else values
    if arguments["validation_data"] is not None or arguments["validation_split"]:
        logs |= {f"val_{key}": 0.0 for key in logs}
    model.history = keras.callbacks.History()
    model.history.epoch = list(range(arguments["initial_epoch"], arguments["epochs"]))
    model.history.history = {key: [0.0] * len(model.history.epoch) for key in logs}
    return model.history


class _Listener(ProgramListener):
    is_registered = False

    def saved(self, labels: EntryLabels, path: pathlib.Path) -> None:
        if labels.program:  # Keras's own programs have no label
            sys.stderr.write(f"PRE_COMPILE: {labels.program} is saved in {path}\n")  # one write


_listener = _Listener()


def _unregister() -> None:
    unregister_listener(_listener)
    _listener.is_registered = False
