"""Plans that `fit` makes by itself, where the strategy has a memory.

first fit, options at their defaults     the plain update fits      nothing changes
                                         it does not                options of the fastest that fits
later fit, batches of another shape      options as planned         planned anew
options set by the user                                             left alone

Batches stay those of `fit`, so that callbacks and logs do: layouts are compared by `Strategy.plan`.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax

from millrace.base.devices import home
from millrace.base.options import Options
from millrace.base.records.memory import bytes_text
from millrace.compilation.executables.progress import log_line
from millrace.errors import PlanError
from millrace.programs.feeds.block import batch_spec as spec_of
from millrace.programs.plan import BatchSpec
from millrace.run.fit.controller import Controller, PlannedOptions
from millrace.tools.memory_report.report import training_batch
from millrace.tools.planning.applying import options_of
from millrace.tools.planning.batch_of_data import batch_of_data
from millrace.tools.planning.plan import memory_of, search_plan
from millrace.tools.planning.training_plan import TrainingPlan

logger = logging.getLogger("millrace")


def plan_fit(controller: Controller, arguments: Mapping[str, Any]) -> None:
    """Plans the training of a fit that is about to begin, if its strategy has a memory.

    Args:
        controller: of the model.
        arguments: of fit, by name.

    Raises:
        PlanError: if nothing fits.
    """
    memory, before = controller.totals.memory, controller.planned
    controller.totals.compile_log.ahead_seconds = 0.0
    if memory is None or controller.is_running:
        return
    if controller.setup.spans_processes:
        _say_unplanned(
            controller,
            "is trained by several processes, and is not planned. Make a plan in one process on as "
            "many devices, and load it in all.",
        )
        return
    if before is None and not _has_default_options(controller):
        return
    if before is not None and controller.setup.options != before.after:
        return  # the user's, from now on
    described = batch_of_data(arguments)
    if described is None:
        _say_unplanned(
            controller,
            "is trained on data whose batches are unknown before they are drawn, and is not "
            "planned. Call strategy.plan(model, batch, memory).apply() before fit.",
        )
        return
    batch, steps = described
    spec = spec_of(batch)
    if before is not None and before.batch == spec:
        return
    if before is not None:
        controller.put_options(before.before)
    with jax.default_device(home(controller.setup.devices)):
        training_batch(controller, batch, "fit()")
        replicas = controller.setup.replicas
        whole = spec.of_rows(spec.rows * replicas)
        begin = time.perf_counter()
        plan = search_plan(
            controller,
            whole,
            memory_of(controller.setup.devices, memory),
            steps_of_epoch=steps,
            keeps_batches=True,
        )
    controller.totals.compile_log.ahead_seconds = time.perf_counter() - begin
    _put(controller, plan, spec)


def _put(controller: Controller, plan: TrainingPlan, spec: BatchSpec) -> None:
    before = controller.setup.options
    if not plan.fits:
        least = plan.chosen
        raise PlanError(
            f"{plan.model!r} does not fit into {bytes_text(plan.memory)} with batches of {spec}. "
            f"Of {plan.compilations} trainings that were compiled, the smallest takes "
            f"{least.peak:,} bytes: {_settings(least.code)}. Give fit a smaller batch_size, or "
            "call strategy.plan(model, batch), which compares pipelines, too."
        )
    update = plan.chosen.update
    plain = replace(update, steps_per_execution=1)
    after = before
    if len(plain.code.splitlines()) > 1:  # more than the call of fit
        after = options_of(update, before)
        controller.put_options(after)
        log_line(
            f"planned: {plan.model!r} needs {bytes_text(plan.chosen.peak)} of "
            f"{bytes_text(plan.memory)} with {_settings(plain.code)}",
            is_choice=True,
        )
    controller.planned = PlannedOptions(before, after, spec)


def _settings(code: str) -> str:
    """Returns the calls of an alternative, without that of fit."""
    *calls, _ = code.splitlines()
    return "; ".join(calls) or "no option set"


def _has_default_options(controller: Controller) -> bool:
    options, default, stages = controller.setup.options, Options(), controller.setup.stages
    records = ("accumulation", "pipelining", "replication", "recomputation", "offload")
    is_default = all(getattr(options, name) == getattr(default, name) for name in records)
    return is_default and stages.assignment() is None


def _say_unplanned(controller: Controller, why: str) -> None:
    if controller.totals.notes.is_new(f"planning: {why}"):
        logger.warning("%r %s", controller.model.name, why)
