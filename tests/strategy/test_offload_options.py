"""When something rests in host memory, and what is said where it cannot."""

import logging

import jax
import keras
import numpy as np
import pytest
from keras import layers

import millrace
from millrace._compat import jax_memory as jax_spaces
from millrace.base.options import NO_OFFLOAD
from millrace.errors import OptionError
from millrace.run.fit.controller import controller_of

STATE = "offload_weight_update_variables"
BUFFERS = "offload_gradient_accumulation_buffers"
SETTERS = {
    "set_gradient_accumulation_options": {STATE, BUFFERS},
    "set_pipelining_options": {STATE, BUFFERS, "offload_activations", "offload_weights"},
    "set_replication_options": {STATE, "offload_weights"},
}
PAIRS = [(setter, name) for setter, names in SETTERS.items() for name in sorted(names)]


@pytest.fixture
def host_memory(monkeypatch):
    monkeypatch.setattr(jax_spaces, "is_another_memory", lambda device: True)


def build(devices=1, stages=None, strategy=None):
    with (strategy or millrace.Strategy(devices=devices)).scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(8), layers.Dense(1)])
    model.compile("adam", "mse", steps_per_execution=2)
    if stages is not None:
        model.set_pipeline_stage_assignment(stages)
    return model


def fit(model):
    x = np.zeros((8, 4), "float32")
    model.fit(x, x[:, :1], batch_size=2, verbose=0)


def resting(model):
    """Names of what rests in host memory."""
    found = controller_of(model).setup.offload
    return {name for name in found.__slots__ if getattr(found, name)}


@pytest.mark.parametrize(("setter", "name"), PAIRS)
def test_true_without_host_memory_is_an_error(setter, name):
    sharing = {"replicated_weight_sharding": True} if name == "offload_weights" else {}
    message = rf"{name}=True .*the backend 'cpu' .*Set {name}=False"
    with pytest.raises(OptionError, match=message):
        getattr(build(), setter)(**{name: True}, **sharing)


@pytest.mark.parametrize(("setter", "name"), PAIRS)
def test_each_is_true_or_false(setter, name):
    message = rf"{name} must be True, False or 'auto'\. Received: 'yes'"
    with pytest.raises(OptionError, match=message):
        getattr(build(), setter)(**{name: "yes"})


@pytest.mark.usefixtures("host_memory")
def test_weights_rest_only_in_parts():
    model = build(2)
    message = r"offload_weights=True .*replicated_weight_sharding=False. Set .*=True, too"
    with pytest.raises(OptionError, match=message):
        model.set_replication_options(offload_weights=True)
    model.set_replication_options(offload_weights=True, replicated_weight_sharding=True)
    assert "weights" in resting(model)
    with pytest.raises(OptionError, match=message):
        model.set_replication_options(replicated_weight_sharding=False)
    model.set_replication_options(offload_weights=False, replicated_weight_sharding=False)
    assert resting(model) == set()


@pytest.mark.usefixtures("host_memory")
def test_by_default_the_state_rests_where_updates_take_several_steps():
    model = build()
    assert resting(model) == set()
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
    assert resting(model) == {"optimizer_state"}
    model.set_gradient_accumulation_options(**{STATE: False})
    assert resting(model) == set()
    model.set_gradient_accumulation_options(
        gradient_accumulation_steps_per_replica=1, **{STATE: True}
    )
    assert resting(model) == {"optimizer_state"}


@pytest.mark.usefixtures("host_memory")
def test_by_default_a_pipeline_keeps_activations_unless_it_takes_several_at_a_time():
    model = build(2, [0, 1])
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=2)
    assert resting(model) == {"optimizer_state"}
    model.set_pipelining_options(batch_serialization_iterations=2)
    assert resting(model) == {"optimizer_state", "activations", "accumulators"}
    model.set_pipelining_options(
        batch_serialization_iterations=2, offload_activations=False, **{BUFFERS: False}
    )
    assert resting(model) == {"optimizer_state"}


@pytest.mark.usefixtures("host_memory")
def test_what_a_model_in_one_piece_does_not_have():
    model = build()
    model.set_pipelining_options(offload_activations=True)
    model.set_gradient_accumulation_options(**{BUFFERS: True})
    assert resting(model) == set()


def lines(caplog):
    found = [record.getMessage() for record in caplog.records if record.name == "millrace"]
    return [line for line in found if "stays off" in line]


def test_what_would_rest_and_cannot_is_said_once_for_a_strategy(caplog):
    strategy = millrace.Strategy(devices=1)
    with caplog.at_level(logging.INFO, "millrace"):
        fit(build(strategy=strategy))
        assert lines(caplog) == []
        for _ in range(2):
            model = build(strategy=strategy)
            model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
            fit(model)
            fit(model)
    (line,) = lines(caplog)
    assert line.startswith(f"{STATE} stays off: the backend 'cpu'")


def test_false_says_nothing(caplog):
    model = build()
    model.set_gradient_accumulation_options(
        gradient_accumulation_steps_per_replica=2, **{STATE: False}
    )
    with caplog.at_level(logging.INFO, "millrace"):
        fit(model)
    assert lines(caplog) == []
    assert controller_of(model).setup.offload == NO_OFFLOAD


@pytest.mark.skipif(jax.__version__ == "0.10.0", reason="its CPU compiler knows no memory kinds")
def test_a_model_saved_where_there_is_host_memory(tmp_path, monkeypatch):
    with monkeypatch.context() as there:
        there.setattr(jax_spaces, "is_another_memory", lambda device: True)
        model = build()
        model.set_gradient_accumulation_options(**{STATE: True})
        fit(model)
        model.save(tmp_path / "model.keras")
    with millrace.Strategy(devices=1).scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    with pytest.raises(OptionError, match=f"{STATE}=True .*backend 'cpu'"):
        fit(loaded)
    loaded.set_gradient_accumulation_options(**{STATE: False})
    fit(loaded)


@pytest.mark.skipif(jax.__version__ == "0.10.0", reason="its CPU compiler knows no memory kinds")
def test_cpus_have_one_memory():
    device = jax.devices()[0]
    assert jax_spaces.HOST in {memory.kind for memory in device.addressable_memories()}
    assert jax_spaces.host_memory(device) is None
    assert jax_spaces._moves_there_and_back(device)  # of other platforms, this decides
