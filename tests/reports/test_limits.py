"""What limited a run, from records whose shares were worked out by hand."""

import pathlib

import pytest

from millrace.base.records.compilation import CompileRecord, Origin
from millrace.base.records.loops import (
    EpochRecord,
    ExecutionSample,
    FeedSample,
    LoopRecord,
    ProcessRecord,
)
from millrace.base.records.operations import OperationGroup, ProgramOperations
from millrace.base.records.run import RunRecords
from millrace.base.records.timeline import Span
from millrace.base.records.trace import ActivitySpan, ExecutionTrace
from millrace.run.schedules.simulate import simulate
from millrace.run.schedules.table import make_schedule
from millrace.tools.reports.limits import limits
from millrace.tools.reports.loop_parts import PARTS
from millrace.tools.reports.trace_shares import trace_shares


def run(**records):
    return RunRecords(path=pathlib.Path("run"), **records)


def process(**fields):
    values = {"process": 0, "pid": 1, "host": "a", "cores": 2, "platform": "cpu", "devices": ()}
    return ProcessRecord(**{**values, **fields})


def loop(**fields):
    values = {"number": 0, "model": "mlp", "mode": "train", "began": 100.0, "ended": 110.0}
    return LoopRecord(**{**values, "outcome": "finished", **fields})


def sample(**fields):
    values = {"loop": 0, "mode": "train", "epoch": 1, "began": 101.0, "seconds": 8.0}
    return ExecutionSample(**{**values, "executions": 10, "steps": 100, **fields})


def feed(**fields):
    values = {"loop": 0, "mode": "train", "epoch": 1, "time": 105.0, "depth": 0, "limit": 2}
    numbers = {"blocks": 10, "steps": 100, "bytes": 10, "wait_seconds": 4.0}
    return FeedSample(**{**values, **numbers, "prepare_seconds": 7.0, **fields})


def compilation(**fields):
    values = {"model": "mlp", "program": "train_run", "batch": "", "capacity": 1, "unrolled": None}
    seconds = {"trace_seconds": 0.5, "compile_seconds": 3.5, "temporary_bytes": 0}
    return CompileRecord(**{**values, **seconds, "began": 100.5, **fields})


def trace(schedule="1f1b", stages=2, micro_batches=4, cost=None, activities=(), **fields):
    rows = make_schedule(schedule, stages, micro_batches, tuple(range(stages)))
    timeline = simulate(rows, cost or {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0})
    values = {"model": "mlp", "mode": "train", "loop": 0, "epoch": 1, "update": 0, "began": 105.0}
    return ExecutionTrace(
        **{**values, **fields},
        num_groups=stages,
        schedule=schedule,
        spans=timeline.spans,
        activities=tuple(activities),
    )


def group(**fields):
    values = {"owner": "dense", "role": "layer", "kind": "forward", "operations": 1}
    return OperationGroup(**{**values, "flops": 10.0, "bytes": 1.0, **fields})


def operations(*groups):
    return ProgramOperations(model="mlp", program="train_run", groups=groups)


def test_parts_add_up_to_the_wall_time():
    found = limits(
        run(
            loops=[loop(compile_seconds=1.0, wait_seconds=0.5, executions=10, steps=100)],
            executions=[sample(compile_seconds=0.2, wait_seconds=0.5)],
        )
    )
    # 10 s: 1 compiling, 0.5 waiting; 8 - 0.2 - 0.5 = 7.3 in executions; 1.2 before the first.
    assert found.seconds == pytest.approx(
        dict.fromkeys(PARTS, 0) | {"compile": 1, "data": 0.5, "compute": 7.3, "other": 1.2}
    )
    assert found.wall_seconds == pytest.approx(10)
    assert found.shares["compute"] == pytest.approx(0.73)
    assert (found.limit, found.steps, found.executions) == ("compute", 100, 10)
    assert "7.30 of 10.00 s (73 %)" in found.advice


