import jax
import numpy as np
import pytest

from millrace.base.devices import DeviceGroup
from millrace.base.options import Accumulation, Replication
from millrace.programs.plan import (
    MAX_UNROLLED_EQUATIONS,
    BatchSpec,
    LoopForm,
    Mode,
    Plan,
    choose_loop_form,
    divided,
)

pytestmark = pytest.mark.quick

CONV = {"conv_general_dilated": 3, "add": 297}


def plan(mode, replicas, accumulated):
    return Plan(
        mode=mode,
        batch=BatchSpec(None, ((8, 3), (8,)), (np.dtype("float32"), np.dtype("int32"))),
        capacity=24,
        accumulation=Accumulation(steps=accumulated),
        step_logs=False,
        records=1,
        group=DeviceGroup(tuple(jax.devices("cpu")[:replicas])),
        replication=Replication(),
    )


@pytest.mark.parametrize(
    ("mode", "window"), [(Mode.TRAIN, 12), (Mode.TEST, 3), (Mode.PREDICT, 3)], ids=str
)
def test_only_training_accumulates(mode, window):
    assert plan(mode, replicas=3, accumulated=4).update_steps == window


def test_a_batch_of_fewer_rows_is_the_same_otherwise():
    batch = plan(Mode.TRAIN, 1, 1).batch
    assert (batch.rows, str(batch.of_rows(5))) == (8, "float32[5,3], int32[5]")


def test_training_with_convolutions_on_cpu_is_unrolled():
    assert choose_loop_form(Mode.TRAIN, "cpu", CONV) == LoopForm(unroll=8)


@pytest.mark.parametrize(
    ("mode", "platform", "primitives"),
    [
        (Mode.TEST, "cpu", CONV),
        (Mode.PREDICT, "cpu", CONV),
        (Mode.TRAIN, "gpu", CONV),
        (Mode.TRAIN, "tpu", CONV),
        (Mode.TRAIN, "cpu", {"dot_general": 3}),
    ],
)
def test_everything_else_is_a_loop(mode, platform, primitives):
    assert choose_loop_form(mode, platform, primitives).is_loop


def test_a_large_step_is_unrolled_less():
    def unroll(equations):
        return choose_loop_form(
            Mode.TRAIN, "cpu", {"conv_general_dilated": 1, "add": equations - 1}
        ).unroll

    assert unroll(MAX_UNROLLED_EQUATIONS // 3) == 3
    assert unroll(MAX_UNROLLED_EQUATIONS * 2) == 1


@pytest.mark.parametrize(
    ("rows", "most", "division"),
    [(64, 16, (16, 4, 0)), (30, 8, (6, 5, 0)), (31, 8, (8, 3, 7)), (5, 1, (1, 5, 0)),
     (7, 6, (4, 1, 3)), (12, 5, (4, 3, 0)), (1, 1, (1, 1, 0))],
)  # fmt: skip
def test_a_batch_is_divided_into_few_parts(rows, most, division):
    found = divided(rows, most)
    assert (found.rows, found.count, found.rest) == division


def test_every_division_has_all_rows_and_no_more_than_allowed():
    for rows in range(1, 70):
        for most in range(1, rows + 1):
            found = divided(rows, most)
            assert found.rows * found.count + found.rest == rows
            assert 0 <= found.rest < found.rows <= most
            assert found.parts <= 2 * -(-rows // most)
