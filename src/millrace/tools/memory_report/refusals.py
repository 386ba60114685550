"""The refusal of a budget: the tensors that hold the least peak, and the changes that would fit.

budget=0.2 is 2,000 bytes. Of all programs that were compiled for it, the smallest takes 3,000.
It has 1.50 KB of optimizer state, 900 B of parameters and 600 B of activations, ... Set
budget=3000 or more, or keep the budget with one of these changes, each compiled: ...
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from millrace.base.records.memory import NO_LAYER, LiveBuffer, bytes_text
from millrace.base.records.memory_report import DeviceMemory, MemoryChange, MemoryReport
from millrace.run.compiled_loop.budget import OverBudgetError, advice
from millrace.run.fit.controller import Controller
from millrace.run.precompile.precompile import Batches
from millrace.tools.memory_report.changes import cheapest_changes
from millrace.tools.memory_report.needs import Needs, needs_of, with_limits

MOST_SECONDS = 60  # in which changes are compiled; one that has begun is finished
_TENSORS = 4  # that the message names
_LAYERS = 3


def explained_refusal(
    error: OverBudgetError,
    controller: Controller,
    batches: Batches,
) -> OverBudgetError:
    """Returns the refusal of a budget with its reasons, unless it has them already.

    Args:
        error: without them.
        controller: of the model.
        batches: of the training.
    """
    if error.programs is None:
        return error
    least = needs_of(error.programs, controller.setup)
    devices = with_limits(least.devices, controller.setup, error.nbytes)
    fullest = max(devices, key=lambda device: device.peak)
    changes = _changes(error, controller, batches, replace(least, devices=devices))
    # The other processes have their own devices, one of which may be the fullest of all.
    owner = "The fullest device of this process" if controller.setup.spans_processes else "It"
    details = f"{owner} {_at_the_peak(fullest)} {advice(error.least)}{_alternatives(changes)}"
    return OverBudgetError(error.budget, error.nbytes, error.least, details)


def _changes(
    error: OverBudgetError,
    controller: Controller,
    batches: Batches,
    least: Needs,
) -> tuple[MemoryChange, ...]:
    """Returns changes with which the budget is kept, or else the nearest one."""
    model, setup = controller.model, controller.setup
    if setup.spans_processes:  # which would not all be out of time at the same change
        return ()
    recomputation = replace(setup.options.recomputation, budget=error.nbytes)
    in_bytes = controller.variant(replace(setup.options, recomputation=recomputation))
    report = MemoryReport(model.name, str(batches.spec), least.devices)
    return cheapest_changes(in_bytes, batches, report, least, error.nbytes, MOST_SECONDS)


def _at_the_peak(device: DeviceMemory) -> str:
    """Returns sentences about a device at its peak: the uses, the tensors, the layers.

    The first one is without its subject.
    """
    uses: Counter[str] = Counter()
    for stage in device.stages:
        uses["parameters"] += stage.parameters
        uses["optimizer state"] += stage.optimizer_state
        uses["accumulated gradients"] += stage.accumulators
        uses["batches"] += stage.batches
        uses["micro-batches in flight"] += stage.in_flight
        uses["activations, gradients and other temporary values"] += stage.temporaries
    text = f"has {_listed([f'{bytes_text(n)} of {use}' for use, n in uses.most_common() if n])}."
    if device.alive:
        tensors = [_tensor_text(each) for each in device.alive[:_TENSORS]]
        text += f" The largest tensors at its peak are {_listed(tensors)}."
    named = [each for each in device.layers if each.layer != NO_LAYER][:_LAYERS]
    if named:
        layers = [f"{each.layer!r} ({bytes_text(each.nbytes)})" for each in named]
        text += f" The layers with the most bytes are {_listed(layers)}."
    return text


def _tensor_text(tensor: LiveBuffer) -> str:
    is_variable = tensor.opcode in ("parameter", "")
    name = tensor.name if is_variable else tensor.operation or tensor.opcode
    owner = f" of {tensor.layer!r}" if tensor.layer and not is_variable else ""
    return f"{tensor.shape} {name}{owner} ({bytes_text(tensor.nbytes)})".strip()


def _alternatives(changes: Sequence[MemoryChange]) -> str:
    """Returns the rest of the sentence that begins with the budget to set."""
    if not changes:
        return ", or use smaller batches."
    if not changes[0].fits:
        (nearest,) = changes
        return (
            f". Of the other changes that were compiled, none fits; the nearest, {nearest.code}, "
            f"takes {nearest.peak:,} bytes."
        )
    lines = "".join(f"\n  {each.peak:>15,} bytes  {each.code}" for each in changes)
    return f", or keep the budget with one of these changes, each compiled:{lines}"


def _listed(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
