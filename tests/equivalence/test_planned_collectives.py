"""The counted collective operations of replicas, against those of the compiled program."""

import keras
import pytest
import replica_cases

import millrace
from millrace.base.records.training_plan import UpdatePlan
from millrace.tools.planning.cost import collectives

DEPTH, WIDTH = 3, 8


@pytest.mark.parametrize("shard_state", [False, True])
@pytest.mark.parametrize("shard_weights", [False, True])
def test_as_many_as_in_the_compiled_program(monkeypatch, shard_state, shard_weights):
    strategy = millrace.Strategy(devices="cpu:2")
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(WIDTH) for _ in range(DEPTH)])
        model.build((None, WIDTH))
    model.compile("adam", "mse")
    model.set_replication_options(
        replicated_optimizer_state_sharding=shard_state,
        replicated_weight_sharding=shard_weights,
    )
    programs = replica_cases.watch_programs(monkeypatch, strategy)
    spec = (4, WIDTH), "float32"
    strategy.memory_report(model, (spec, spec))
    ((_, text),) = programs()
    update = UpdatePlan(
        batch_size=4,
        steps_per_execution=1,
        replicas=2,
        shard_optimizer_state=shard_state,
        shard_weights=shard_weights,
    )
    found = replica_cases.collectives(text)
    assert sum(found.values()) == collectives(update, 2 * DEPTH), found
