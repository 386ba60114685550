"""What training a model will need, before anything runs."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from millrace._compat.keras import get_data_adapter
from millrace._compat.keras_build import build_for
from millrace.errors import ModelError, OptionError
from millrace.feeds.block import batch_spec as spec_of
from millrace.plan import Mode
from millrace.records.memory_report import MemoryReport
from millrace.strategy.controller import Controller
from millrace.strategy.functions import LoopFunction
from millrace.strategy.memory import Batches, Needs, with_limits
from millrace.strategy.memory_changes import cheapest_changes
from millrace.strategy.memory_methods import bytes_or_share


def memory_report(
    controller: Controller, given: Any, budget: int | str | None, steps_per_epoch: int | None
) -> MemoryReport:
    """Returns what training needs, and what would make it fit; see `Strategy.memory_report`."""
    model, limit = controller.model, None if budget is None else _limit(budget)
    if not model.compiled:
        raise ModelError(
            f"What {model.name!r} needs depends on its optimizer and its loss, and it is not "
            "compiled. Call model.compile(optimizer, loss) before memory_report()."
        )
    batch = _batch(given)
    controller.check(Mode.TRAIN)
    build_for(model, batch)
    model.make_train_function()
    batches = Batches(spec_of(batch), model.steps_per_execution, steps_per_epoch)
    before = controller.functions[Mode.TRAIN].needs(batches)
    devices = with_limits(before.devices, controller, limit)
    report = MemoryReport(model.name, str(batches.spec), devices)
    if report.fits is not False:
        return report
    with _progress() as tick:
        changes = cheapest_changes(controller, batches, report, before, limit, _needs, tick)
    return replace(report, changes=changes)


def _needs(controller: Controller, batches: Batches) -> Needs:
    return LoopFunction(controller, Mode.TRAIN).needs(batches)


def _limit(budget: Any) -> int:
    nbytes = bytes_or_share(budget)
    if isinstance(nbytes, float):
        raise OptionError(
            f"budget is of one device, in bytes. Received: {budget!r}. Set it to a whole number "
            "of bytes, or text such as '1.5GB'."
        )
    return nbytes


def _batch(given: Any) -> Any:
    """Returns a batch of zeros as Keras's data adapter would give it to `fit`."""
    parts = given if isinstance(given, tuple) and not _is_pair(given) else (given,)
    if not 1 <= len(parts) <= 3:
        raise OptionError(
            "batch_spec is one batch: (x, y) or (x, y, sample_weight). Received a tuple of "
            f"{len(parts)}. Several inputs of a model are a list or a dict within x."
        )
    zeros = [jax.tree.map(_zeros, part, is_leaf=_is_pair) for part in parts]
    leaves = jax.tree.leaves(zeros)
    if not leaves or not all(leaf.ndim for leaf in leaves):
        raise OptionError(
            "batch_spec has no leaf with rows. Set it to arrays of one batch, such as "
            "(x[:32], y[:32]), or to ((32, 784), 'float32') for each."
        )
    names = dict(zip(("x", "y", "sample_weight"), zeros, strict=False))
    adapter = get_data_adapter(**names, batch_size=len(leaves[0]), class_weight=None)
    return next(iter(adapter.get_jax_iterator()))


def _is_pair(value: Any) -> bool:
    """Whether a value is a shape and a dtype."""
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(value[0], tuple | list)
        and all(isinstance(length, int) for length in value[0])
        and isinstance(value[1], str | type | np.dtype)
    )


def _zeros(leaf: Any) -> Any:
    # Zeros that nobody writes to take no memory.
    if _is_pair(leaf):
        return np.zeros(leaf[0], jnp.dtype(leaf[1]))
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return np.zeros(leaf.shape, leaf.dtype)
    raise OptionError(
        "batch_spec is made of arrays, jax.ShapeDtypeStructs, or pairs of shape and dtype. "
        f"Received: {leaf!r}. Set it to ((32, 784), 'float32'), say."
    )


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], object]]:
    """Gives what shows, on a terminal, which change is being compiled."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda code: None
        return
    with console.status("looking for what would make it fit ...") as status:
        yield lambda code: status.update(f"compiling with {code} ...".replace("[", r"\["))
