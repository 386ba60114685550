import logging

import keras
import pytest
from linear_models import linear, rows, two_stages

from millrace_ipu.ipu.ipu_strategy import IPUStrategy


@pytest.fixture(autouse=True)
def everything(caplog):
    with caplog.at_level(logging.INFO, "millrace"):
        yield


def test_f30_one_step_per_execution_is_few(caplog):
    model = linear(IPUStrategy(), 1)
    model.fit(*rows(4), batch_size=2, verbose=0)
    assert f"model '{model.name}' runs one step per execution. Set steps_per_exec" in caplog.text


def test_f30_options_without_effect_in_inference_warn(system, caplog):
    system(2)
    model = two_stages(IPUStrategy(), 4)
    model.set_pipelining_options(offload_weight_update_variables=True, offload_activations=True)
    for _ in range(2):
        model.predict(rows(8)[0], batch_size=2, verbose=0)
    message = (
        "offload_weight_update_variables, offload_activations have no effect in evaluate and "
        f"predict of the pipelined model '{model.name}'"
    )
    assert caplog.text.count(message) == 1
    actual = [r.levelname for r in caplog.records if message in r.getMessage()]
    assert actual == ["WARNING"]


def test_f30_added_layers_invalidate_an_assignment(system, caplog):
    system(2)
    strategy = IPUStrategy()
    model = two_stages(strategy, 4)
    with strategy.scope():
        model.add(keras.layers.Dense(1))
    assert "Call set_pipeline_stage_assignment() again before it runs" in caplog.text
    with pytest.raises(RuntimeError, match="set_pipeline_stage_assignment"):
        model.predict(rows(8)[0], batch_size=2, verbose=0)
