"""Predicted costs, worked out by hand."""

from dataclasses import replace

import pytest

from millrace.base.records.training_plan import UpdatePlan
from millrace.run.schedules.task import Pass
from millrace.tools.planning.cost import CountedCosts, Rates, cost_of, with_extra

RATES = Rates(flops=100.0, memory=1e30, link=10.0, host=5.0, call=0.0, step=0.0, latency=0.0)
PIECE = CountedCosts(
    rows=8,
    step=50.0,
    tasks={},
    update=(0.0,),
    boundary=0.0,
    sent=0.0,
    weights=(40,),
    variables=5,
    optimizer=80,
)
STAGES = CountedCosts(
    rows=4,
    step=0.0,
    tasks={(s, kind): c for s in (0, 1) for kind, c in ((Pass.FORWARD, 100), (Pass.BACKWARD, 200))},
    update=(0.0, 0.0),
    boundary=0.0,
    sent=3.0,
    weights=(20, 20),
    variables=3,
    optimizer=80,
)


def piece(**fields):
    return UpdatePlan(batch_size=8, steps_per_execution=1, **{"replicas": 1} | fields)


def stages(count, rows, schedule="1f1b", replicas=1):
    return UpdatePlan(
        batch_size=rows,
        steps_per_execution=1,
        replicas=replicas,
        stages=2,
        groups=2,
        schedule=schedule,
        accumulation=count,
    )


def test_one_piece_takes_its_flops():
    cost = cost_of(piece(), PIECE, RATES)
    assert (cost.seconds, cost.bubble, cost.flops, cost.moved_bytes) == (4.0, 0.0, 400.0, 0)


def test_replicas_send_all_but_their_part_of_the_gradients_twice():
    cost = cost_of(piece(replicas=4), PIECE, RATES)
    assert cost.moved_bytes == 2 * 3 * 40
    assert cost.seconds == pytest.approx(4.0 + 2 * 3 / 4 * 40 / 10)
    shared = cost_of(piece(replicas=4, shard_weights=True), PIECE, RATES)
    assert shared.moved_bytes == 3 * 3 * 40


@pytest.mark.parametrize(
    ("savings", "count"),
    [
        ({}, 2),
        ({"shard_weights": True}, 2 + 5),
        ({"shard_optimizer_state": True}, 1 + 2 * 5),
        ({"shard_optimizer_state": True, "shard_weights": True}, 1 + 2 * 5),
    ],
)
def test_each_collective_operation_takes_its_time(savings, count):
    rates = replace(RATES, latency=7.0)
    update = piece(replicas=2, **savings)
    more = cost_of(update, PIECE, rates).seconds - cost_of(update, PIECE, RATES).seconds
    assert more == pytest.approx(7.0 * count)
    assert cost_of(piece(), PIECE, rates) == cost_of(piece(), PIECE, RATES)


def test_what_a_pipeline_sends_takes_its_time():
    rates = replace(RATES, latency=7.0)
    found = [cost_of(stages(1, 4), STAGES, each).seconds for each in (rates, RATES)]
    assert found[0] - found[1] == pytest.approx(2 * 7.0)  # once forward, once backward


def test_offloaded_state_goes_both_ways():
    cost = cost_of(piece(offload_optimizer_state=True), PIECE, RATES)
    assert cost.seconds == pytest.approx(4.0 + 2 * 80 / 5)


def test_micro_batches_cost_their_steps_and_the_accumulators():
    rates = replace(RATES, step=0.5, memory=20.0)
    whole, parts = (cost_of(piece(micro_batch=rows), PIECE, rates) for rows in (None, 2))
    assert whole.seconds == pytest.approx(4.0 + 0.5)
    assert parts.seconds == pytest.approx(4.0 + 4 * 0.5 + 4 * 2 * 40 / 20)
    assert parts.flops == whole.flops


def test_a_pipeline_takes_its_simulated_schedule():
    # Tasks of 1 and 2 seconds: (m + p - 1) * 3, of which each stage is idle for 3.
    cost = cost_of(stages(4, 4), STAGES, RATES)
    assert cost.seconds == pytest.approx(15.0)
    assert cost.bubble == pytest.approx(3 / 15)
    assert cost.flops == 2 * 4 * 300
    assert cost.moved_bytes == 3.0 * 16


def test_half_the_rows_take_half_the_time():
    cost = cost_of(stages(8, 2), STAGES, RATES)
    assert cost.seconds == pytest.approx((8 + 1) * 1.5)


def test_halves_of_backward_are_known_before_they_are_compiled():
    assert cost_of(stages(8, 4, "zero_bubble"), STAGES, RATES).bubble < 3 / 27


def test_recomputation_adds_its_share():
    assert cost_of(piece(), with_extra(PIECE, 0.25), RATES).seconds == 5.0
    assert cost_of(stages(4, 4), with_extra(STAGES, 1.0), RATES).seconds == pytest.approx(30.0)
