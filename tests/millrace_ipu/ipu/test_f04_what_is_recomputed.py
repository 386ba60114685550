import keras
import numpy as np
import pytest

from millrace.compilation.executables import executable
from millrace_ipu import ipu
from millrace_ipu.ipu.addons.keras.layers import RecomputationCheckpoint
from millrace_ipu.ipu.ops.schedules import PipelineSchedule, RecomputationMode

ROWS, WIDTH, ACCUMULATION = 4, 6, 2


def trained(system, allowed, layers, stages):
    system(1, allow_recompute=allowed)
    keras.utils.set_random_seed(0)
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = keras.Sequential([keras.Input((WIDTH,)), *layers()])
        model.set_pipeline_stage_assignment(stages)
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=ACCUMULATION,
            device_mapping=[0] * (max(stages) + 1),
            pipeline_schedule=PipelineSchedule.Sequential,
            recomputation_mode=RecomputationMode.RecomputeAndBackpropagateInterleaved,
        )
        model.compile(keras.optimizers.SGD(1.0), "mse", steps_per_execution=ACCUMULATION)
    x = np.random.default_rng(0).normal(size=(ROWS * ACCUMULATION, WIDTH)).astype("float32")
    before = model.get_weights()
    model.fit(x, np.tanh(x[:, :1]), batch_size=ROWS, shuffle=False, verbose=0)
    return [old - new for old, new in zip(before, model.get_weights(), strict=True)]


def with_dropout():
    return [
        keras.layers.Dense(16, "tanh"),
        RecomputationCheckpoint(),
        ipu.keras.layers.Dropout(0.3, seed=[1, 4]),
        keras.layers.Dense(8, "tanh"),
        keras.layers.Dense(1),
    ]


@pytest.mark.slow
def test_f04_masks_are_the_same_when_they_are_replayed(system):
    stages = [0, 0, 0, 0, 1]
    plain = trained(system, False, with_dropout, stages)
    replayed = trained(system, True, with_dropout, stages)
    for mine, theirs in zip(replayed, plain, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)
        assert np.abs(mine).max() > 1e-3


@pytest.fixture
def tanhs(monkeypatch):
    """Fills with the number of tanh operations in each compiled program, by its name."""
    counts = {}
    make = executable.share_or_compile

    def spy(lowering, log):
        text = lowering.lowered.as_text()
        if text.count("stablehlo.tanh"):
            counts[lowering.wanted.key.program] = text.count("stablehlo.tanh")
        return make(lowering, log)

    monkeypatch.setattr(executable, "share_or_compile", spy)
    return counts


@pytest.mark.slow
def test_f04_the_last_stage_replays_what_is_before_its_final_mark(system, tanhs):
    def layers():
        dense = [keras.layers.Dense(8, "tanh") for _ in range(5)]
        mark = RecomputationCheckpoint()
        return [*dense[:4], mark, dense[4], keras.layers.Dense(1)]

    forward = {"train_forward of stage 0": 2, "train_forward of stage 1": 3}
    trained(system, False, layers, [0, 0, 1, 1, 1, 1, 1])
    assert tanhs == forward
    tanhs.clear()
    trained(system, True, layers, [0, 0, 1, 1, 1, 1, 1])
    # A stage's output and a marked value are kept, and the slope of a tanh follows from its value.
    assert tanhs == {**forward, "train_backward of stage 0": 1, "train_backward of stage 1": 1}
