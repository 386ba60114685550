"""Values that rest in host memory: which bytes a program then takes from the device."""

import jax
import keras
import pytest
from keras import layers
from target_programs import Target, bytes_of

from millrace._compat.jax_memory import is_on_host
from millrace.errors import OptionError
from millrace.programs.plan import Mode

ROWS, UNITS = 64, 512
BATCH = (((ROWS, UNITS), "float32"), ((ROWS, UNITS), "float32"))


def build(target, depth=4):
    with target.strategy.scope():
        model = keras.Sequential(
            [keras.Input((UNITS,)), *(layers.Dense(UNITS, "tanh") for _ in range(depth))]
        )
    model.compile("adam", "mse", steps_per_execution=16)
    return model


def host_bytes(program):
    """Returns the bytes of the arguments in host memory, on each device, as their shapes say."""
    total, leaves = 0, jax.tree.leaves(program.compiled.args_info)
    shardings = jax.tree.leaves(program.compiled.input_shardings, is_leaf=lambda s: s is None)
    for value, sharding in zip(leaves, shardings, strict=True):
        if sharding is not None and is_on_host(sharding):
            shape = sharding.shard_shape(value.shape)
            total += jax.ShapeDtypeStruct(shape, value.dtype).size * value.dtype.itemsize
    return total


def test_the_optimizer_rests_on_the_host():
    programs, states = {}, {}
    for is_on in (False, True):
        target = Target("v5e")
        model = build(target)
        model.set_gradient_accumulation_options(
            gradient_accumulation_steps_per_replica=4, offload_weight_update_variables=is_on
        )
        found = target.precompile(model, BATCH)
        programs[is_on] = [p for p in target.programs if p.mode is Mode.TRAIN]
        states[is_on] = bytes_of(v for v in model.optimizer.variables if len(v.shape))
        assert found
    on_host = max(map(host_bytes, programs[True]))
    assert on_host >= states[True]
    assert max(map(host_bytes, programs[False])) == 0
    told = max(p.memory.host_argument_size_in_bytes for p in programs[True])
    assert told >= states[True]


def test_of_a_gpu_that_is_described_jax_knows_no_host_memory():
    target = Target("h100")
    model = build(target)
    with pytest.raises(OptionError, match="only where there is one, and the strategy's h100:0"):
        model.set_gradient_accumulation_options(offload_weight_update_variables=True)


def test_the_weights_of_replicas_rest_on_the_host():
    target = Target("v5e:4")
    model = build(target)
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=4)
    model.set_replication_options(
        replicated_weight_sharding=True,
        replicated_optimizer_state_sharding=True,
        offload_weights=True,
        offload_weight_update_variables=True,
    )
    target.precompile(model, BATCH)
    state = bytes_of(model.trainable_variables) + bytes_of(model.optimizer.variables)
    assert max(map(host_bytes, target.programs)) >= state // 4 * 0.95


def test_activations_and_accumulators_rest_on_the_host():
    target = Target("v5e")
    model = build(target)
    model.set_pipeline_stage_assignment([0, 0, 1, 1])
    model.set_pipelining_options(
        gradient_accumulation_steps_per_replica=2,
        batch_serialization_iterations=4,
        offload_activations=True,
        offload_gradient_accumulation_buffers=True,
        offload_weight_update_variables=True,
    )
    target.precompile(model, BATCH)
    assert any(host_bytes(p) >= ROWS * UNITS * 4 for p in target.programs)
