import keras
import numpy as np
import pytest

from millrace_ipu import ipu
from millrace_ipu.ipu.keras.extensions.stages import (
    FunctionalLayerPipelineStageAssignment,
    FunctionalNestedModelPipelineStageAssignment,
    ModelLayerPipelineStageAssignment,
    SequentialLayerPipelineStageAssignment,
    SequentialNestedModelPipelineStageAssignment,
)

ROWS, WIDTH, ACCUMULATION = 4, 3, 4


def data():
    x = np.random.default_rng(0).normal(size=(ROWS * ACCUMULATION, WIDTH)).astype("float32")
    return x, np.tanh(x[:, :1])


def dense(name):
    return keras.layers.Dense(4, "tanh", name=name)


def nested():
    keras.utils.set_random_seed(0)
    x = keras.Input((4,))
    inner = keras.Model(x, dense("c")(dense("b")(x)), name="inner")
    inputs = keras.Input((WIDTH,))
    outputs = keras.layers.Dense(1, name="out")(inner(dense("a")(inputs)))
    return keras.Model(inputs, outputs)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        keras.utils.set_random_seed(0)
        self.a, self.b, self.out = dense("a"), dense("b"), keras.layers.Dense(1, name="out")

    def call(self, x):
        return self.out(self.b(self.b(self.a(x))))


@pytest.fixture
def strategy(system):
    system(2)
    return ipu.ipu_strategy.IPUStrategy()


def fitted(model):
    """Returns the weights after one update by the mean over all rows."""
    is_plain = not hasattr(model, "set_pipelining_options")
    rows, steps = (ROWS * ACCUMULATION, 1) if is_plain else (ROWS, ACCUMULATION)
    if not is_plain:
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=ACCUMULATION,
            experimental_normalize_gradients=True,
        )
    model.compile(keras.optimizers.SGD(0.5), "mse", steps_per_execution=steps)
    model.fit(*data(), batch_size=rows, shuffle=False, verbose=0)
    return model.get_weights()


def assert_same(actual, expected):
    for mine, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_f19_a_nested_model_over_two_stages(strategy):
    with strategy.scope():
        model = nested()
    first, inner, last = items = model.get_pipeline_stage_assignment()
    assert type(first) is FunctionalLayerPipelineStageAssignment
    assert type(inner) is FunctionalNestedModelPipelineStageAssignment
    assert inner.nested_model.name == "inner"
    assert inner.node_index == 0
    first.pipeline_stage = 0
    for stage, item in enumerate(inner.pipeline_stage_assignments):
        assert type(item) is FunctionalLayerPipelineStageAssignment
        item.pipeline_stage = stage
    last.pipeline_stage = 1
    model.set_pipeline_stage_assignment(items)
    (inside,) = (layer for layer in model.layers if layer.name == "inner")
    assert [i.pipeline_stage for i in inside.get_pipeline_stage_assignment()] == [None, None]
    assert_same(fitted(model), fitted(nested()))


def test_f19_a_nested_model_brings_its_own_stages(strategy):
    with strategy.scope():
        inner = keras.Sequential([keras.Input((4,)), dense("b"), dense("c")], name="inner")
        inner.set_pipeline_stage_assignment([0, 1])
        model = keras.Sequential([keras.Input((4,)), inner])
    (item,) = model.get_pipeline_stage_assignment()
    assert type(item) is SequentialNestedModelPipelineStageAssignment
    assert [type(inside) for inside in item.pipeline_stage_assignments] == [
        SequentialLayerPipelineStageAssignment
    ] * 2
    assert [inside.pipeline_stage for inside in item.pipeline_stage_assignments] == [0, 1]
    model.set_pipeline_stage_assignment([item])


def test_f19_the_wrong_class_is_named(strategy):
    with strategy.scope():
        model = nested()
    items = model.get_pipeline_stage_assignment()
    items[1] = FunctionalLayerPipelineStageAssignment(items[1].nested_model, 0, 0)
    items[0].pipeline_stage = items[2].pipeline_stage = 0
    with pytest.raises(
        ValueError, match=r"'inner' \(node index 0\) is assigned by a FunctionalLayerPipeline"
    ):
        model.set_pipeline_stage_assignment(items)


def test_f19_a_subclassed_model_is_built_first(strategy):
    with strategy.scope():
        model = Subclassed()
    with pytest.raises(RuntimeError, match="build"):
        model.get_pipeline_stage_assignment()
    with pytest.raises(RuntimeError, match="build"):
        model.set_pipeline_stage_assignment([])
    model.build((None, WIDTH))
    items = model.get_pipeline_stage_assignment()
    assert {type(item) for item in items} == {ModelLayerPipelineStageAssignment}
    calls = [(item.layer.name, item.node_index) for item in items]
    assert calls == [("a", 0), ("b", 0), ("b", 1), ("out", 0)]
    for item, stage in zip(items, (0, 0, 0, 1), strict=True):
        item.pipeline_stage = stage
    model.set_pipeline_stage_assignment(items)
    plain = Subclassed()
    plain(data()[0])
    assert_same(fitted(model), fitted(plain))


def test_f19_a_subclass_without_call(strategy):
    class Nothing(keras.Model):
        pass

    with strategy.scope():
        model = Nothing()
    model.build((None, WIDTH))
    with pytest.raises(NotImplementedError):
        model.get_pipeline_stage_assignment()
