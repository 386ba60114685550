import logging

import keras
import numpy as np
import pytest

from millrace_ipu import ipu
from millrace_ipu.ipu.keras.extensions.stages import (
    FunctionalLayerPipelineStageAssignment,
    SequentialLayerPipelineStageAssignment,
)


@pytest.fixture
def model(system):
    system(2)
    with ipu.ipu_strategy.IPUStrategy().scope():
        return keras.Sequential(
            [
                keras.layers.Flatten(name="flat"),
                *(keras.layers.Dense(units, name=f"dense_{units}") for units in (4, 3, 1)),
            ]
        )


def stages(model):
    return [item.pipeline_stage for item in model.get_pipeline_stage_assignment()]


def test_f15_whole_numbers_before_the_model_is_built(model):
    assert not model.built
    assert stages(model) == [None] * 4
    model.set_pipeline_stage_assignment([0, 0, 1, 1])
    assert stages(model) == [0, 0, 1, 1]
    for item, layer in zip(model.get_pipeline_stage_assignment(), model.layers, strict=True):
        assert type(item) is SequentialLayerPipelineStageAssignment
        assert item.layer is layer


def test_f15_objects(model):
    items = [
        SequentialLayerPipelineStageAssignment(layer, stage)
        for layer, stage in zip(model.layers, (0, 1, 1, 1), strict=True)
    ]
    items[1].pipeline_stage = 0
    model.set_pipeline_stage_assignment(items)
    assert stages(model) == [0, 0, 1, 1]
    with pytest.raises(AttributeError):
        items[0].layer = model.layers[1]
    assert "dense_4" in str(items[1])


@pytest.mark.parametrize(
    ("stage_list", "message"),
    [
        ((0, 0, 1, 1), "must be a list. Received: tuple"),
        ([0, 1, 1], "makes 4 layer calls.*a list of 3"),
        ([0.0, 0.0, 1.0, 1.0], r"holds 0\.0, of type float"),
        ([0, 0, None, 1], r"holds None, of type NoneType.*either all whole numbers"),
        ([0, "1", 1, 1], "holds '1', of type str"),
        ([1, 1, 1, 1], "numbered from 0 on|first layer, 'flat', is in stage 1"),
        ([0, 2, 2, 2], "'dense_4' is in stage 2, after 'flat' in stage 0. Set 0.*or 1"),
        ([0, 1, 0, 1], "'dense_3' is in stage 0, after 'dense_4' in stage 1"),
    ],
)
def test_f15_lists_that_do_not_fit(model, stage_list, message):
    with pytest.raises(ValueError, match=message):
        model.set_pipeline_stage_assignment(stage_list)
    assert stages(model) == [None] * 4


def test_f15_objects_that_do_not_fit(model):
    items = model.get_pipeline_stage_assignment()
    with pytest.raises(ValueError, match=r"'flat'.*no pipeline stage\. Set"):
        model.set_pipeline_stage_assignment(items)
    for item in items:
        item.pipeline_stage = 0
    items[1], items[2] = items[2], items[1]
    with pytest.raises(ValueError, match=r"'dense_3' is where that of 'dense_4' belongs"):
        model.set_pipeline_stage_assignment(items)
    others = [FunctionalLayerPipelineStageAssignment(layer, 0, 0) for layer in model.layers]
    with pytest.raises(ValueError, match=r"Element 0 .*Functional.*takes a SequentialLayer"):
        model.set_pipeline_stage_assignment(others)


@pytest.mark.parametrize("change", ["add", "pop"])
def test_f15_a_changed_model_must_be_assigned_again(model, change, caplog):
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    model.set_pipeline_stage_assignment([0, 0, 1, 1])
    with caplog.at_level(logging.INFO, "millrace"):
        model.add(keras.layers.Dense(1, name="more")) if change == "add" else model.pop()
    assert "set_pipeline_stage_assignment() again" in caplog.text
    model.compile("sgd", "mse", steps_per_execution=4)
    x = np.zeros((16, 2), "float32")
    with pytest.raises(RuntimeError, match=r"assigned to pipeline stages with 4 layer calls"):
        model.fit(x, x[:, :1], batch_size=4, verbose=0)
    items = model.get_pipeline_stage_assignment()
    assert len(items) == len(model.layers)
    model.set_pipeline_stage_assignment([0, *[1] * (len(items) - 1)])
    model.compile("sgd", "mse", steps_per_execution=4)
    assert stages(model) == [0, *[1] * (len(items) - 1)]


def test_f15_a_direct_call_is_that_of_the_model(model):
    x = np.random.default_rng(0).normal(size=(3, 2)).astype("float32")
    plain = np.asarray(model(x))
    model.set_pipeline_stage_assignment([0, 0, 1, 1])
    np.testing.assert_array_equal(model(x), plain)
