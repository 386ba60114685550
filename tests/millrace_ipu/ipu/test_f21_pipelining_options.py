import numpy as np
import pytest
from linear_models import rows, two_stages

from millrace.base.options import Reduction
from millrace.errors import OptionError
from millrace_ipu.ipu.ipu_strategy import IPUStrategy
from millrace_ipu.ipu.ops.pipelining_ops import PipelineStageOptions
from millrace_ipu.ipu.ops.schedules import PipelineSchedule, RecomputationMode

KEY = "gradient_accumulation_steps_per_replica"
AUTOMATIC = "it is set automatically"


@pytest.fixture
def model(system):
    system(2, allow_recompute=True)
    return two_stages(IPUStrategy(), 4)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({KEY: 0}, OptionError, "at least 1. Received: 0"),
        ({KEY: True}, OptionError, "whole number"),
        ({"device_mapping": 1}, OptionError, r"such as \[0, 1\]. Received: 1"),
        ({"device_mapping": [0, 1.0]}, OptionError, r"Received: \[0, 1.0\]"),
        ({"accumulate_outfeed": 1}, OptionError, "accumulate_outfeed must be True or False"),
        ({"gradient_accumulation_count": 4}, OptionError, f"set {KEY} instead"),
        ({"computational_stages": []}, OptionError, AUTOMATIC),
        ({"repeat_count": 2}, OptionError, AUTOMATIC),
        ({"inputs": []}, OptionError, AUTOMATIC),
        ({"infeed_queue": None}, OptionError, AUTOMATIC),
        ({"outfeed_queue": None}, OptionError, AUTOMATIC),
        ({"optimizer_function": None}, OptionError, r"one given to compile\(\)"),
        ({"outfeed_loss": True}, OptionError, "not compatible with Keras. Read the loss from"),
        ({"outfeed_mask": [True]}, OptionError, "not compatible with Keras. Read logs"),
        ({"pipeline_scedule": None}, OptionError, "Did you mean pipeline_schedule"),
        ({"pipeline_schedule": "grouped"}, TypeError, "member of PipelineSchedule.*'grouped'"),
        ({"recomputation_mode": "auto"}, TypeError, "member of RecomputationMode.*'auto'"),
        ({"continuous_weight_updates": True}, NotImplementedError, "Leave it out"),
        ({"batch_serialization_iterations": 0}, OptionError, "at least 1"),
        ({"forward_propagation_stages_poplar_options": 1}, TypeError, "list of PipelineStageO"),
        ({"weight_update_poplar_options": {}}, TypeError, "PipelineStageOptions. Received: {}"),
        (
            {
                "recomputation_mode": RecomputationMode.RecomputeThenBackpropagate,
                "pipeline_schedule": PipelineSchedule.Sequential,
            },
            NotImplementedError,
            "RecomputeThenBackpropagate does not go with pipeline_schedule=Sequential",
        ),
        (
            {
                "batch_serialization_iterations": 2,
                "pipeline_schedule": PipelineSchedule.Grouped,
            },
            NotImplementedError,
            "batch_serialization_iterations",
        ),
    ],
)
def test_f21_what_the_setter_refuses(model, arguments, error, message):
    with pytest.raises(error, match=message):
        model.set_pipelining_options(**arguments)


def test_f21_a_call_without_the_schedule_falls_back_to_grouped(model):
    model.set_pipelining_options(4, pipeline_schedule=PipelineSchedule.Sequential)
    assert model._millrace.setup.options.pipelining.schedule == "sequential"
    model.set_pipelining_options(device_mapping=[1, 0])
    actual = model._millrace.setup.options.pipelining
    assert (actual.schedule, actual.steps, actual.device_mapping) == ("grouped", 4, (1, 0))
    assert actual.reduction is Reduction.SUM
    model.set_pipelining_options(None, None, None, "mean")
    assert model._millrace.setup.options.pipelining.reduction is Reduction.MEAN_THEN_SUM
    model.set_pipelining_options(8, [0, 1], True, True, "sum")
    actual = model._millrace.setup.options.pipelining
    assert (actual.steps, actual.device_mapping, actual.reduction) == (8, (0, 1), Reduction.MEAN)


def test_f21_fit_needs_the_steps_of_an_update_and_predict_does_not(model):
    x, y = rows(8)
    model.set_pipelining_options()
    with pytest.raises(ValueError, match=rf"Call model.set_pipelining_options\({KEY}=...\) before"):
        model.fit(x, y, batch_size=2)
    assert model.predict(x, batch_size=2, verbose=0).shape == (8, 1)


def test_f21_one_stage_and_lists_of_another_length(model):
    x, y = rows(8)
    options = PipelineStageOptions()
    model.set_pipelining_options(4, forward_propagation_stages_poplar_options=[options])
    with pytest.raises(ValueError, match="has 1 entries, and the pipeline has 2 stages"):
        model.fit(x, y, batch_size=2)
    model.set_pipelining_options(device_mapping=[0])
    with pytest.raises(ValueError, match=r"device_mapping=\[0\] has 1 entries, and .* 2 pipeline"):
        model.fit(x, y, batch_size=2)
    model.set_pipeline_stage_assignment([0, 0])
    with pytest.raises(ValueError, match="two stages"):
        model.predict(x, batch_size=2)


def test_f21_batch_serialization_and_the_accumulators_dtype_are_accepted(model):
    x, y = rows(32)
    model.compile("sgd", "mse", steps_per_execution=4)
    model.set_pipelining_options(
        2,
        device_mapping=[0, 0],
        batch_serialization_iterations=2,
        gradient_accumulation_dtype=np.float32,
    )
    with pytest.raises(RuntimeError, match=r"iterations x replicas = 2 x 2 x 2 = 8\. .* to 8"):
        model.fit(x, y, batch_size=2, verbose=0)
    model.compile("sgd", "mse", steps_per_execution=8)
    model.fit(x, y, batch_size=2, verbose=0)
    assert int(model.optimizer.iterations) == 16 // 8  # batches, in an update
    assert model._millrace.setup.options.pipelining.dtype == "float32"


@pytest.mark.parametrize("allowed", [False, True])
def test_f21_recomputation_needs_the_configuration(system, allowed):
    system(2, allow_recompute=allowed)
    model = two_stages(IPUStrategy(), 4)
    mode = RecomputationMode.RecomputeAndBackpropagateInterleaved
    model.set_pipelining_options(4, recomputation_mode=mode)
    actual = model._millrace.setup.options.recomputation.mode.value
    assert actual == ("recompute_and_backpropagate_interleaved" if allowed else "none")
