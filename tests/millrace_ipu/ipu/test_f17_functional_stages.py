import keras
import pytest

from millrace_ipu import ipu
from millrace_ipu.ipu.keras.extensions.stages import (
    FunctionalLayerPipelineStageAssignment,
    SequentialLayerPipelineStageAssignment,
)

ORDER = [("a", 0), ("shared", 0), ("b", 0), ("shared", 1), ("add", 0), ("out", 0)]


@pytest.fixture
def model(system):
    """Five layers, one of which is called twice."""
    system(2)
    with ipu.ipu_strategy.IPUStrategy().scope():
        inputs = keras.Input((2,))
        a, shared, b = (keras.layers.Dense(2, name=name) for name in ("a", "shared", "b"))
        first = shared(a(inputs))
        x = keras.layers.Add(name="add")([shared(b(first)), first])
        return keras.Model(inputs, keras.layers.Dense(1, name="out")(x))


def assigned(model, *stages):
    items = model.get_pipeline_stage_assignment()
    for item, stage in zip(items, stages, strict=True):
        item.pipeline_stage = stage
    return items


def test_f17_an_object_for_each_call_in_execution_order(model):
    items = model.get_pipeline_stage_assignment()
    assert [(item.layer.name, item.node_index) for item in items] == ORDER
    assert {type(item) for item in items} == {FunctionalLayerPipelineStageAssignment}
    assert [item.pipeline_stage for item in items] == [None] * 6
    inbound = [[layer.name for layer in item.inbound_layers] for item in items]
    assert inbound[1] == ["a"]
    assert inbound[3] == ["b"]
    assert sorted(inbound[4]) == ["shared"]  # of both calls
    assert "shared" in str(items[3])
    assert "node_index=1" in str(items[3])


def test_f17_set_get_reset(model):
    model.set_pipeline_stage_assignment(assigned(model, 0, 0, 0, 1, 1, 1))
    items = model.get_pipeline_stage_assignment()
    assert [item.pipeline_stage for item in items] == [0, 0, 0, 1, 1, 1]
    model.reset_pipeline_stage_assignment()
    items = model.get_pipeline_stage_assignment()
    assert [item.pipeline_stage for item in items] == [None] * 6


def test_f17_own_objects(model):
    stages = dict(zip(ORDER, (0, 0, 0, 1, 1, 1), strict=True))
    layers = {layer.name: layer for layer in model.layers}
    model.set_pipeline_stage_assignment(
        [FunctionalLayerPipelineStageAssignment(layers[n], i, s) for (n, i), s in stages.items()]
    )
    items = model.get_pipeline_stage_assignment()
    assert [item.pipeline_stage for item in items] == [0, 0, 0, 1, 1, 1]


def swapped(items):
    return [SequentialLayerPipelineStageAssignment(item.layer, 0) for item in items]


@pytest.mark.parametrize(
    ("stages", "change", "message"),
    [
        ((0,) * 6, tuple, "must be a list. Received: tuple"),
        ((0,) * 6, lambda items: items[:5], "6 layer calls, excluding input layers.*list of 5"),
        ((0,) * 6, lambda items: [0] * 6, "holds 0, of type int"),
        ((0,) * 6, swapped, "Element 0 .*Sequential.*A Functional takes a FunctionalLayer"),
        ((0, 0, 0, None, 1, 1), list, r"'shared' \(node index 1\) has no pipeline stage"),
        ((0,) * 6, lambda i: [i[0], i[1], i[2], i[1], *i[4:]], r"'shared' \(node index 0\) twice"),
        ((0, 0, 0, 2, 2, 2), list, r"Found: \[0, 2\]; missing: \[1\]"),
        ((0, 0, 0, 1, 0, 1), list, r"'add' .*is in stage 0 and takes.*later stage 1"),
    ],
)
def test_f17_lists_that_do_not_fit(model, stages, change, message):
    with pytest.raises(ValueError, match=message):
        model.set_pipeline_stage_assignment(change(assigned(model, *stages)))
