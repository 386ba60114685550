"""Changes with which a training would fit, from the smallest to the largest of each kind.

Each change is compiled to learn its peak. To add a kind, write a function that returns its ladder,
and add it to `ladders`: the report tries its rungs until one fits.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from millrace._compat.jax_memory import host_memory
from millrace.base.devices import home
from millrace.base.options import Accumulation, Options, Recomputation, RecomputationMode
from millrace.base.records.memory_report import MemoryChange, MemoryReport
from millrace.compilation.executables.progress import search
from millrace.errors import MillraceError
from millrace.programs.plan import Mode
from millrace.programs.steps.own_step import has_own_step
from millrace.run.compiled_loop.budget import OverBudgetError
from millrace.run.fit.controller import Controller
from millrace.run.fit.pipelined_model import StageAssignment
from millrace.run.fit.setup import Setup
from millrace.run.pipelines.assignment.balance import balanced
from millrace.run.precompile.precompile import Batches
from millrace.tools.memory_report.needs import Needs, training_needs, with_limits

CHANGES = 3  # that a report shows


@dataclass(frozen=True, slots=True)
class Candidate:
    """A change to try."""

    code: str  # for the user to write
    options: Options  # in place of those of the model
    batches: Batches
    stages: StageAssignment | None = None  # likewise; None where they stay


Ladder = Sequence[Candidate]


def ladders(setup: Setup, batches: Batches, report: MemoryReport) -> list[Ladder]:
    """Returns the changes to try, one ladder for each kind.

    Args:
        setup: of a model whose training does not fit.
        batches: of the training.
        report: its memory, and the limits.
    """
    kinds = (
        _recomputation,
        _offloaded_optimizer_state,
        _shared_optimizer_state,
        _shared_weights,
        _shorter_blocks,
        _smaller_micro_batches,
        _more_stages,
    )
    return [ladder for kind in kinds if (ladder := kind(setup, batches, report))]


def cheapest_changes(
    controller: Controller,
    batches: Batches,
    report: MemoryReport,
    before: Needs,
    budget: int | None,
    most_seconds: float = math.inf,
) -> tuple[MemoryChange, ...]:
    """Returns the changes that make it fit with the fewest FLOPs, or else the nearest one.

    Args:
        controller: of the model.
        batches: of the training.
        report: its memory, and the limits.
        before: its needs without a change.
        budget: bytes of a device, as the user gave it.
        most_seconds: after which no other change is compiled.
    """
    end = time.monotonic() + most_seconds
    changes: list[MemoryChange] = []
    with search("looking for what would make it fit") as tick:
        for ladder in ladders(controller.setup, batches, report):
            for candidate in ladder:
                if time.monotonic() > end:
                    break
                tick(f"compiling with {candidate.code}")
                change = _tried(candidate, controller, before, budget)
                if change is None:
                    break
                changes.append(change)
                if change.fits:
                    break
    fitting = sorted((each for each in changes if each.fits), key=lambda each: each.extra_flops)
    nearest = sorted(changes, key=lambda each: each.peak)[:1]
    return tuple(fitting[:CHANGES] or (each for each in nearest if each.peak < report.peak))


def _tried(
    candidate: Candidate, controller: Controller, before: Needs, budget: int | None
) -> MemoryChange | None:
    """Compiles a change; None if its options cannot be combined with the others."""
    variant = controller.variant(candidate.options, candidate.stages)
    try:
        after = training_needs(variant, candidate.batches)
    except OverBudgetError as error:  # of a model with a budget: a smaller one may fit
        return MemoryChange(candidate.code, error.least, 0.0, fits=False)
    except MillraceError:
        return None
    devices = with_limits(after.devices, variant.setup, budget)
    fits = all(device.fits is not False for device in devices)
    extra = _extra_flops(before, after, variant.setup.replicas / controller.setup.replicas)
    return MemoryChange(candidate.code, after.peak, round(extra, 4), fits)


def _extra_flops(before: Needs, after: Needs, copies: float) -> float:
    """Returns the share of FLOPs that a change adds, with so many times the replicas."""
    flops = before.update_flops()
    return after.update_flops() * copies / flops - 1 if flops else 0.0


def _with(setup: Setup, record: str, **fields: Any) -> Options:
    """Returns a model's options with other fields of one of its records."""
    options = setup.options
    return replace(options, **{record: replace(getattr(options, record), **fields)})


def _recomputation(setup: Setup, batches: Batches, report: MemoryReport) -> Ladder:
    """Returns a budget of the limit, or the mode of a pipeline."""
    if setup.options.recomputation != Recomputation():
        return []
    budget, code = None, "model.set_recomputation_options()"
    if setup.stages.assignment() is None:
        budget = min(device.limit for device in report.devices if device.limit is not None)
        budget -= _blocks_ahead(setup, report)
        code = f"model.set_recomputation_options(budget={budget})"
    options = _with(setup, "recomputation", mode=RecomputationMode.AUTO, budget=budget)
    return [Candidate(code, options, batches)]


def _offloaded_optimizer_state(setup: Setup, batches: Batches, report: MemoryReport) -> Ladder:
    """Returns the offload of the optimizer's state, where host memory can be used."""
    if setup.options.offload.optimizer_state or host_memory(home(setup.devices)) is None:
        return []
    code = "model.set_replication_options(offload_weight_update_variables=True)"
    return [Candidate(code, _with(setup, "offload", optimizer_state=True), batches)]


