import logging

import keras
import numpy as np
import pytest
from linear_models import rows, two_stages

from millrace_ipu.ipu.ipu_strategy import IPUStrategy
from millrace_ipu.ipu.keras.extensions import FunctionalExtension, SequentialExtension
from millrace_ipu.ipu.keras.extensions.settings import settings_of
from millrace_ipu.ipu.ops.schedules import PipelineSchedule


def sequential():
    model = two_stages(IPUStrategy(), 8)
    model.set_pipelining_options(
        4, [1, 0], True, True, pipeline_schedule=PipelineSchedule.Sequential
    )
    model.set_gradient_accumulation_options(
        2, gradient_accumulation_reduction_method="running_mean", dtype="float32"
    )
    model.set_asynchronous_callbacks(True)
    model.set_replication_options("list")
    model.set_infeed_queue_options(prefetch_depth=3)
    model.set_outfeed_queue_options(buffer_depth=2)
    return model


def functional():
    with IPUStrategy().scope():
        inputs = keras.Input((1,))
        dense = keras.layers.Dense(1)
        model = keras.Model(inputs, keras.layers.Add()([dense(dense(inputs)), inputs]))
    assignment = model.get_pipeline_stage_assignment()
    for each, stage in zip(assignment, (0, 0, 1), strict=True):
        each.pipeline_stage = stage
    model.set_pipeline_stage_assignment(assignment)
    model.set_pipelining_options(6)
    model.compile("sgd", "mse")
    return model


def reloaded(model, way, tmp_path):
    if way == "file":
        model.save(tmp_path / "model.keras")
        return keras.saving.load_model(tmp_path / "model.keras")
    if way == "json":
        return keras.models.model_from_json(model.to_json())
    return type(model).from_config(model.get_config())


@pytest.mark.parametrize("way", ["file", "json", "config"])
@pytest.mark.parametrize("make", [sequential, functional])
def test_f28_what_comes_back_in_a_scope(make, way, system, tmp_path, caplog):
    system(2)
    model = make()
    before = settings_of(model._millrace)
    with caplog.at_level(logging.INFO, "millrace"), IPUStrategy().scope():
        loaded = reloaded(model, way, tmp_path)
    kind = SequentialExtension if make is sequential else FunctionalExtension
    assert isinstance(loaded, kind)
    after = settings_of(loaded._millrace)
    for part in ("accumulation", "pipelining"):
        one, other = getattr(before, part), getattr(after, part)
        assert (one.steps, one.method, one.normalizes) == (
            other.steps,
            other.method,
            other.normalizes,
        )
        assert other.more == {}
    for name in ("device_mapping", "accumulate_outfeed", "asynchronous", "metrics"):
        assert getattr(before, name) == getattr(after, name)
    assert (before.infeed, before.outfeed) == (after.infeed, after.outfeed)
    stages = [each.pipeline_stage for each in loaded.get_pipeline_stage_assignment()]
    assert stages == [each.pipeline_stage for each in model.get_pipeline_stage_assignment()]
    assert loaded._millrace.setup.options.pipelining.schedule == "grouped"
    said = "options ['pipeline_schedule'] of" in caplog.text
    assert said == (make is sequential)


def test_f28_stock_keras_loads_the_file_and_a_stock_file_loads(system, tmp_path):
    system(2)
    x, _ = rows(8)
    model = sequential()
    model.save(tmp_path / "ours.keras")
    stock = keras.saving.load_model(tmp_path / "ours.keras")
    np.testing.assert_allclose(
        stock.predict(x, verbose=0), model.predict(x, batch_size=2, verbose=0), rtol=1e-6
    )
    assert "_millrace" not in stock.__dict__
    keras.models.model_from_json(functional().to_json())
    stock.save(tmp_path / "stock.keras")
    with IPUStrategy().scope():
        loaded = keras.saving.load_model(tmp_path / "stock.keras")
    assert loaded.get_pipeline_stage_assignment()[0].pipeline_stage is None
    assert settings_of(loaded._millrace).pipelining.steps is None


def test_f28_a_loaded_model_trains_on(system, tmp_path):
    system(2)
    x, y = rows(32)
    model = two_stages(IPUStrategy(), 8)
    model.set_pipelining_options(4)
    model.save(tmp_path / "model.keras")
    with IPUStrategy().scope():
        loaded = keras.saving.load_model(tmp_path / "model.keras")
    checkpoint = keras.callbacks.ModelCheckpoint(
        str(tmp_path / "w.weights.h5"), save_weights_only=True
    )
    for each in (model, loaded):
        each.fit(x, y, batch_size=2, shuffle=False, verbose=0, callbacks=[checkpoint])
    for value, expected in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(value, expected)
    model.load_weights(tmp_path / "w.weights.h5")
