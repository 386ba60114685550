import keras
import pytest

from millrace_ipu import ipu

PipelineStage = ipu.keras.PipelineStage


@pytest.fixture
def strategy(system):
    system(2)
    return ipu.ipu_strategy.IPUStrategy()


def dense(name):
    return keras.layers.Dense(2, name=name)


def stages(model):
    return {
        (item.layer.name, item.node_index): item.pipeline_stage
        for item in model.get_pipeline_stage_assignment()
    }


def test_f16_calls_report_the_stage_of_their_scope(strategy):
    with strategy.scope():
        inputs = keras.Input((2,))
        with PipelineStage(0):
            x = dense("a")(inputs)
            made, kept = dense("made"), dense("kept")  # 0, unless called elsewhere
        with PipelineStage(1):
            y = made(x)
            z = y + x
        x = keras.layers.Identity
        with PipelineStage(1):
            z = dense("d")(z)
        early = kept(inputs)
        model = keras.Model(inputs, [z, early])
    (add,) = (name for name, _ in stages(model) if name not in ("a", "made", "d", "kept"))
    assert stages(model) == {
        ("a", 0): 0,
        ("made", 0): 1,
        (add, 0): 1,
        ("d", 0): 1,
        ("kept", 0): 0,
    }


def test_f16_one_layer_in_two_stages(strategy):
    with strategy.scope():
        shared, x = dense("shared"), keras.Input((2,))
        inputs = x
        for stage in (0, 1):
            with PipelineStage(stage):
                x = shared(x)
        model = keras.Model(inputs, x)
    assert stages(model) == {("shared", 0): 0, ("shared", 1): 1}


def test_f16_no_scope_no_pipeline(strategy):
    with strategy.scope():
        inputs = keras.Input((2,))
        model = keras.Model(inputs, dense("b")(dense("a")(inputs)))
    assert stages(model) == {("a", 0): None, ("b", 0): None}


def test_f16_a_call_outside_is_named(strategy):
    with strategy.scope():
        inputs = keras.Input((2,))
        with PipelineStage(0):
            x = dense("a")(inputs)
        x = dense("outside")(x)
        with PipelineStage(1):
            x = dense("c")(x)
        with pytest.raises(ValueError, match=r"'outside' \(node index 0\) is in no pipeline stage"):
            keras.Model(inputs, x)


def test_f16_layers_of_a_scope_may_go_into_a_sequential(strategy):
    with strategy.scope():
        with PipelineStage(0):
            first = dense("a")
        model = keras.Sequential([keras.Input((2,)), first, dense("b")])
        model.set_pipeline_stage_assignment([0, 1])
    assert stages(model) == {("a", 0): 0, ("b", 0): 1}


def test_f16_scopes_that_cannot_be(strategy):
    with (
        pytest.raises(RuntimeError, match=r"PipelineStage\(0\).*outside of a strategy's scope"),
        PipelineStage(0),
    ):
        pass
    with strategy.scope():
        with pytest.raises(ValueError, match=r"Received: PipelineStage\(-1\)"), PipelineStage(-1):
            pass
        with (
            PipelineStage(0),
            pytest.raises(RuntimeError, match=r"PipelineStage\(1\).*inside PipelineStage\(0\)"),
            PipelineStage(1),
        ):
            pass
