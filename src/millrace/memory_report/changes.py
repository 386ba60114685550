"""What would make a training fit: changes to try, from the least to the most of each kind.

Each change is compiled to know its peak. To add a kind, write a function that returns its ladder,
and name it in `ladders`: the report tries its rungs until one fits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from millrace._compat.jax_memory import host_memory
from millrace.devices import home
from millrace.errors import MillraceError
from millrace.fit.controller import Controller
from millrace.memory_report.needs import Needs, with_limits
from millrace.options import Options, Recomputation, RecomputationMode
from millrace.plan import Mode
from millrace.precompile.rehearse import Batches
from millrace.records.memory_report import MemoryChange, MemoryReport

CHANGES = 3  # that a report shows


@dataclass(frozen=True, slots=True)
class Candidate:
    """A change to try."""

    code: str  # what the user would write
    options: Options  # in place of those of the model
    batches: Batches


Ladder = Sequence[Candidate]


def ladders(controller: Controller, batches: Batches, report: MemoryReport) -> list[Ladder]:
    """Returns the changes to try, one ladder for each kind.

    Args:
        controller: of a model whose training does not fit.
        batches: that it is trained on.
        report: what it needs, and the limits.
    """
    kinds = (
        _recomputation,
        _offloaded_optimizer_state,
        _shared_optimizer_state,
        _shared_weights,
        _shorter_blocks,
        _smaller_micro_batches,
    )
    return [ladder for kind in kinds if (ladder := kind(controller, batches, report))]


def cheapest_changes(
    controller: Controller,
    batches: Batches,
    report: MemoryReport,
    before: Needs,
    budget: int | None,
    needs: Callable[[Controller, Batches], Needs],
    tick: Callable[[str], object],
) -> tuple[MemoryChange, ...]:
    """Returns the changes that make it fit with the fewest FLOPs; else the one that comes nearest.

    Args:
        controller: of the model.
        batches: that it is trained on.
        report: what it needs, and the limits.
        before: what it needs now.
        budget: bytes of a device, as the user gave it.
        needs: compiles the training of a controller, and returns what it needs.
        tick: is told what is compiled next.
    """
    found: list[MemoryChange] = []
    for ladder in ladders(controller, batches, report):
        for candidate in ladder:
            tick(candidate.code)
            variant = controller.variant(candidate.options)
            try:
                after = needs(variant, candidate.batches)
            except MillraceError:  # options that do not go with the others
                break
            devices = with_limits(after.devices, variant, budget)
            fits = all(device.fits is not False for device in devices)
            extra = _extra_flops(before, after)
            found.append(MemoryChange(candidate.code, after.peak, round(extra, 4), fits))
            if fits:
                break
    fitting = sorted((each for each in found if each.fits), key=lambda each: each.extra_flops)
    nearest = sorted(found, key=lambda each: each.peak)[:1]
    return tuple(fitting[:CHANGES] or (each for each in nearest if each.peak < report.peak))


def _extra_flops(before: Needs, after: Needs) -> float:
    if after.added_flops is not None:
        return (1 + after.added_flops) / (1 + (before.added_flops or 0.0)) - 1
    flops = before.update_flops()
    return after.update_flops() / flops - 1 if flops else 0.0


def _recomputation(controller: Controller, batches: Batches, report: MemoryReport) -> Ladder:
    """A budget of what there is, or the modes of a pipeline."""
    options = controller.options
    if options.recomputation != Recomputation():
        return []
    if controller.stages.assignment() is not None:
        changed = replace(options, recomputation=Recomputation(mode=RecomputationMode.AUTO))
        return [Candidate("model.set_recomputation_options()", changed, batches)]
    limit = min(device.limit for device in report.devices if device.limit is not None)
    limit -= _blocks_ahead(controller, report)
    changed = replace(
        options, recomputation=Recomputation(mode=RecomputationMode.AUTO, budget=limit)
    )
    return [Candidate(f"model.set_recomputation_options(budget={limit})", changed, batches)]


def _offloaded_optimizer_state(
    controller: Controller, batches: Batches, report: MemoryReport
) -> Ladder:
    """The optimizer's values in host memory, where there is such and they are not there yet."""
    options = controller.options
    if options.offload.optimizer_state or host_memory(home(controller.devices)) is None:
        return []
    changed = replace(options, offload=replace(options.offload, optimizer_state=True))
    code = "model.set_replication_options(offload_weight_update_variables=True)"
    return [Candidate(code, changed, batches)]


