"""The candidates of a plan."""

import plan_cases as cases
import pytest

from millrace.run.pipelines.assignment.balance import declared_batch
from millrace.tools.planning.alternatives import (
    auto_cut,
    base,
    layouts,
    micro_batch_counts,
    updates_of,
)

ROWS = 48


def cut(setup):
    return auto_cut(declared_batch(setup.model))


@pytest.fixture(scope="module")
def setup():
    return cases.attached(cases.strategy_of(4), cases.deep)._millrace.setup


@pytest.fixture(scope="module")
def found(setup):
    return {(each.replicas, each.num_stages): each for each in layouts(setup, ROWS, cut(setup))}


def test_layouts_use_all_devices(found):
    assert set(found) == {(4, 1), (2, 2), (2, 4), (1, 4), (1, 8)}
    assert {each.replicas * each.groups for each in found.values()} == {4}


def test_rows_are_shared_out_equally(setup, found):
    assert {each.replicas for each in layouts(setup, 6, cut(setup))} == {2, 1}
    for layout in found.values():
        for update in updates_of(layout, setup, ROWS, 3):
            assert update.rows == ROWS
            assert update.steps_per_execution == 3 * update.accumulation * update.replicas
            assert update.batch_size % update.micro_rows == 0


def test_one_piece_keeps_its_batches(setup, found):
    updates = updates_of(found[4, 1], setup, ROWS, 1)
    assert {each.batch_size for each in updates} == {ROWS // 4}
    assert {each.micro_rows for each in updates} == {12, 6, 3, 1}
    assert {(each.shard_optimizer_state, each.shard_weights) for each in updates} == {
        (False, False),
        (True, False),
        (True, True),
    }


def test_shared_statistics_leave_batches_whole():
    model = cases.attached(cases.strategy_of(4), cases.deep)
    model.set_replication_options(synchronized_batch_statistics=True)
    setup = model._millrace.setup
    (layout,) = layouts(setup, ROWS, cut(setup))
    assert layout.assignment is None
    assert {each.micro_batch for each in updates_of(layout, setup, ROWS, 1)} == {None}


def test_pipelines_have_micro_batches_for_all_devices(found):
    assert micro_batch_counts(found[1, 4], 48) == [4, 8, 16, 48]
    assert micro_batch_counts(found[1, 4], 3) == [3]  # fewer rows than devices
    assert base(found[1, 4], 48, 1).accumulation == 8


def test_schedules_have_their_stages_and_mapping(setup, found):
    names = {
        key: {each.schedule for each in updates_of(layout, setup, ROWS, 1)}
        for key, layout in found.items()
    }
    assert names[4, 1] == {""}
    assert {"1f1b", "zero_bubble", "sequential"} <= names[1, 4]
    assert "looped" in names[1, 8]
    looped = base(found[2, 4], ROWS, 1)
    assert looped.device_mapping == (0, 1, 0, 1)


def test_stages_of_the_user_are_kept():
    model = cases.attached(cases.strategy_of(2), cases.mlp)
    model.set_pipeline_stage_assignment([0, 1, 1])
    (piece, pipeline) = layouts(model._millrace.setup, ROWS, cut(model._millrace.setup))
    assert piece.assignment is None
    assert [stage for _, _, stage in pipeline.cut] == [0, 1, 1]
    assert not pipeline.is_balanced
