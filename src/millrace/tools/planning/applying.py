"""The options of a planned update, in force on a model or on a variant of it."""

import re
from dataclasses import replace

import keras

from millrace.base.options import (
    Accumulation,
    Offload,
    Options,
    Recomputation,
    RecomputationMode,
    member,
)
from millrace.base.records.training_plan import UpdatePlan
from millrace.errors import ModelError, OptionError, PlanError
from millrace.run.fit.controller import Controller
from millrace.run.fit.pipelined_model import StageAssignment
from millrace.run.pipelines.assignment.assignment import Assignment, assign
from millrace.run.pipelines.assignment.layer_calls import find_calls, leaves
from millrace.run.schedules.table import SCHEDULES


def options_of(update: UpdatePlan, options: Options) -> Options:
    """Returns a model's options with those of an update in force; all others stay.

    Raises:
        OptionError: for an update that was read from a file and has no valid value.
    """
    mode = member(RecomputationMode, "recomputation", update.recomputation)
    if update.stages > 1 and update.schedule not in SCHEDULES:  # never the path of a file
        raise OptionError(
            f"The plan has the schedule {update.schedule!r}, which is none of "
            f"{', '.join(SCHEDULES)}. Make the plan again by strategy.plan(model, batch_spec)."
        )
    is_pipeline, default = update.stages > 1, Accumulation()
    rows = default.micro_batch if update.micro_batch is None else update.micro_batch
    blocks = {
        name: value
        for name in ("max_block_bytes", "max_resident_bytes")
        if (value := getattr(update, name)) is not None
    }
    return replace(
        options,
        accumulation=replace(
            options.accumulation,
            steps=default.steps if is_pipeline else update.accumulation,
            micro_batch=default.micro_batch if is_pipeline else rows,
        ),
        pipelining=replace(
            options.pipelining,
            steps=update.accumulation if is_pipeline else None,
            schedule=update.schedule if is_pipeline else None,
            device_mapping=update.device_mapping if is_pipeline else None,
            batch_serialization=1,
        ),
        feed=replace(options.feed, **blocks),
        recomputation=Recomputation(mode=mode, budget=update.budget),
        replication=replace(
            options.replication,
            shard_optimizer_state=update.shard_optimizer_state,
            shard_weights=update.shard_weights,
        ),
        # The defaults of the others depend on the device; what is planned does not.
        offload=replace(
            Offload(), optimizer_state=update.offload_optimizer_state, accumulators=False
        ),
    )


def apply_update(controller: Controller, update: UpdatePlan) -> None:
    """Puts an update in force on a model.

    Raises:
        ModelError: while the model runs.
        OptionError: if the plan is for a model with other layer calls.
        PlanError: if it is for another number of devices.
    """
    model, setup = controller.model, controller.setup
    if controller.is_running:
        raise ModelError(
            f"{model.name!r} is in a fit, evaluate or predict, and its options cannot change now. "
            "Call plan.apply() before fit, or after it has returned."
        )
    number = update.replicas * update.groups
    if number != len(setup.devices):
        raise PlanError(
            f"The plan is for {number} devices: {update.replicas} replicas of {update.groups}. The "
            f"strategy of {model.name!r} has {len(setup.devices)}. Make a plan for it: "
            "strategy.plan(model, batch_spec)."
        )
    options = options_of(update, setup.options)
    stages = setup.stages
    if update.stages == 1:
        stages = StageAssignment(model)
        stages.reset()
    elif update.cut:
        stages = StageAssignment(model)
        stages.put(_assignment(update, model))
    else:
        assignment = stages.assignment()
        if assignment is None or assignment.num_stages != update.stages:
            raise PlanError(
                f"The plan is for a model whose call() enters {update.stages} pipeline stages, and "
                f"that of {model.name!r} does not. Make a plan for it: "
                "strategy.plan(model, batch_spec)."
            )
    controller.setup = replace(setup, stages=stages)
    controller.feeds.forget_capacities()  # peaks were compiled for blocks that begin anew
    controller.put_options(options)
    model.steps_per_execution = update.steps_per_execution


def _assignment(update: UpdatePlan, model: keras.Model) -> Assignment:
    """Returns the stage of each layer call, by its place in the order of execution.

    Keras numbers layers without a name anew for every model, so that numbers may differ.

    Raises:
        OptionError: if the model makes other calls than the planned one, or stages do not fit.
    """
    calls = find_calls(model)
    names = [leaf.name for leaf in leaves(calls)]
    planned = [name for name, _, _ in update.cut]
    if list(map(_without_number, names)) != list(map(_without_number, planned)):
        pairs = zip(planned, names, strict=False)
        other = next((pair for pair in pairs if len(set(map(_without_number, pair))) > 1), None)
        where = f", the first other one {other[1]!r} for {other[0]!r}" if other else ""
        raise OptionError(
            f"The plan has stages for {len(planned)} layer calls, and {model.name!r} makes "
            f"{len(names)}{where}. Make a plan for it: strategy.plan(model, batch_spec)."
        )
    return assign(calls, [stage for _, _, stage in update.cut])


def _without_number(name: str) -> str:
    return re.sub(r"_\d+(?=/|$)", "", name)
