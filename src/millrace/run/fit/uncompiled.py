"""Models that are not to be compiled: Keras's own loop runs them, step by step.

    compile(run_eagerly=True)      every operation by itself
    compile(jit_compile=False)     the same on JAX; also what a layer without support for it
                                   means, unless a trial trace of it shows that it can be compiled

Such a model has to be in one piece on one device. Options of compiled programs are refused, not
ignored: accumulation, recomputation, offloading, and callbacks that look into a step.
"""

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

import jax
import keras

from millrace._compat.keras_layers import all_layers, flagged_layers, layers_without_jit
from millrace._compat.keras_loops import restore_state
from millrace.base.interrupts import raise_if_interrupted
from millrace.base.options import NO_OFFLOAD, Recomputation, TapRequest
from millrace.errors import ModelError, PlanError, UnsupportedError
from millrace.programs.plan import Mode
from millrace.programs.steps.tapped_step import tapping_optimizer
from millrace.run.fit.checks import check_distribution, described, remedy
from millrace.run.fit.model_functions import LoopFunctions, UncompiledFunction
from millrace.run.fit.setup import Setup

S = TypeVar("S", bound=Iterable[Iterable[object]])
T = TypeVar("T")
R = TypeVar("R")

logger = logging.getLogger("millrace")


def uncompiled_because(model: keras.Model) -> str | None:
    """Returns why a model is not compiled; None if it is."""
    if getattr(model, "run_eagerly", False):
        return "run_eagerly=True"
    if model.compiled and model.jit_compile:
        return None
    # Not `jit_compile` of a model that was never compiled: reading it would set it.
    if layers := layers_without_jit(model):
        return f"layers that do not support compilation, {layers}"
    return "jit_compile=False" if model.compiled else None


def runs_uncompiled(setup: Setup) -> bool:
    """Whether Keras's own loop runs the model; with stages or replicas it is refused instead."""
    return (
        setup.rules.runs_uncompiled
        and uncompiled_because(setup.model) is not None
        and setup.stages.assignment() is None
        and setup.replicas == 1
    )


def check_uncompiled(setup: Setup, mode: Mode) -> None:
    """Refuses options and layers that would silently have no effect.

    Raises:
        PlanError: for an option that needs compiled programs.
        ModelError: for a layer or an optimizer that carries values out of a program, or if a
            `keras.distribution` is set.
    """
    model, options = setup.model, setup.options
    check_distribution(model)
    why = _runs_by_itself(model)
    queues = [layer.name for layer in all_layers(model) if hasattr(layer, "queue_kind")]
    if queues:
        raise ModelError(
            f"{why}: its outfeed layers {queues} would enqueue nothing. {remedy(model)}, or "
            "remove these layers."
        )
    if options.asynchronous_callbacks and model.compiled and model.steps_per_execution > 1:
        raise PlanError(
            f"{why}: set_asynchronous_callbacks(True) has no effect with "
            f"steps_per_execution={model.steps_per_execution}. Set steps_per_execution=1 in "
            "compile(), and callbacks see every step."
        )
    if mode is Mode.TRAIN:
        _check_training(setup, why)


def _check_training(setup: Setup, why: str) -> None:
    model, options = setup.model, setup.options
    advice = remedy(model)
    steps = setup.accumulation_as_set.steps
    if steps > 1:
        raise PlanError(
            f"{why}: gradient_accumulation_steps_per_replica={steps} has no effect there. {advice},"
            f" or give the optimizer gradient_accumulation_steps={steps} and set "
            "gradient_accumulation_steps_per_replica=1."
        )
    if options.recomputation != Recomputation():
        raise PlanError(
            f"{why}: set_recomputation_options() has no effect there. {advice}, or set mode='none'."
        )
    if setup.offload != NO_OFFLOAD:
        raise PlanError(f"{why}: offloading has no effect there. {advice}, or offload nothing.")
    if tapping_optimizer(model) is not None:
        raise ModelError(
            f"{why}: an OutfeedOptimizer would enqueue nothing there. {advice}, or use the "
            "optimizer that it wraps."
        )


def check_watched(setup: Setup, taps: TapRequest) -> None:
    """Refuses to watch tensors that there are not.

    Raises:
        ModelError: for a model that is not compiled, naming what to remove.
        UnsupportedError: for gradients of micro-batches that are computed as one batch.
    """
    if taps.micro_gradients and setup.merges(Mode.TRAIN) > 1:
        raise UnsupportedError(
            "With synchronized_batch_statistics=True the micro-batches of an update have no "
            "gradients of their own: they are computed as one batch. Watch the gradients of "
            "updates instead (when='before_apply'), or set synchronized_batch_statistics=False."
        )
    if runs_uncompiled(setup):
        model = setup.model
        raise ModelError(
            f"{_runs_by_itself(model)}. NaNWatch and TensorStatistics look into compiled programs. "
            f"{remedy(model)}, or train without these callbacks."
        )


def _runs_by_itself(model: keras.Model) -> str:
    runs = f"{described(model)} runs in Keras's own loop, step by step"
    return f"{runs}, for it has {uncompiled_because(model)}"


def make_uncompiled_function(setup: Setup, functions: LoopFunctions, mode: Mode) -> None:
    """Gives the model Keras's own train, test or predict function, on the strategy's device.

    As in Keras a function is kept until the settings change.
    """
    check_uncompiled(setup, mode)
    model, attribute = setup.model, f"{mode.value}_function"
    settings = (getattr(model, "run_eagerly", False), uncompiled_because(model))
    before = functions.uncompiled
    last = before.get(mode)
    if last and last.function is getattr(model, attribute) and last.settings == settings:
        return
    if settings not in [each.settings for each in before.values()]:
        logger.info(
            "model %r has %s, so Keras's own loop runs it, one step at a time: nothing is compiled "
            "around the steps, no data is prepared ahead, and strategy.statistics() and the "
            "compile log say nothing of it.%s",
            model.name,
            settings[1],
            f" {remedy(model)}." if flagged_layers(model) else "",  # Keras may have chosen it
        )
    getattr(type(model), f"make_{attribute}")(model, force=True)
    function = _on_device(setup, functions, mode, getattr(model, attribute))
    setattr(model, attribute, function)
    before[mode] = UncompiledFunction(function, settings)


def _on_device(
    setup: Setup, functions: LoopFunctions, mode: Mode, function: Callable[[S, T], R]
) -> Callable[[S, T], R]:
    def run(state: S, iterator: T) -> R:
        functions.running = None  # the loop holds the values of the variables
        try:
            raise_if_interrupted()
        except KeyboardInterrupt:
            restore_state(setup.model, state)  # which only the loop has
            raise
        recorder = functions.recorder
        if recorder is not None:
            recorder.begins(mode, 0)
        with jax.default_device(setup.devices[0]):
            result = function(state, iterator)
        if recorder is not None:
            steps = setup.model.steps_per_execution if setup.model.compiled else 1
            recorder.executed(steps, 0.0, {})
        return result

    return run