@pytest.mark.parametrize("records", [{}, {"loops": [loop(ended=0.0, outcome="running")]}])
def test_nothing_has_run_yet(records):
    found = limits(run(**records))
    assert (found.wall_seconds, found.limit) == (0, "")
    assert found.advice == "No loop of this run has taken any time yet."
    assert set(found.shares.values()) == {0.0}
    assert tuple(found.seconds) == PARTS


def test_a_loop_that_was_killed_lasts_until_its_last_record():
    found = limits(
        run(
            loops=[loop(ended=0.0, outcome="running")],
            executions=[
                sample(seconds=4.0, compile_seconds=3.0, wait_seconds=0.5),
                sample(began=105.0, seconds=2.0, wait_seconds=0.5),
            ],
            epochs=[EpochRecord(loop=0, epoch=1, ended=108.0)],
            feeds=[feed(time=109.0), feed(time=500.0, loop=1)],
        )
    )
    assert found.wall_seconds == pytest.approx(9)
    assert found.seconds["compile"] == pytest.approx(3)
    assert found.seconds["data"] == pytest.approx(1)
    assert found.seconds["compute"] == pytest.approx(2)
    assert found.steps == 200


def test_a_loop_that_still_compiles_is_limited_by_that():
    """Its first execution has not ended: only the compile log knows."""
    found = limits(
        run(loops=[loop(ended=0.0, outcome="running")], compilations=[compilation(began=100.0)])
    )
    assert (found.wall_seconds, found.limit) == (4.0, "compile")


def test_a_run_that_was_started_again_does_not_mix_its_loops():
    found = limits(
        run(
            processes=[process(began=99.0), process(began=199.0)],
            loops=[loop(ended=0.0, outcome="running"), loop(number=1, began=200.0, ended=204.0)],
            executions=[sample(seconds=3.0), sample(loop=1, began=201.0, seconds=3.0)],
            compilations=[compilation(began=201.0)],
        )
    )
    assert found.wall_seconds == pytest.approx(8)  # 4 s each: until 104, and from 200 to 204
    assert found.seconds["compute"] == pytest.approx(6)


def test_evaluate_in_a_callback_is_part_of_fit():
    inner = loop(number=1, mode="test", began=103.0, ended=105.0, compile_seconds=1.0)
    after = loop(number=2, mode="test", began=110.0, ended=112.0)
    assert limits(run(loops=[loop(), inner])).wall_seconds == pytest.approx(10)
    assert limits(run(loops=[loop(), inner, after])).wall_seconds == pytest.approx(12)


def test_processes_are_averaged():
    found = limits(
        run(
            loops=[
                loop(wait_seconds=6.0, executions=5, steps=50),
                loop(process=1, ended=112.0, wait_seconds=0.0, executions=5, steps=50),
            ]
        )
    )
    assert found.wall_seconds == pytest.approx(11)
    assert found.seconds["data"] == pytest.approx(3)
    assert (found.limit, found.steps, found.executions) == ("data", 50, 5)
    assert "3.00 of 11.00 s (27 %)" in found.advice


def test_impossible_records_do_not_make_negative_parts():
    found = limits(run(loops=[loop(compile_seconds=99.0, wait_seconds=99.0)]))
    assert found.seconds["compile"] == pytest.approx(10)
    assert min(found.seconds.values()) == 0
    assert found.wall_seconds == pytest.approx(10)


def test_data_that_is_slower_than_training_is_to_be_loaded_in_parallel():
    found = limits(run(loops=[loop(wait_seconds=4.0)], feeds=[feed()]))
    assert found.limit == "data"
    # 7 s for 100 steps; running took 10 - 4 s.
    assert "preparing a step takes 70 ms and running it 60 ms" in found.advice
    assert "workers=4" in found.advice


def test_data_that_is_only_late_now_and_then_is_to_be_prepared_further_ahead():
    found = limits(run(loops=[loop(wait_seconds=4.0)], feeds=[feed(prepare_seconds=2.0)]))
    assert "waited for data for 4.00 of 10.00 s (40 %)" in found.advice
    assert "prefetch_depth=4) instead of 2" in found.advice


