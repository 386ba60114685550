"""Offloading, sharding and compiler options, none of which changes a result."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from functional_net import RATE, Net, assert_weights, run

from millrace_ipu import ipu
from millrace_ipu.ipu.ops.pipelining_ops import (
    OptimizerFunctionOutput,
    PipelineSchedule,
    PipelineStageOptions,
    RecomputationMode,
)


@pytest.fixture
def net():
    return Net()


def trained(net, **options):
    """Trains with momentum, and returns the weights and the optimizer."""
    net.reset()
    optimizer = keras.optimizers.SGD(RATE, momentum=0.9)
    run(
        net,
        6,
        2,
        optimizer_function=lambda loss: OptimizerFunctionOutput(optimizer, loss),
        **options,
    )
    return net.weights(), optimizer


def kinds(optimizer):
    return {v.value.sharding.memory_kind for v in optimizer.variables if "momentum" in v.path}


NO_HOST_MEMORY = pytest.mark.skipif(
    jax.devices()[0].platform != "cpu", reason="the device may have such memory"
)


@NO_HOST_MEMORY
def test_f47_offload_without_such_memory_is_off_or_an_error(net, system):
    system(3)
    expected, optimizer = trained(net, offload_weight_update_variables=False)
    assert len(kinds(optimizer)) == 1
    actual, _ = trained(net)  # None: where it is supported
    for a, b in zip(expected, actual, strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match=r"offload_weight_update_variables.*host memory"):
        trained(net, offload_weight_update_variables=True)


@NO_HOST_MEMORY
@pytest.mark.parametrize("option", ["offload_activations", "offload_gradient_accumulation_buffers"])
def test_f48_offload_without_such_memory_names_the_argument(net, system, option):
    system(3)
    with pytest.raises(ValueError, match=f"{option}.*host memory"):
        trained(net, **{option: True})


def test_f49_sharding_needs_state_that_may_be_offloaded(net, system):
    system(3)
    with pytest.raises(ValueError, match=r"sharding=True shards.*=False forbids offloading it"):
        trained(
            net, replicated_optimizer_state_sharding=True, offload_weight_update_variables=False
        )
    with pytest.raises(NotImplementedError, match="offload_weights=False"):
        trained(net, replicated_weight_sharding=True, offload_weights=False)


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_f49_four_replicas_hold_a_quarter_of_the_state_each(system, sharded):
    system(8)
    net = Net(elements=24, sizes=(8, 16, 1))

    def last(h, y):
        return keras.ops.mean((net.layers[1](h) - y) ** 2)

    optimizer = keras.optimizers.SGD(RATE, momentum=0.9)
    exchanging = ipu.optimizers.CrossReplicaOptimizer(optimizer)
    run(
        net,
        6,
        stages=[net.stage0, last],
        optimizer_function=lambda loss: OptimizerFunctionOutput(exchanging, loss),
        replicated_optimizer_state_sharding=sharded,
        pipeline_schedule=PipelineSchedule.Sequential,
    )

    (moment,) = [v for v in optimizer.variables if tuple(v.shape) == (8, 16)]
    held = [shard.data.size for shard in moment.value.addressable_shards]
    assert held == ([8 * 16 // 4] * 4 if sharded else [8 * 16] * len(held))

    def loss(w, x, y):
        return jnp.mean((jnp.tanh(x @ w[0] + w[1]) @ w[2] + w[3] - y) ** 2)

    # The mean over replicas of the sums over micro-batches.
    gradients = [jax.grad(loss)([jnp.asarray(w) for w in net.start], x, y) for x, y in net.data]
    total = [sum(g) / 4 for g in zip(*gradients, strict=True)]
    assert_weights(net.weights(), [w - RATE * g for w, g in zip(net.start, total, strict=True)])


@pytest.mark.slow
def test_f50_batch_serialization_is_longer_accumulation(system):
    system(1)
    net = Net(elements=12)
    one_device = {"device_mapping": [0, 0, 0], "pipeline_schedule": PipelineSchedule.Sequential}
    (serialized,) = run(net, 4, batch_serialization_iterations=3, pipeline_schedule=None)
    weights = net.weights()
    net.reset()
    (plain,) = run(net, 12, **one_device)
    np.testing.assert_allclose(serialized, plain, rtol=1e-6)
    assert_weights(weights, net.weights())
    expected, by_hand = net.by_hand(12, RATE)
    np.testing.assert_allclose(serialized, expected, rtol=1e-5)
    assert_weights(weights, by_hand)


def test_f50_batch_serialization_is_sequential_and_on_one_device(net, system):
    system(1)
    with pytest.raises(NotImplementedError, match="pipeline_schedule='sequential'"):
        run(
            net, 6, batch_serialization_iterations=2, device_mapping=[0, 0, 0],
            pipeline_schedule=PipelineSchedule.Grouped,
        )  # fmt: skip
    system(3)
    with pytest.raises(NotImplementedError, match=r"device_mapping=\[0, 1, 2\] has 3 devices"):
        run(
            net, 6, batch_serialization_iterations=2, device_mapping=[0, 1, 2],
            pipeline_schedule=None,
        )  # fmt: skip


def test_f51_recomputation_modes(net, system):
    system(3)
    with pytest.raises(TypeError, match=r"recomputation_mode must be a member.*'Auto'.*'auto'"):
        trained(net, recomputation_mode="auto")
    with pytest.raises(TypeError, match="pipeline_schedule must be a member of PipelineSchedule"):
        trained(net, pipeline_schedule="Grouped")
    with pytest.raises(NotImplementedError, match=r"RecomputeThenBackpropagate.*Sequential"):
        trained(
            net,
            recomputation_mode=RecomputationMode.RecomputeThenBackpropagate,
            pipeline_schedule=PipelineSchedule.Sequential,
        )


@pytest.mark.slow
def test_f51_all_modes_take_the_same_memory_while_recomputation_is_off(net, system):
    system(3)
    options = {"pipeline_schedule": PipelineSchedule.Grouped}
    sizes = []
    for mode in RecomputationMode:
        trained(net, recomputation_mode=mode, **options)
        log = ipu.ipu_strategy.current_strategy().compile_log
        sizes.append({record.program: record.temporary_bytes for record in log})
        ipu.config.reset_system()
        system(3)
    assert len(sizes[0]) > 8
    assert sizes[0] == sizes[1] == sizes[2]


def test_f52_options_of_stages(net, system, caplog, monkeypatch):
    system(3)
    options = PipelineStageOptions
    with pytest.raises(TypeError, match="matmul_options of PipelineStageOptions is a dict"):
        options(matmul_options=["a"])
    with pytest.raises(ValueError, match="has 2 entries, and the pipeline has 3 stages"):
        trained(net, forward_propagation_stages_poplar_options=[options()] * 2)
    with pytest.raises(TypeError, match=r"options\[1\] is a PipelineStageOptions. Received: \{\}"):
        trained(net, backward_propagation_stages_poplar_options=[options(), {}, options()])
    with pytest.raises(TypeError, match="weight_update_poplar_options is a PipelineStageOptions"):
        trained(net, weight_update_poplar_options={})

    compiled_with = []
    stock = jax.stages.Lowered.compile

    def compile(lowered, compiler_options=None, **others):
        if compiler_options and "xla_cpu_enable_fast_min_max" in compiler_options:
            name = lowered.as_text().split("module @", 1)[1].split()[0]
            compiled_with.append((name, compiler_options))
        return stock(lowered, compiler_options, **others)

    monkeypatch.setattr(jax.stages.Lowered, "compile", compile)
    chosen = options(
        matmul_options={"xla_cpu_enable_fast_min_max": True, "availableMemoryProportion": "0.1"}
    )
    trained(net, forward_propagation_stages_poplar_options=[options(), chosen, options()])
    assert caplog.text.count("'availableMemoryProportion' in PipelineStageOptions") == 1
    assert compiled_with == [("jit_forward", {"xla_cpu_enable_fast_min_max": True})]
