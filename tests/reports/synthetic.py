"""Records of a run that never was, of any size."""

import math
import pathlib
import random

from millrace.base.records.compilation import CompileRecord, Origin
from millrace.base.records.flight import FlightNote
from millrace.base.records.loops import (
    EpochRecord,
    ExecutionSample,
    FeedSample,
    LoopRecord,
    ProcessRecord,
)
from millrace.base.records.memory import LiveBuffer
from millrace.base.records.memory_report import BudgetChoice
from millrace.base.records.operations import OperationGroup, ProgramOperations
from millrace.base.records.program_memory import ROLES, MemoryArea, ProgramMemory, ProgramSegment
from millrace.base.records.run import RunRecords
from millrace.base.records.tensors import LOSS, Tensor, TensorSeries
from millrace.base.records.timeline import Span
from millrace.base.records.trace import ActivitySpan, ExecutionTrace
from millrace.run.schedules.one_f_one_b import one_f_one_b
from millrace.run.schedules.simulate import simulate
from millrace.run.schedules.task import Pass

BEGAN = 1_790_000_000.0  # seconds since 1970
COST = {Pass.FORWARD: 1.0, Pass.BACKWARD: 2.0}


def synthetic_run(
    name="run", layers=12, stages=4, micro_batches=16, updates=3, epochs=8, seed=0, prefix="dense_"
):
    """Returns records of all kinds: of a pipeline of some layers, traced for some updates."""
    luck = random.Random(seed)
    names = [f"{prefix}{number}" for number in range(layers)]
    return RunRecords(
        path=pathlib.Path("runs") / name,
        processes=(process(stages),),
        loops=loops(stages, epochs, layers),
        epochs=tuple(
            EpochRecord(
                loop=0,
                epoch=epoch + 1,
                ended=BEGAN + 5 + 10 * (epoch + 1),
                logs={
                    "loss": 2.3 * math.exp(-epoch / 5) + luck.uniform(0, 0.05),
                    "accuracy": 1 - 0.8 * math.exp(-epoch / 6),
                    "val_loss": 2.4 * math.exp(-epoch / 6) + luck.uniform(0, 0.1),
                    "learning_rate": 0.1 * 0.97**epoch,
                },
            )
            for epoch in range(epochs)
        ),
        executions=executions(epochs, luck),
        feeds=feeds(epochs, luck),
        compilations=compilations(stages, luck),
        memory_profiles=tuple(
            profile
            for stage in range(stages)
            for is_trial in (False, True)
            for profile in [memory(names, stage, stages, is_trial, luck)]
        ),
        operations=tuple(operations(names, stage, stages, luck) for stage in range(stages)),
        traces=tuple(trace(stages, micro_batches, update, luck) for update in range(updates)),
        tensors=tensors(names, epochs, luck),
        budgets=(BudgetChoice("mlp", 0.5, 61_000_000, 0.12, "dense_1 to dense_4 again"),),
        flights=(
            FlightNote(
                model="mlp",
                directory="flights/0",
                text="gradient dense_3/kernel has 4 NaN and 0 infinite elements (epoch 2, batch 7)",
                time=BEGAN + 44,
            ),
        ),
    )


def process(stages, number=0, processes=1):
    return ProcessRecord(
        process=number,
        processes=processes,
        script="train.py",
        pid=4711,
        host="workbench",
        cores=8,
        began=BEGAN,
        versions={"millrace": "0.1.0", "keras": "3.15.1", "jax": "0.10.2", "python": "3.11.7"},
        platform="cpu",
        devices=tuple(f"cpu:{stage}" for stage in range(stages)),
    )


def loops(stages, epochs, layers):
    fit = LoopRecord(
        number=0,
        model="mlp",
        mode="train",
        began=BEGAN + 5,
        ended=BEGAN + 5 + 10 * epochs,
        outcome="finished",
        options={
            "steps_per_execution": "32",
            "gradient_accumulation_steps_per_replica": "16",
            "pipeline_schedule": "one_f_one_b",
        },
        stages=stages,
        devices=tuple(f"cpu:{stage}" for stage in range(stages)),
        parameters=layers * 65_792,
        executions=50 * epochs,
        steps=1600 * epochs,
        epochs=epochs,
        compile_seconds=3.7,
        wait_seconds=4.2,
    )
    evaluate = LoopRecord(
        number=1,
        model="mlp",
        mode="test",
        began=BEGAN + 8 + 10 * epochs,
        outcome="failed",
        ended=BEGAN + 9 + 10 * epochs,
        error="ValueError: the batch of 17 rows does not fit",
        stages=stages,
    )
    return fit, evaluate


