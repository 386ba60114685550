import itertools

import keras
import numpy as np
import pytest

from case_marks import with_marks
from millrace_ipu import ipu
from millrace_ipu.ipu.addons.keras.layers import RecomputationCheckpoint
from millrace_ipu.ipu.ops.schedules import PipelineSchedule, RecomputationMode

GROUPED, INTERLEAVED, SEQUENTIAL = PipelineSchedule
AUTO, THEN, MIXED = RecomputationMode
ILLEGAL = {(THEN, SEQUENTIAL), (MIXED, INTERLEAVED)}
ROWS, WIDTH, ACCUMULATION = 4, 6, 4


def data():
    random = np.random.default_rng(0)
    x = random.normal(size=(2 * ROWS * ACCUMULATION, WIDTH)).astype("float32")
    return x, np.tanh(x[:, :1])


def build(mark=RecomputationCheckpoint, width=8):
    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((WIDTH,)),
        keras.layers.Dense(width, "tanh"),
        mark(),
        keras.layers.Dense(width, "tanh"),
        keras.layers.Dense(width, "tanh"),
        mark(),
        keras.layers.Dense(1),
    ]
    return keras.Sequential(layers)


def pipelined(strategy, schedule, mode, **shape):
    with strategy.scope():
        model = build(**shape)
        model.set_pipeline_stage_assignment([0, 0, 0, 1, 1, 1])
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=ACCUMULATION,
            pipeline_schedule=schedule,
            recomputation_mode=mode,
            experimental_normalize_gradients=True,
        )
        model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=2 * ACCUMULATION)
    return model


def loss_of(model):
    x, y = data()
    history = model.fit(x, y, batch_size=ROWS, shuffle=False, epochs=2, verbose=0)
    return history.history["loss"]


@pytest.fixture(scope="module")
def expected():
    """Returns the loss of plain Keras, which accumulates the mean."""
    model = build(keras.layers.Identity)
    model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=ACCUMULATION), "mse")
    return loss_of(model)


@pytest.mark.parametrize(
    ("mode", "schedule"),
    with_marks(
        itertools.product(RecomputationMode, PipelineSchedule),
        slow=[(RecomputationMode.Auto, PipelineSchedule.Grouped)],
    ),
    ids=lambda each: each.name,
)
def test_f03_pairs_of_mode_and_schedule(system, expected, mode, schedule):
    system(2, allow_recompute=True)
    strategy = ipu.ipu_strategy.IPUStrategy()
    if (mode, schedule) in ILLEGAL:
        with pytest.raises(NotImplementedError) as raised:
            loss_of(pipelined(strategy, schedule, mode))
        assert f"recomputation_mode={mode.name}" in str(raised.value)
        assert f"pipeline_schedule={schedule.name}" in str(raised.value)
        assert "RecomputationMode.Auto" in str(raised.value)
    else:
        loss = loss_of(pipelined(strategy, schedule, mode))
        np.testing.assert_allclose(loss, expected, rtol=1e-5)


def memory(system, allowed, mark):
    system(2, allow_recompute=allowed)
    strategy = ipu.ipu_strategy.IPUStrategy()
    model = pipelined(strategy, GROUPED, MIXED, mark=mark, width=64)
    x, y = data()
    report = strategy.memory_report(model, (x[:ROWS], y[:ROWS]))
    return [
        (stage.temporaries, stage.in_flight) for device in report.devices for stage in device.stages
    ]


@pytest.mark.slow
def test_f03_the_master_switch_makes_marks_and_modes_inert(system):
    plain = memory(system, False, keras.layers.Identity)
    assert memory(system, False, RecomputationCheckpoint) == plain
    allowed = memory(system, True, RecomputationCheckpoint)
    assert sum(held for _, held in allowed) < sum(held for _, held in plain)


def test_f03_a_mode_is_a_member_of_its_enum(system):
    system(2, allow_recompute=True)
    with pytest.raises(TypeError, match=r"recomputation_mode must be .*Received: 'Auto'"):
        loss_of(pipelined(ipu.ipu_strategy.IPUStrategy(), GROUPED, "Auto"))
