import os

import keras
import numpy as np
import pytest
from examples_of_ipu import load as example

from millrace.base.records.run import load
from millrace_ipu import ipu
from millrace_ipu.ipu.addons.keras.layers import RecomputationCheckpoint
from millrace_ipu.ipu.ops.schedules import PipelineSchedule, RecomputationMode

pytestmark = pytest.mark.slow


@pytest.fixture
def report_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("MILLRACE_REPORT_DIR", os.fspath(tmp_path))
    return tmp_path


def profiles(path, program):
    """The memory of the programs of one name, in the order in which they were compiled."""
    found = [each for each in load(path).memory_profiles if each.program == program]
    return sorted(found, key=lambda each: each.began)


def check(path, layer):
    """Compares a pipeline that was trained without checkpoints, and then with seven."""
    for name in ("forward", "backward"):
        without, with_marks = profiles(path, f"train_{name} of stage 0")
        assert (layer in with_marks.recomputation) == (name == "backward")
        assert with_marks.peak.bytes < without.peak.bytes
        before, after = (
            max(next(area.curve for area in each.areas if area.role == "activations"))
            for each in (without, with_marks)
        )
        assert after < before
        assert len(without.curve) > 10  # liveness, step by step


def test_f06_the_split_lstm_needs_less_with_checkpoints(report_dir, monkeypatch, capsys):
    script = example("recompute_lstm")
    monkeypatch.setattr(script, "UNITS", 16)
    monkeypatch.setattr(script, "FEATURES", 4)
    script.main(["--seq-len", "128", "--checkpoints", "0"])
    script.main(["--seq-len", "128", "--checkpoints", "7"])
    assert capsys.readouterr().out.count("loss:") == 2
    check(report_dir, "lstm")


def test_f06_the_pipeline_of_convolutions_needs_less_with_checkpoints(report_dir, system):
    def build(marks):
        x = inputs = keras.Input((16, 16, 4))
        for number in range(8):
            x = keras.layers.Conv2D(8, 3, padding="same", activation="relu")(x)
            if number < marks:
                x = RecomputationCheckpoint()(x)
        return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(x)))

    for marks in (0, 7):
        system(1, allow_recompute=marks > 0)
        with ipu.ipu_strategy.IPUStrategy().scope():
            model = build(marks)
            calls = model.get_pipeline_stage_assignment()
            for number, call in enumerate(calls):
                call.pipeline_stage = int(number >= len(calls) - 2)
            model.set_pipeline_stage_assignment(calls)
            mode = RecomputationMode.RecomputeAndBackpropagateInterleaved
            model.set_pipelining_options(
                gradient_accumulation_steps_per_replica=2,
                device_mapping=[0, 0],
                pipeline_schedule=PipelineSchedule.Sequential,
                recomputation_mode=mode if marks else None,
            )
            model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=2)
            x = np.ones((16, 16, 16, 4), "float32")
            model.fit(x, np.ones((16, 1), "float32"), batch_size=8, verbose=0)
    check(report_dir, "conv2d")
    assert not profiles(report_dir, "train_backward of stage 0")[0].recomputation
