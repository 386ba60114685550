"""Replicas on devices that are described: what they share out, and what they add up."""

import keras
import pytest
from keras import layers
from target_programs import Target, bytes_of, check_state, state_bytes

UNITS = 256
BATCH = (((32, UNITS), "float32"), ((32, UNITS), "float32"))
SHARDED = "replicated_optimizer_state_sharding", "replicated_weight_sharding"
OPTIONS = {
    "copies": {},
    "shared_optimizer": {SHARDED[0]: True},
    "shared_weights": dict.fromkeys(SHARDED, True),
    "optimizer_on_the_host": {SHARDED[0]: True, "offload_weight_update_variables": True},
    "all_on_the_host": {
        **dict.fromkeys(SHARDED, True),
        "offload_weight_update_variables": True,
        "offload_weights": True,
    },
    "list_of_metrics": {"replicated_metric_reduction_method": "list"},
    "synchronized": {"synchronized_batch_statistics": True},
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.quick if n == "shared_weights" else ()) for n in OPTIONS],
)
@pytest.mark.parametrize("replicas", [2, 8])
def test_replicas(kind, replicas, name):
    if kind == "h100" and "on_the_host" in name:
        pytest.skip("JAX knows no host memory of a GPU that is described")
    target = Target(f"{kind}:{replicas}")
    with target.strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((UNITS,)),
                layers.Dense(UNITS, "relu"),
                layers.BatchNormalization(),
                layers.Dense(UNITS),
            ]
        )
    model.compile("adam", "mse", steps_per_execution=4 * replicas)
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
    model.set_replication_options(**OPTIONS[name])
    programs = target.precompile(model, BATCH)
    assert {"train_run", "test_run", "predict_run"} <= set(programs)
    train = programs["train_run"]
    gradients = bytes_of(model.trainable_variables)
    if not OPTIONS[name].get(SHARDED[0]):
        check_state(train, model)
        assert train.collective_bytes("all-reduce") >= gradients
        assert not train.collective_bytes("reduce-scatter")
        return
    # Each device gets its part of the gradients, and the weights that all need. Values that are
    # small may be added up as a whole.
    kernels = bytes_of(v for v in model.trainable_variables if len(v.shape) > 1)
    assert train.collective_bytes("reduce-scatter") * replicas >= kernels
    assert train.collective_bytes("all-gather") >= kernels
    assert train.collective_bytes("all-reduce") < gradients / 10
    part = state_bytes(model) / replicas
    if OPTIONS[name].get(SHARDED[1]):
        aliased = train.memory.alias_size_in_bytes + train.memory.host_alias_size_in_bytes
        assert 0.95 * part <= aliased <= 1.25 * part