def _blocks_ahead(setup: Setup, report: MemoryReport) -> int:
    """Returns the bytes of prefetched blocks on a device."""
    if setup.destination.is_host_memory:
        return 0
    depth = setup.options.feed.prefetch_depth
    return _bytes_of_batches(report) * depth // (depth + 1)


def _shared_optimizer_state(setup: Setup, batches: Batches, report: MemoryReport) -> Ladder:
    if setup.replicas == 1 or setup.options.replication.shard_optimizer_state:
        return []
    code = "model.set_replication_options(replicated_optimizer_state_sharding=True)"
    return [Candidate(code, _with(setup, "replication", shard_optimizer_state=True), batches)]


def _shared_weights(setup: Setup, batches: Batches, report: MemoryReport) -> Ladder:
    if setup.replicas == 1 or setup.options.replication.shard_weights:
        return []
    options = _with(setup, "replication", shard_optimizer_state=True, shard_weights=True)
    code = (
        "model.set_replication_options(replicated_optimizer_state_sharding=True, "
        "replicated_weight_sharding=True)"
    )
    return [Candidate(code, options, batches)]


def _shorter_blocks(setup: Setup, batches: Batches, report: MemoryReport) -> Ladder:
    """Returns blocks of half, a quarter, ... of their bytes, where that can be enough."""
    if setup.stages.assignment() is not None:
        return []
    replicas = setup.replicas
    least = batches.spec.nbytes * setup.update_steps(Mode.TRAIN)
    now = _bytes_of_batches(report) * replicas
    nbytes, candidates = now // 2, []
    while nbytes >= least:
        if now - nbytes >= _excess(report) * replicas:
            options = _with(setup, "feed", max_block_bytes=nbytes)
            code = f"model.set_infeed_queue_options(max_block_bytes={nbytes})"
            candidates.append(Candidate(code, options, batches))
        nbytes //= 2
    return candidates


def _smaller_micro_batches(setup: Setup, batches: Batches, report: MemoryReport) -> Ladder:
    """Returns half the rows at a time, a quarter, ...: the same update of the same batches."""
    candidates: list[Candidate] = []
    if setup.options.accumulation.synchronized_statistics:
        return candidates  # parts have statistics of their own
    # Not the batches, which stay.
    scaling = max(
        sum(stage.temporaries + stage.in_flight for stage in device.stages)
        for device in report.devices
    )
    in_force = setup.options.accumulation.micro_batch
    now = batches.spec.rows
    if isinstance(in_force, int):
        now = min(in_force, now)
    rows, factor = now, 2
    while rows % factor == 0:
        # At best, all values that grow with the rows shrink with them.
        if scaling * (factor - 1) >= _excess(report) * factor or rows == factor:
            candidates.append(_micro_batch(setup, batches, rows // factor))
        factor *= 2
    return candidates


def _micro_batch(setup: Setup, batches: Batches, rows: int) -> Candidate:
    code = f"model.set_gradient_accumulation_options(micro_batch={rows})"
    return Candidate(code, _with(setup, "accumulation", micro_batch=rows), batches)


def _more_stages(setup: Setup, batches: Batches, report: MemoryReport) -> Ladder:
    """Returns pipelines of two replicas' devices, of three, ...: the same update, other devices."""
    own, accumulation = setup.stages.assignment(), setup.accumulation
    shares, replicas = setup.options.accumulation.synchronized_statistics, setup.replicas
    if shares or replicas == 1 or has_own_step(setup.model, Mode.TRAIN):
        return []
    is_entered = own is not None and own.stages is None and not own.is_open
    if is_entered or (own is not None and setup.options.pipelining.device_mapping):
        return []  # stages that call() enters, or that have devices of their own
    candidates: list[Candidate] = []
    for factor in range(2, replicas + 1):
        number = factor * (1 if own is None else own.num_stages)
        if replicas % factor:
            continue
        stages, steps = StageAssignment(setup.model), accumulation.steps * factor
        try:
            stages.put(balanced(setup.model, number, batches.spec))
            candidates.append(_pipeline(setup, batches, stages, number, steps))
        except MillraceError:  # fewer layer calls than stages, or not as many as a schedule needs
            break
    return candidates


def _pipeline(
    setup: Setup, batches: Batches, stages: StageAssignment, number: int, steps: int
) -> Candidate:
    """Returns a pipeline of such stages, with so many micro-batches in an update of a replica."""
    options = setup.options
    options = replace(
        options,
        accumulation=replace(
            options.accumulation,
            steps=Accumulation().steps,
            micro_batch=Accumulation().micro_batch,
        ),
        pipelining=replace(options.pipelining, steps=steps),
    )
    changed = replace(setup, options=options, stages=stages)
    per_execution = batches.per_execution
    if changed.replicas == 1 and per_execution > 1:
        per_execution = max(per_execution, steps)
    of_one = per_execution // changed.rules.replicas_as_one(changed)
    code = (
        f"model.set_pipeline_stage_assignment('auto', num_stages={number}); "
        f"model.set_pipelining_options(gradient_accumulation_steps_per_replica={steps})"
    )
    if of_one != setup.model.steps_per_execution:
        code += f"; model.compile(..., steps_per_execution={of_one})"
    return Candidate(code, options, replace(batches, per_execution=per_execution), stages)


def _excess(report: MemoryReport) -> int:
    """Returns the bytes above the limit."""
    return max(d.peak - d.limit for d in report.devices if d.limit is not None)


def _bytes_of_batches(report: MemoryReport) -> int:
    return max(stage.batches for device in report.devices for stage in device.stages)
