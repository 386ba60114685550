"""One sentence about a run: how long it lost to what limited it, and the option to set."""

from collections.abc import Callable, Iterable, Sequence

from millrace.base.records.compilation import CompileRecord, Origin, compile_totals
from millrace.base.records.operations import OperationGroup
from millrace.base.records.printable import counted
from millrace.base.records.run import RunRecords
from millrace.tools.reports.bubble_advice import bubble_advice
from millrace.tools.reports.loop_parts import LoopParts, lost_text

_FEW_STEPS = 20  # too few for advice about longer executions
_RECOMPUTING = 0.1  # share of recomputation in the time of operations that is worth a word
Parts = Sequence[LoopParts]


def advice(run: RunRecords, parts: Parts, limit: str) -> str:
    """Returns a sentence.

    Args:
        run: all records.
        parts: of its loops.
        limit: what limited the run, one of `PARTS`; empty if nothing has run.
    """
    makers: dict[str, Callable[[RunRecords, Parts], str]] = {
        "compile": _compile_advice,
        "planning": _planning_advice,
        "data": _data_advice,
        "bubble": bubble_advice,
        "transfer": _transfer_advice,
        "compute": _compute_advice,
        "other": _other_advice,
    }
    if limit not in makers:
        return "No loop of this run has taken any time yet."
    return makers[limit](run, parts)


def _compile_advice(run: RunRecords, parts: Parts) -> str:
    lost = f"Compiling took {lost_text(parts, 'compile')}"
    executables = [each for each in run.compilations if each.is_executable]
    again = [each for each in executables if each.is_recompilation]
    totals = compile_totals(executables)
    if again and 2 * totals.recompilation_seconds >= totals.seconds:
        cause, remedy = _costliest(again)
        times = "once" if len(again) == 1 else f"{len(again)} times"
        change = _clause(remedy) or "strategy.compile_log has the cause of each"
        return (
            f"{lost}, and {totals.recompilation_seconds:.2f} s of it went into compiling again, "
            f"{times}, mostly because of {_clause(cause)}: {change}."
        )
    fresh = sum(each.compile_seconds for each in executables if each.origin is Origin.COMPILED)
    if not executables:
        return f"{lost}: strategy.compile_log has the cause of each compilation."
    programs = counted(len(executables), "first executable")
    if 2 * fresh >= totals.seconds:
        return (
            f"{lost}, for {programs} of this run, which the next run reads from the cache of "
            "Strategy(cache_dir=...) and model.precompile(batch_spec) compiles beforehand."
        )
    return (
        f"{lost}, for {programs} of this run, mostly for tracing and reading: "
        "strategy.export_executables(directory) and load_executables(directory) save the tracing."
    )


def _planning_advice(run: RunRecords, parts: Parts) -> str:
    return (
        "Searching for what fits into the memory, by compiling several programs, took "
        f"{lost_text(parts, 'planning')}: Strategy(cache_dir=...) keeps these programs for the "
        "next run, and model.precompile(batch_spec) searches before there is data."
    )


def _costliest(records: Iterable[CompileRecord]) -> tuple[str, str]:
    """Returns the cause that took the most time, and its remedy."""
    seconds: dict[str, float] = {}
    remedies: dict[str, str] = {}
    for record in records:
        # Causes of one kind differ by their values: shapes, or positions in the data.
        kind = record.remedy or record.cause
        seconds[kind] = seconds.get(kind, 0.0) + record.seconds
        remedies.setdefault(kind, record.cause)
    kind = max(seconds, key=lambda each: seconds[each])
    cause = remedies[kind]
    return cause, kind if kind != cause else ""


def _clause(text: str) -> str:
    """Returns text to stand within a sentence: without the full stop at its end."""
    return text.strip().removesuffix(".").replace(". ", "; ")