def _blocks_ahead(controller: Controller, report: MemoryReport) -> int:
    """Returns the bytes of blocks that are on a device besides that of the running program."""
    if controller.destination.is_host_memory:
        return 0
    depth = controller.options.feed.prefetch_depth
    return _bytes_of_batches(report) * depth // (depth + 1)


def _shared_optimizer_state(
    controller: Controller, batches: Batches, report: MemoryReport
) -> Ladder:
    replication = controller.options.replication
    if controller.replicas == 1 or replication.shard_optimizer_state:
        return []
    options = replace(
        controller.options, replication=replace(replication, shard_optimizer_state=True)
    )
    code = "model.set_replication_options(replicated_optimizer_state_sharding=True)"
    return [Candidate(code, options, batches)]


def _shared_weights(controller: Controller, batches: Batches, report: MemoryReport) -> Ladder:
    replication = controller.options.replication
    if controller.replicas == 1 or replication.shard_weights:
        return []
    options = replace(
        controller.options,
        replication=replace(replication, shard_optimizer_state=True, shard_weights=True),
    )
    code = (
        "model.set_replication_options(replicated_optimizer_state_sharding=True, "
        "replicated_weight_sharding=True)"
    )
    return [Candidate(code, options, batches)]


def _shorter_blocks(controller: Controller, batches: Batches, report: MemoryReport) -> Ladder:
    """Blocks of half, a quarter, ... of their bytes, if that can be enough."""
    if controller.stages.assignment() is not None:
        return []
    feed, options, replicas = controller.options.feed, controller.options, controller.replicas
    least = batches.spec.nbytes * controller.window(Mode.TRAIN)
    now = _bytes_of_batches(report) * replicas
    nbytes, found = now // 2, []
    while nbytes >= least:
        if now - nbytes >= _excess(report) * replicas:
            changed = replace(options, feed=replace(feed, max_block_bytes=nbytes))
            code = f"model.set_infeed_queue_options(max_block_bytes={nbytes})"
            found.append(Candidate(code, changed, batches))
        nbytes //= 2
    return found


def _smaller_micro_batches(
    controller: Controller, batches: Batches, report: MemoryReport
) -> Ladder:
    """Half the rows and twice the accumulation, again and again: the same update."""
    found = []
    # Not the batches: an execution has more of them then, and a block as many bytes.
    scaling = max(
        sum(stage.temporaries + stage.in_flight for stage in device.stages)
        for device in report.devices
    )
    rows, factor = batches.spec.rows, 2
    while rows % factor == 0:
        # At best all that grows with the rows shrinks with them.
        if scaling * (factor - 1) >= _excess(report) * factor or rows == factor:
            found.append(_divided(controller, batches, factor))
        factor *= 2
    return found


def _divided(controller: Controller, batches: Batches, factor: int) -> Candidate:
    options, spec = controller.options, batches.spec
    rows = spec.rows // factor
    shapes = tuple((rows, *shape[1:]) for shape in spec.shapes)
    if controller.stages.assignment() is not None:
        steps = (options.pipelining.steps or 1) * factor
        options = replace(options, pipelining=replace(options.pipelining, steps=steps))
        code = f"model.set_pipelining_options(gradient_accumulation_steps_per_replica={steps}, ...)"
    else:
        steps = options.accumulation.steps * factor
        options = replace(options, accumulation=replace(options.accumulation, steps=steps))
        code = (
            "model.set_gradient_accumulation_options("
            f"gradient_accumulation_steps_per_replica={steps})"
        )
    per_execution = batches.per_execution
    if per_execution > 1 or controller.replicas == 1:
        per_execution *= factor
        code += f"; model.compile(..., steps_per_execution={per_execution})"
    code += f"; model.fit(..., batch_size={rows})"
    per_epoch = None if batches.per_epoch is None else batches.per_epoch * factor
    return Candidate(code, options, Batches(replace(spec, shapes=shapes), per_execution, per_epoch))


def _excess(report: MemoryReport) -> int:
    """Returns how many bytes are too much."""
    return max(d.peak - d.limit for d in report.devices if d.limit is not None)


def _bytes_of_batches(report: MemoryReport) -> int:
    return max(stage.batches for device in report.devices for stage in device.stages)