def test_data_without_records_of_the_feed_is_to_be_loaded_in_parallel():
    found = limits(run(loops=[loop(wait_seconds=4.0)]))
    assert "4.00 of 10.00 s (40 %): load several batches at once" in found.advice


def test_first_compilations_lead_to_the_cache():
    found = limits(run(loops=[loop(compile_seconds=4.0)], compilations=[compilation()]))
    assert found.limit == "compile"
    assert "took 4.00 of 10.00 s (40 %), for 1 first executable" in found.advice
    assert "Strategy(cache_dir=...)" in found.advice


def test_reading_of_executables_leads_to_exported_ones():
    read = compilation(origin=Origin.CACHE, trace_seconds=3.0, compile_seconds=1.0)
    found = limits(run(loops=[loop(compile_seconds=4.0)], compilations=[read]))
    assert "export_executables" in found.advice


def test_recompilations_have_the_remedy_of_the_costliest_cause():
    again = [
        compilation(
            is_recompilation=True,
            compile_seconds=seconds,
            cause=f"argument x: shape (32, 8) -> ({rows}, 8)",
            remedy="Set drop_remainder=True.",
        )
        for rows, seconds in ((17, 2.0), (18, 2.0))
    ]
    other = compilation(
        is_recompilation=True, compile_seconds=3.0, cause="the optimizer", remedy="Keep it."
    )
    found = limits(run(loops=[loop(compile_seconds=9.0)], compilations=[*again, other]))
    assert "8.50 s of it went into compiling again, 3 times" in found.advice
    assert "argument x: shape (32, 8) -> (17, 8): Set drop_remainder=True." in found.advice


def test_a_bubble_is_taken_from_the_traced_updates():
    """2 stages, 4 micro-batches: 15 units, of which each group idles 3."""
    found = limits(
        run(
            loops=[loop(stages=2, steps=16)],
            traces=[trace(update=0), trace(update=1, cost={"F": 0.1, "B": 0.2})],
        )
    )
    assert trace_shares(trace()).bubble == pytest.approx(trace().timeline.bubble) == 0.2
    # 4 updates, of which the median one took 15 s: all of the loop was spent in updates.
    assert found.seconds["bubble"] == pytest.approx(2)
    assert found.seconds["compute"] == pytest.approx(8)
    assert found.limit == "bubble"
    assert "_per_replica=16) instead of 4" in found.advice  # 8 would leave 11 %
    assert "a bubble of 6% instead of 20%" in found.advice


def test_time_between_updates_is_not_of_the_pipeline():
    short = trace(cost={"F": 0.1, "B": 0.2})  # 1.5 s
    found = limits(run(loops=[loop(stages=2, steps=8)], traces=[short]))
    assert found.seconds["compute"] + found.seconds["bubble"] == pytest.approx(3.0)
    assert found.seconds["other"] == pytest.approx(7.0)
    assert found.limit == "other"
    assert "7.00 of 10.00 s (70 %) passed before or between executions" in found.advice


def test_stages_of_unequal_cost_are_to_be_cut_elsewhere():
    rows = trace(cost=lambda task: (9.0 if task.stage else 1.0) * (2 if task.kind == "B" else 1))
    found = limits(run(loops=[loop(stages=2, steps=16)], traces=[rows]))
    assert found.limit == "bubble"
    assert "stage 1 takes 2.7e+04 ms" in found.advice
    assert "model.set_pipeline_stage_assignment(...)" in found.advice


def test_stages_that_never_overlap_are_to_have_another_schedule():
    found = limits(run(loops=[loop(stages=2, steps=16)], traces=[trace("sequential")]))
    assert 'pipeline_schedule="1f1b"' in found.advice
    assert "20% instead of 50%" in found.advice