def _data_advice(run: RunRecords, parts: Parts) -> str:
    lost = f"The loops waited for data for {lost_text(parts, 'data')}"
    loops = {(each.loop.number, each.loop.process) for each in parts if each.seconds["data"]}
    feeds = [each for each in run.feeds if (each.loop, each.process) in loops]
    prepared = sum(each.prepare_seconds for each in feeds)
    steps = sum(each.steps for each in feeds)
    if not feeds or not steps:
        return f"{lost}: load several batches at once, or prepare less in each."
    busy = sum(each.wall_seconds - each.seconds["compile"] - each.seconds["data"] for each in parts)
    each_step = (
        f"preparing a step takes {1e3 * prepared / steps:.3g} ms and running it "
        f"{1e3 * busy / steps:.3g} ms"
    )
    if prepared >= busy:
        return (
            f"{lost}, as {each_step}: load several batches at once, such as by "
            "keras.utils.PyDataset(workers=4) or tf.data's "
            "map(..., num_parallel_calls=tf.data.AUTOTUNE)."
        )
    depth = max(each.limit for each in feeds)
    return (
        f"{lost} although {each_step}, so some batches come late: set "
        f"model.set_infeed_queue_options(prefetch_depth={max(2 * depth, 4)}) instead of {depth} to "
        "prepare more of them ahead."
    )


def _transfer_advice(run: RunRecords, parts: Parts) -> str:
    lost = lost_text(parts, "transfer")
    worst = max(parts, key=lambda each: each.seconds["transfer"])
    if worst.update is not None:
        schedules = {each.schedule for each in run.traces if each.model == worst.loop.model}
        earlier = (
            '; pipeline_schedule="grouped" starts them earlier' if schedules == {"1f1b"} else ""
        )
        return (
            f"Device groups waited {lost} for transfers between the {worst.loop.stages} stages: "
            "cut the model where its activations are smaller, with "
            f"model.set_pipeline_stage_assignment(...){earlier}."
        )
    return (
        f"The exchange between {worst.loop.replicas} replicas took {lost}: take more steps into "
        "one update with "
        "model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=...)."
    )


def _other_advice(run: RunRecords, parts: Parts) -> str:
    if single := _single_steps(parts, "other"):
        return single
    return (
        f"{lost_text(parts, 'other')} passed before or between executions, in Keras, in callbacks "
        "and on the host: let slow callbacks run less often, train for longer, or set "
        "model.compile(..., steps_per_execution=...) to more."
    )


def _single_steps(parts: Parts, *names: str) -> str:
    """Returns advice about `fit` with single steps; empty if most of the time went elsewhere."""
    singles = [
        each
        for each in parts
        if _FEW_STEPS <= each.steps <= each.executions and each.loop.epochs > 0
    ]
    seconds, others = (
        sum(each.seconds[name] for each in some for name in names) for some in (singles, parts)
    )
    if not singles or 2 * seconds < others:
        return ""
    steps = sum(each.steps for each in singles)
    step = sum(each.seconds["compute"] + each.seconds["other"] for each in singles) / steps
    return (
        f"Each of {counted(steps, 'execution')} ran a single step, {1e3 * step:.3g} ms with the "
        "host's work for it: set model.compile(..., steps_per_execution=100) to run 100 in one "
        "call."
    )


def _compute_advice(run: RunRecords, parts: Parts) -> str:
    if single := _single_steps(parts, "compute", "other"):
        return single
    compute = lost_text(parts, "compute")
    groups = [group for program in run.operations for group in program.groups]
    timed = sum(group.seconds or 0.0 for group in groups)
    by_time = timed > 0
    total = timed if by_time else sum(group.flops for group in groups)
    if total <= 0:
        return (
            f"Steps took {compute}: a smaller dtype (keras.config.set_dtype_policy) or more "
            "devices in Strategy(devices=...) make them shorter."
        )
    return _by_layer(compute, groups, total, by_time)


def _by_layer(compute: str, groups: Iterable[OperationGroup], total: float, by_time: bool) -> str:
    owners: dict[str, float] = {}
    recomputed = 0.0
    for group in groups:
        cost = (group.seconds or 0.0) if by_time else group.flops
        owners[group.owner] = owners.get(group.owner, 0.0) + cost
        recomputed += cost if group.kind == "recomputation" else 0.0
    owner = max(owners, key=lambda each: owners[each])
    what = "the operations' time" if by_time else "the FLOPs"
    begin = f"Steps took {compute}, with {100 * owners[owner] / total:.0f} % of {what} in {owner}"
    if recomputed >= _RECOMPUTING * total:
        return (
            f"{begin} and {100 * recomputed / total:.0f} % in recomputation: "
            "model.set_recomputation_options(budget=...) recomputes no more than must be to fit."
        )
    return (
        f"{begin}: begin there, with a smaller dtype (keras.config.set_dtype_policy) or size, or "
        "add devices in Strategy(devices=...)."
    )