def executions(epochs, luck):
    return tuple(
        ExecutionSample(
            loop=0,
            mode="train",
            epoch=1 + sample // 10,
            began=BEGAN + 5 + sample,
            seconds=1.0,
            executions=5,
            steps=160,
            compile_seconds=0.9 if sample == 0 else 0.0,
            wait_seconds=luck.uniform(0, 0.3) if sample % 13 == 5 else luck.uniform(0, 0.02),
            dispatch_seconds=luck.uniform(0.01, 0.03),
        )
        for sample in range(10 * epochs)
    )


def feeds(epochs, luck):
    return tuple(
        FeedSample(
            loop=0,
            mode="train",
            epoch=1 + sample // 20,
            time=BEGAN + 5 + sample / 2,
            depth=luck.choice((0, 1, 2, 2, 2)),
            limit=2,
            blocks=2,
            steps=64,
            bytes=64 * 100_352,
            prepare_seconds=luck.uniform(0.1, 0.3),
            wait_seconds=luck.uniform(0, 0.1) if sample % 11 == 3 else 0.0,
        )
        for sample in range(20 * epochs)
    )


def compilations(stages, luck):
    records = []
    for stage in range(stages):
        for kind in ("forward", "backward", "update"):
            origin = luck.choice((Origin.COMPILED, Origin.COMPILED, Origin.CACHE, Origin.SHARED))
            records.append(
                CompileRecord(
                    model="mlp",
                    program=f"train_{kind} of stage {stage}",
                    batch="float32[32, 784], int64[32]",
                    capacity=32,
                    unrolled=None,
                    trace_seconds=luck.uniform(0.05, 0.2),
                    lower_seconds=luck.uniform(0.02, 0.1),
                    compile_seconds=luck.uniform(0.1, 0.6) if origin is Origin.COMPILED else 0.01,
                    temporary_bytes=luck.randrange(10**6, 10**8),
                    peak_bytes=luck.randrange(10**7, 10**9),
                    origin=origin,
                    key=f"{luck.getrandbits(64):016x}",
                    cause="the first program of this model",
                    code_bytes=luck.randrange(10**4, 10**6),
                    began=BEGAN + 5 + 0.9 * len(records),
                )
            )
    return (
        *records,
        CompileRecord(
            model="mlp",
            program="train_forward of stage 0",
            batch="float32[17, 784], int64[17]",
            capacity=32,
            unrolled=None,
            trace_seconds=0.1,
            lower_seconds=0.1,
            compile_seconds=0.4,
            temporary_bytes=10**7,
            origin=Origin.COMPILED,
            cause="argument x: shape (32, 784) -> (17, 784)",
            remedy="Set drop_remainder=True, or give a data set whose last batch is full.",
            is_recompilation=True,
            began=BEGAN + 30,
        ),
        CompileRecord(
            model="mlp",
            program="train_forward of stage 0",
            batch="float32[32, 784], int64[32]",
            capacity=32,
            unrolled=None,
            trace_seconds=0.0,
            compile_seconds=0.0,
            temporary_bytes=0,
            origin=Origin.SWITCH,
            cause="argument x: shape (17, 784) -> (32, 784)",
            count=7,
            began=BEGAN + 31,
        ),
    )