def test_a_schedule_of_the_users_own_gets_no_number_that_was_not_simulated():
    own = ExecutionTrace(
        model="mlp", mode="train", loop=0, epoch=1, update=0, began=1.0, num_groups=2,
        schedule="0F0 0B0", spans=(Span(0, "F", 0, 0, 0.0, 1.0), Span(1, "F", 0, 1, 1.0, 2.0)),
    )  # fmt: skip
    found = limits(run(loops=[loop(stages=2, steps=16)], traces=[own]))
    assert found.limit == "bubble"
    assert found.advice.endswith("in model.set_pipelining_options() to more.")


def update_of(*spans):
    return ExecutionTrace(
        model="mlp", mode="train", loop=0, epoch=1, update=0, began=1.0, num_groups=2,
        spans=spans, schedule="1f1b",
    )  # fmt: skip


def test_waiting_for_a_transfer_is_no_bubble():
    """Group 1 is idle in 2-5: until 3 its input is computed, until 5 it is on its way."""
    shares = trace_shares(
        update_of(
            Span(0, "F", 0, 0, 0.0, 1.0), Span(0, "F", 1, 0, 1.0, 3.0),
            Span(1, "F", 0, 1, 1.0, 2.0), Span(1, "F", 1, 1, 5.0, 6.0),
        )
    )  # fmt: skip
    # Of 2 x 6: group 0 is idle for 3 at the end, group 1 for 1 at first and 3, 2 of them transfer.
    assert shares.transfer == pytest.approx(2 / 12)
    assert shares.bubble == pytest.approx(5 / 12)
    assert shares.compute == pytest.approx(5 / 12)


def test_a_group_that_could_have_begun_before_waits_for_no_transfer():
    """The input of the last task ended before the group was free: the host may have been late."""
    shares = trace_shares(
        update_of(
            Span(0, "F", 0, 0, 0.0, 1.0), Span(0, "F", 1, 0, 1.0, 2.0),
            Span(1, "F", 0, 1, 1.0, 3.0), Span(1, "F", 1, 1, 5.0, 6.0),
        )
    )  # fmt: skip
    assert shares.transfer == 0


def test_transfers_lead_to_another_cut():
    spans = (
        Span(0, "F", 0, 0, 0.0, 1.0), Span(0, "F", 1, 0, 1.0, 3.0),
        Span(1, "F", 0, 1, 1.0, 2.0), Span(1, "F", 1, 1, 9.0, 10.0),
    )  # fmt: skip
    found = limits(run(loops=[loop(stages=2, steps=2)], traces=[update_of(*spans)]))
    # All of 2 x 10: busy 5, bubble 7 + 2, transfer 6; the larger one is the limit.
    assert found.seconds["transfer"] == pytest.approx(3.0)
    assert found.limit == "bubble"
    whole = update_of(*spans, Span(0, "B", 0, 0, 3.0, 10.0))
    found = limits(run(loops=[loop(stages=2, steps=2)], traces=[whole]))
    assert found.limit == "transfer"
    assert "model.set_pipeline_stage_assignment(...)" in found.advice
    assert '"grouped"' in found.advice


def test_exchange_between_replicas_is_transfer():
    exchanged = operations(
        group(seconds=2.0), group(owner="all_reduce", role="transfer", seconds=2.0)
    )
    found = limits(run(loops=[loop(replicas=4, steps=40)], operations=[exchanged]))
    assert found.seconds["transfer"] == pytest.approx(5.0)
    assert "between 4 replicas" in found.advice
    assert "gradient_accumulation_steps_per_replica" in found.advice


def test_single_steps_lead_to_longer_executions():
    single = loop(steps=500, executions=500, epochs=1)
    found = limits(run(loops=[single]))
    assert found.limit == "compute"
    assert "500 executions ran a single step, 20 ms" in found.advice
    assert "steps_per_execution=100" in found.advice
    found = limits(run(loops=[single], traces=[calls(0.001)] * 3))
    assert found.seconds["compute"] == pytest.approx(0.5)
    assert found.limit == "other"
    assert "500 executions ran a single step, 20 ms" in found.advice
    # What has no steps_per_execution, such as train_on_batch, and what is too short.
    for other in (loop(steps=500, executions=500), loop(steps=5, executions=5, epochs=1)):
        assert "steps_per_execution" not in limits(run(loops=[other])).advice


