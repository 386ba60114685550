"""Training of one model by several processes.

before a loop    compare model, options, weights and data: see `run/processes/agreement.py`
while it runs    the first one prints
when it fails    the error names the process that failed first
files            complete or absent, whichever process writes them and whenever it dies
"""

import inspect
import json
import os
import pathlib
import weakref
import zlib
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import keras
import numpy as np

from millrace._compat.keras_steps import stored_value
from millrace.base.options import Options
from millrace.errors import ProcessError
from millrace.programs.plan import BatchSpec, Mode
from millrace.run.fit.setup import Setup
from millrace.run.pipelines.assignment.assignment import Assignment
from millrace.run.processes.agreement import (
    check_same,
    process_count,
    process_index,
    raise_difference,
    texts_of_all,
)
from millrace.run.processes.failure import failure_of_others

AGREEMENT_SECONDS = 600.0  # from the first process to the last, which may have more data to load


class Agreement:
    """Compares model, options, weights and data of all processes, once for each loop.

    The facts about the model are noted before a loop, and compared with those about the data when
    Keras has looked at it: each exchange between processes takes some milliseconds.
    """

    def __init__(self) -> None:
        self._facts: dict[str, str] = {}
        # The values that the last loop left in the variables, which are the same in all processes.
        self._left: list[weakref.ref[object]] = []
        self._loops = 0

    def note(self, setup: Setup, mode: Mode, is_running: bool) -> None:
        """Notes the facts about the model before fit, evaluate or predict."""
        if not setup.spans_processes:
            return
        model = setup.model
        assignment = setup.stages.assignment()
        self._facts = {
            "call": f"{mode.value} of {model.name!r}",
            "devices": ", ".join(map(str, setup.devices)),
            "model": _layers(model),
            "stages": "none"
            if assignment is None
            else f"{assignment.num_stages}: {assignment.stages}",
            "options": _options(setup.options),
            "compile": _compilation(model),
        }
        if not is_running:  # validation within fit has the weights of that fit
            self._facts["weights"] = self._known(model) or _checksum(_values(model))

    def compare(
        self, setup: Setup, batches: int | None, rows: int | None, last: int | None
    ) -> None:
        """Compares what was noted, and the numbers of batches and of rows in them.

        Args:
            setup: of the model.
            batches: of an epoch; None: unknown.
            rows: of a batch.
            last: rows of a smaller last batch.

        Raises:
            PlanError: in every process, naming the difference.
            ProcessError: if a process does not arrive.
        """
        if not setup.spans_processes:
            return
        facts, self._facts = self._facts, {}
        facts["data"] = f"{batches} batches of {rows} rows"
        facts["last batch"] = f"{last or rows} rows"
        others = texts_of_all(facts, AGREEMENT_SECONDS)
        weights = {each.get("weights", "") for each in others}
        if len(weights) > 1 and any(text.startswith(_LEFT) for text in weights):
            # One process has set values since, perhaps to what they were.
            facts["weights"] = _checksum(_values(setup.model))
            others = texts_of_all(facts, AGREEMENT_SECONDS)
        raise_difference(others)

    def has_left(self, model: keras.Model) -> None:
        """Remembers the values that a loop has left, after all processes have got them."""
        values = [stored_value(variable) for variable in model.variables]
        # A step that fails has taken them; they are restored later, and compared in full.
        is_whole = all(value is not None for value in values)
        self._left = [weakref.ref(value) for value in values] if is_whole else []
        self._loops += 1

    def _known(self, model: keras.Model) -> str | None:
        """Returns a text that stands for the weights, if they are those of the last loop."""
        values = _values(model)
        is_same = len(self._left) == len(values) and all(
            left() is value for left, value in zip(self._left, values, strict=True)
        )
        return f"{_LEFT} {self._loops}" if is_same and values else None


_LEFT = "those after loop"


def agree_on_built(setup: Setup) -> None:
    """Compares variables and weights that the first batch has made."""
    if setup.spans_processes:
        check_same(_model(setup.model), AGREEMENT_SECONDS)


def agree_on_order(setup: Setup, order: np.ndarray) -> None:
    """Compares the order of the rows of an epoch."""
    if setup.spans_processes:
        check_same({"data order": f"{len(order)} rows, {_checksum([order])}"}, AGREEMENT_SECONDS)


def agree_on_stages(setup: Setup, assignment: Assignment, batch: BatchSpec) -> None:
    """Compares the stages that the first batch has decided."""
    if setup.spans_processes:
        fact = f"{assignment.stages}, balanced for {batch}"
        check_same({"stages": fact}, AGREEMENT_SECONDS)


def raise_failure_of_others(error: BaseException) -> None:
    """Raises the failure of another process, if `error` follows from it.

    Raises:
        ProcessError: naming the process that failed first.
    """
    if process_count() > 1 and isinstance(error, Exception) and (why := failure_of_others()):
        raise ProcessError(why) from error


def quiet_unless_first(setup: Setup, arguments: dict[str, object]) -> None:
    """Turns the progress bar of a call off in all processes but the first."""
    if setup.spans_processes and process_index():
        arguments["verbose"] = 0


def whole_files(model: keras.Model, name: str) -> Callable[..., Any]:
    """Returns a method that writes a file, such as `save`, in a run of many processes.

    All of them write the same, perhaps to the same path, and each may be killed at any time. So
    the file is written under another name, and renamed when it is complete.
    """
    stock = getattr(type(model), name)
    signature = inspect.signature(stock)

    def write(*args: object, **kwargs: object) -> Any:
        bound = signature.bind(model, *args, **kwargs)
        filepath = bound.arguments.get("filepath")
        replaces = bound.arguments.get("overwrite", True) or not os.path.exists(str(filepath))
        path = pathlib.Path(filepath) if isinstance(filepath, str | os.PathLike) else None
        if process_count() == 1 or not replaces or path is None or not path.suffix:
            return stock(*bound.args, **bound.kwargs)
        # Keras looks at all suffixes: "model.weights.h5".
        partial = path.with_name(f"partial-{process_index()}-{os.getpid()}-{path.name}")
        bound.arguments["filepath"] = str(partial)
        try:
            result = stock(*bound.args, **bound.kwargs)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
        return result

    write.__doc__ = stock.__doc__
    return write


def _model(model: keras.Model) -> dict[str, str]:
    weights = _checksum(_values(model))
    return {"model": _layers(model), "weights": weights}


def _values(model: keras.Model) -> list[Any]:
    return [variable.value for variable in model.variables]


def _layers(model: keras.Model) -> str:
    kinds = [type(layer).__name__ for layer in model.layers]
    shapes = [(v.path, tuple(v.shape), str(v.dtype)) for v in model.variables]
    return f"{len(kinds)} layers, {len(shapes)} variables, {_digest(json.dumps([kinds, shapes]))}"


def _options(options: Options) -> str:
    # Functions differ from process to process by their address only.
    return str(json.dumps(asdict(options), default=lambda x: getattr(x, "__qualname__", str(x))))


def _compilation(model: keras.Model) -> str:
    if not model.compiled:
        return "not compiled"
    optimizer = keras.optimizers.serialize(model.optimizer) if model.optimizer else None
    text = json.dumps(optimizer, default=str, sort_keys=True)
    return f"steps_per_execution={model.steps_per_execution}, optimizer {text}"


def _checksum(values: Iterable[object]) -> str:
    total = 0
    for value in values:
        if getattr(value, "is_fully_addressable", True):
            total = zlib.crc32(np.ascontiguousarray(np.asarray(value)).data.cast("B"), total)
    return f"{total:08x}"


def _digest(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"