def memory(names, stage, stages, is_trial, luck, points_per_layer=12):
    mine = names[stage * len(names) // stages : (stage + 1) * len(names) // stages]
    points = max(2 * len(mine) * points_per_layer, 1)
    half = points / 2
    recomputing = not is_trial  # what runs computes again; the trial keeps everything

    def held(point):
        rising = point if point <= half else points - point
        return 2 * rising if not recomputing else rising * 0.35 + 6 * (point % points_per_layer)

    parameters = 4 * 65_792 * len(mine)
    curves = {
        "parameters": [parameters] * points,
        "optimizer": [2 * parameters] * points,
        "accumulators": [parameters] * points,
        "batches": [100_352] * points,
        "activations": [int(120_000 * held(point)) for point in range(points)],
        "gradients": [0 if point < half else luck.randrange(10**5) for point in range(points)],
        "other": [4096] * points,
    }
    total = [sum(values) for values in zip(*curves.values(), strict=True)]
    peak = total.index(max(total))
    segments = [
        ProgramSegment(number * points_per_layer, layer, kind)
        for number, (layer, kind) in enumerate(
            [(layer, "forward") for layer in mine]
            + [(layer, "backward") for layer in reversed(mine)]
        )
    ]
    alive = [
        LiveBuffer(
            f"fusion.{number}",
            luck.randrange(10**3, 10**6),
            layer,
            "fusion",
            "f32[32,256]",
            "tanh, forward",
            inferred=number % 3 == 0,
        )
        for number, layer in enumerate(mine)
    ] + [
        LiveBuffer(f"{layer}/kernel", 262_144, layer, "parameter", "f32[256,256]") for layer in mine
    ]
    return ProgramMemory(
        model="mlp",
        program=f"train_run of stage {stage}" if stages > 1 else "train_run",
        stage=stage,
        devices=(f"cpu:{stage}",),
        recomputation="every second layer again" if recomputing else "",
        requirement=int(max(total) * 1.02),
        areas=tuple(MemoryArea(role, tuple(curves[role])) for role in ROLES),
        point=peak,
        alive=tuple(sorted(alive, key=lambda each: -each.nbytes)),
        segments=tuple(segments),
        began=BEGAN + 6 + stage,
        is_trial=is_trial,
    )


def operations(names, stage, stages, luck, timed=True):
    mine = names[stage * len(names) // stages : (stage + 1) * len(names) // stages]
    groups = [
        OperationGroup(
            layer,
            "layer",
            kind,
            luck.randrange(2, 30),
            flops=(1 if kind == "forward" else 2) * luck.uniform(1e7, 4e7),
            bytes=luck.uniform(1e5, 3e6),
            seconds=luck.uniform(1e-4, 3e-3) if timed else None,
        )
        for layer in mine
        for kind in ("forward", "backward")
    ]
    for owner, role in (("SGD", "optimizer"), ("accumulation", "accumulation"), ("mse", "loss")):
        seconds = luck.uniform(1e-4, 1e-3) if timed else None
        kind = "update" if role == "optimizer" else ""
        groups.append(OperationGroup(owner, role, kind, 9, 3e5, 2e6, seconds))
    return ProgramOperations(
        model="mlp",
        program=f"train_run of stage {stage}" if stages > 1 else "train_run",
        stage=stage,
        steps=32,
        groups=tuple(groups),
        calls=3 if timed else 0,
        traced_seconds=0.2 if timed else 0.0,
        overhead=0.012 if timed else None,
    )


def trace(stages, micro_batches, update, luck, unit=1e-3):
    """Returns one update of 1F1B whose tasks took a little longer or shorter than planned."""
    ideal = simulate(one_f_one_b(stages, micro_batches), COST)
    factor = [luck.uniform(0.95, 1.25) for _ in range(stages)]
    spans = tuple(
        Span(
            each.stage,
            each.kind,
            each.micro_batch,
            each.group,
            (each.start + luck.uniform(0, 0.003)) * unit * 1.2,
            (each.start + each.duration * factor[each.stage] * luck.uniform(0.9, 1) / 1.26)
            * unit
            * 1.2,
        )
        for each in ideal.spans
    )
    end = max((each.end for each in spans), default=0.0)
    activities = [
        ActivitySpan("host", "dispatch", 0.0, 0.2 * end),
        ActivitySpan("host", "wait for the update", 0.2 * end, end),
        ActivitySpan("infeed", "block 3", 0.1 * end, 0.3 * end),
        ActivitySpan("outfeed", "logs", 0.9 * end, 1.05 * end),
        *(ActivitySpan(f"group {group}", "update", end, 1.04 * end) for group in range(stages)),
    ]
    return ExecutionTrace(
        model="mlp",
        mode="train",
        loop=0,
        epoch=1,
        update=update,
        began=BEGAN + 10 + update,
        num_groups=stages,
        schedule="one_f_one_b",
        spans=spans,
        activities=tuple(activities),
    )


def tensors(names, epochs, luck, per_epoch=20):
    found = [LOSS, *(Tensor("activation", name) for name in names)]
    found += [Tensor("gradient", f"{name}/kernel") for name in names]
    return tuple(
        TensorSeries(
            model="mlp",
            tensor=tensor,
            epoch=epoch + 1,
            steps=tuple(range(epoch * per_epoch, (epoch + 1) * per_epoch)),
            values=tuple(statistics(epoch * per_epoch + s, luck) for s in range(per_epoch)),
        )
        for epoch in range(epochs)
        for tensor in found
    )


def statistics(step, luck):
    std = math.exp(-step / 90) + luck.uniform(0, 0.05)
    return (luck.uniform(-0.1, 0.1), std, -3 * std, 3 * std, 16 * std, 0.3, 0.0, 0.0)