def calls(*seconds, steps=1, **fields):
    """The trace of a model in one piece: calls of compiled code."""
    row = [
        ActivitySpan("group 0", f"{steps} steps", float(number), number + each)
        for number, each in enumerate(seconds)
    ]
    values = {"model": "mlp", "mode": "train", "loop": 0, "epoch": 1, "update": 0, "began": 105.0}
    return ExecutionTrace(**{**values, **fields}, num_groups=1, activities=tuple(row))


def test_slow_callbacks_are_not_compute():
    """100 steps of 20 ms by the longest of 20 steps: the loop took 8 s longer than that."""
    traces = [calls(each, steps=20, update=n) for n, each in enumerate((0.2, 0.1, 0.4))]
    found = limits(run(loops=[loop(steps=100, executions=5, epochs=5)], traces=traces))
    assert found.seconds["compute"] == pytest.approx(2.0)
    assert found.seconds["other"] == pytest.approx(8.0)
    assert found.limit == "other"
    assert limits(run(loops=[loop(steps=100)], traces=traces[:2])).limit == "compute"
    assert "let slow callbacks run less often" in found.advice


def test_validation_in_fit_has_traces_of_its_own():
    found = limits(
        run(
            loops=[loop(steps=100, executions=10, epochs=5)],
            executions=[
                sample(seconds=4.0, steps=100),
                sample(mode="test", began=105.0, seconds=4.0, steps=50),
            ],
            traces=[calls(0.3, steps=10), calls(0.1, steps=10, mode="test")] * 3,
        )
    )
    assert found.seconds["compute"] == pytest.approx(3.0 + 0.5)
    assert found.seconds["other"] == pytest.approx(6.5)


def test_compute_names_the_layer_that_takes_the_most():
    groups = [
        group(seconds=1.0, flops=900.0),
        group(owner="conv", seconds=2.0),
        group(owner="conv", kind="backward", seconds=1.0),
    ]
    found = limits(run(loops=[loop()], operations=[operations(*groups)]))
    assert "with 75 % of the operations' time in conv" in found.advice
    counted = [group(flops=900.0), group(owner="conv", flops=100.0)]
    found = limits(run(loops=[loop()], operations=[operations(*counted)]))
    assert "with 90 % of the FLOPs in dense" in found.advice


def test_recomputation_is_named_where_it_costs():
    groups = [group(seconds=3.0), group(kind="recomputation", seconds=1.0)]
    found = limits(run(loops=[loop()], operations=[operations(*groups)]))
    assert "25 % in recomputation: model.set_recomputation_options(budget=...)" in found.advice


def test_planning_is_a_part_of_its_own():
    """Of 8 s that compiled, 6 went into the search for what fits."""
    found = limits(run(loops=[loop(compile_seconds=8.0, planning_seconds=6.0, steps=10)]))
    assert (found.seconds["compile"], found.seconds["planning"]) == (2, 6)
    assert found.limit == "planning"
    assert "took 6.00 of 10.00 s (60 %): Strategy(cache_dir=...)" in found.advice


@pytest.mark.parametrize("limit", ["compile", "planning", "data", "compute"])
def test_advice_is_one_sentence(limit):
    fields = {"compile_seconds": 8.0} if limit in ("compile", "planning") else {}
    fields |= {"planning_seconds": 7.0} if limit == "planning" else {}
    fields |= {"wait_seconds": 8.0} if limit == "data" else {}
    found = limits(run(loops=[loop(**fields)], compilations=[compilation()], feeds=[feed()]))
    assert found.limit == limit
    assert found.advice.endswith(".")
    assert ". " not in found.advice
