import jax.numpy as jnp
import keras
import numpy as np
import pytest
from functional_net import RATE, Net, assert_weights, run
from keras import ops
from ticks_of_pipelines import schedule_table

from millrace.run.schedules.simulate import simulate
from millrace.run.schedules.table import make_schedule
from millrace.run.schedules.task import Pass
from millrace_ipu import ipu
from millrace_ipu.ipu.ops.pipelining_ops import (
    OptimizerFunctionOutput,
    PipelineSchedule,
    pipeline,
    recomputation_checkpoint,
)


@pytest.fixture
def net():
    return Net()


def test_f02_recomputation_checkpoint_in_a_stage_keeps_structure_and_values(net, system):
    system(2)
    seen = {}

    def first(x, y):
        values = {"a": x, "b": (y, x + 1)}
        kept = recomputation_checkpoint(values, name="mark")
        seen["same"] = list(kept) == ["a", "b"] and isinstance(kept["b"], tuple)
        return kept["a"], kept["b"][0], kept["b"][1]

    def second(x, y, z):
        return x, y, z

    x, y, z = run(net, 4, stages=[first, second], optimizer_function=None)
    assert seen["same"]
    np.testing.assert_array_equal(x, net.x[:4])
    np.testing.assert_array_equal(y, net.y[:4])
    np.testing.assert_allclose(z, net.x[:4] + 1)


def test_f39_two_updates_of_twelve_micro_batches(system):
    system(3)
    net = Net(elements=24)
    optimizer = keras.optimizers.SGD(RATE)
    losses = run(
        net,
        repeat_count=2,
        optimizer_function=lambda loss: OptimizerFunctionOutput(optimizer, loss),
        pipeline_schedule=None,  # Grouped
    )
    expected, weights = net.by_hand(12, RATE)
    assert isinstance(losses, list)
    assert len(losses) == 1
    np.testing.assert_allclose(losses[0], expected, rtol=1e-5)
    assert_weights(net.weights(), weights)
    assert int(optimizer.iterations.value) == 2


def test_f39_one_stage_no_outfeed_or_an_array_from_outside(net, system):
    system(3)
    outside = jnp.ones((5,))

    def capturing(h, y):
        return h + outside, y

    with pytest.raises(ValueError, match=r"at least two stages. Received: 1"):
        run(net, stages=[net.stage0])
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(net.data)
    with pytest.raises(ValueError, match=r"returns float32\[\], .*outfeed=None\. Set outfeed"):
        pipeline(net.stages, 3, infeed_queue=infeed, pipeline_schedule=PipelineSchedule.Sequential)
    with pytest.raises(
        ValueError, match=r"uses the array 'outside' of shape \[5\].*Pass it in inp"
    ):
        run(net, stages=[net.stage0, capturing, net.stage2])
    with pytest.raises(TypeError, match="list of functions"):
        run(net, stages="abc")
    for count, message in (
        (None, "needs gradient_accumulation_count"),
        (-1, "-1"),
        (2**31, "2147"),
    ):
        with pytest.raises(ValueError, match=message):
            run(net, count)


def test_f39_inference_keeps_the_structure_of_the_outputs(net, system):
    system(2)

    def last(h, y):
        return {"sum": ops.sum(h), "y": y}

    actual = run(net, 6, stages=[net.stage0, last], optimizer_function=None)
    assert list(actual) == ["sum", "y"]
    np.testing.assert_array_equal(actual["y"], net.y[:6])


def test_f40_schedules_agree(net, system):
    system(3)
    results = []
    for schedule in PipelineSchedule:
        net.reset()
        (losses,) = run(net, 6, 2, pipeline_schedule=schedule)
        results.append((losses, *net.weights()))
    expected, weights = net.by_hand(6, RATE)
    np.testing.assert_allclose(results[0][0], expected, rtol=1e-5)
    assert_weights(results[0][1:], weights)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_f40_the_length_rule(net, system):
    system(3)
    with pytest.raises(RuntimeError, match=r"Grouped.*3 stages runs 3 .*10 is not a multiple"):
        run(net, 10, optimizer_function=None, pipeline_schedule=PipelineSchedule.Grouped)
    with pytest.raises(RuntimeError, match=r"runs 6 micro-batches at once, and 9 .* to 6\."):
        run(net, 9, pipeline_schedule=PipelineSchedule.Grouped)
    with pytest.raises(NotImplementedError, match=r"device_mapping=\[0, 1, 0\]"):
        run(net, 6, device_mapping=[0, 1, 0])


@pytest.mark.parametrize(
    ("schedule", "depths"),
    [("grouped", (7, 5, 3, 1)), ("1f1b", (4, 3, 2, 1)), ("sequential", (1, 1, 1, 1))],
)
def test_f40_stash_depths_for_four_stages(schedule, depths):
    cost = {Pass.FORWARD: 1, Pass.BACKWARD: 1}
    made = make_schedule(schedule, 4, 16, (0, 1, 2, 3))
    assert simulate(made, cost).in_flight == depths


@pytest.mark.parametrize("count", [8, 16])
def test_f40_the_tick_table(count):
    table = schedule_table(PipelineSchedule.Grouped, 4, count)
    assert {len(row) for row in table} == {count + 2 * 4 - 1}
    assert {len(row) for row in schedule_table(None, 4, count, training=False)} == {count + 3}
    interleaved = schedule_table(PipelineSchedule.Interleaved, 4, count)
    assert {len(row) for row in interleaved} == {2 * count + 2 * 4 - 2}
    assert max(len(tasks) for row in interleaved for tasks in row) == 1
    # The native schedules run the tasks of each stage in the same order.
    for which, name in (
        (PipelineSchedule.Grouped, "grouped"),
        (PipelineSchedule.Interleaved, "1f1b"),
    ):
        rows = schedule_table(which, 4, count)
        orders = tuple(tuple(task for tasks in row for task in tasks) for row in rows)
        assert orders == make_schedule(name, 4, count, (0, 1, 2, 3))


def test_f41_a_learning_rate_goes_through_the_stages(net, system):
    system(3)

    def first(rate, x, y):
        return rate, *net.stage0(x, y)

    def second(rate, h, y):
        return rate, *net.stage1(h, y)

    def third(rate, h, y):
        return net.stage2(h, y) * rate

    for rate in (0.1, 0.2):
        net.reset()
        run(net, 6, stages=[first, second, third], inputs=[rate])
        _, weights = net.by_hand(6, RATE, scale=rate, elements=6)
        assert_weights(net.weights(), weights)

    with pytest.raises(
        TypeError, match=r"Stage 2 of a pipeline, third.*values from .* 2 values by"
    ):
        run(net, 6, stages=[first, lambda rate, h, y: net.stage1(h, y), third], inputs=[0.1])


def test_f42_what_an_optimizer_function_returns(net, system):
    system(3)
    optimizer, loss = keras.optimizers.SGD(), jnp.float32(1)
    for arguments, name in (
        (("sgd", loss), "opt"),
        ((optimizer, "loss"), "loss"),
        ((optimizer, loss, [1]), "compute_gradients_args"),
        ((optimizer, loss, (), []), "compute_gradients_kwargs"),
        ((optimizer, loss, None, None, [1]), "apply_gradients_args"),
        ((optimizer, loss, None, None, None, [1]), "apply_gradients_kwargs"),
        ((optimizer, loss, None, None, None, None, "v"), "variables"),
        ((optimizer, loss, None, None, None, None, None, "tape"), "tape"),
    ):
        with pytest.raises(TypeError, match=f"{name} of OptimizerFunctionOutput is a"):
            OptimizerFunctionOutput(*arguments)
    with pytest.raises(ValueError, match="belong to optimizers of TensorFlow 1"):
        OptimizerFunctionOutput(optimizer, loss, (1,))
    with pytest.raises(ValueError, match="variables or tape, not both"):
        OptimizerFunctionOutput(
            optimizer, loss, variables=[], tape=type("Tape", (), {"gradient": print})()
        )
    with pytest.raises(TypeError, match=r"returns a pipelining_ops.OptimizerFunctionOutput"):
        run(net, 6, optimizer_function=lambda loss: loss)


def test_f42_trains_the_variables_it_names(net, system):
    system(3)
    chosen = net.layers[2].trainable_variables
    optimizer = keras.optimizers.SGD(RATE)
    run(
        net,
        6,
        optimizer_function=lambda loss: OptimizerFunctionOutput(optimizer, loss, variables=chosen),
    )
    _, expected = net.by_hand(6, RATE, elements=6)
    assert_weights(net.weights(), [*net.start[:4], *expected[4:]])
    assert int(optimizer.iterations.value) == 1  # once for the update


def test_f43_the_device_mapping_changes_no_number(net, system):
    system(3)
    (losses,) = run(net, 6)
    weights = net.weights()
    net.reset()
    (mapped,) = run(net, 6, device_mapping=[2, 0, 1])
    np.testing.assert_array_equal(losses, mapped)
    for a, b in zip(weights, net.weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    devices = ipu.config.current_system().devices
    devices_of_layers = [layer.kernel.value.devices() for layer in net.layers]
    assert devices_of_layers == [{devices[2]}, {devices[0]}, {devices[1]}]
    with pytest.raises(ValueError, match="2 entries, and the pipeline has 3 stages"):
        run(net, 6, device_mapping=[0, 1])
    with pytest.raises(TypeError, match="device_mapping is a list"):
        run(net, 6, device_mapping="012")


def test_f44_concurrent_stages_equal_the_serial_net(net, system):
    system(3)

    def both(h, y):
        left, y = net.stage1(h, y)
        return left, h[:, :4] * 2, y

    def left(h, y):
        return net.stage1(h, y)[0]

    def right(h, y):
        return h[:, :4] * 2, y

    def last(a, b, y):  # of the left stage first, then of the right stage
        return ops.mean((net.layers[2](a + 0.1 * b) - y) ** 2)

    (serial,) = run(net, 6, stages=[net.stage0, both, last])
    expected = net.weights()
    net.reset()
    (wide,) = run(
        net, 6, stages=[net.stage0, [left, right], last], device_mapping=[0, [1, 2], 2],
        pipeline_schedule=PipelineSchedule.Grouped,
    )  # fmt: skip
    np.testing.assert_allclose(wide, serial, rtol=1e-6)
    assert_weights(net.weights(), expected)
    with pytest.raises(
        ValueError, match=r"device_mapping\[1\]=1 does not fit stage 1.*2 functions"
    ):
        run(net, 6, stages=[net.stage0, [left, right], last], device_mapping=[0, 1, 2])
    with pytest.raises(ValueError, match="lists are not nested"):
        run(net, 6, stages=[net.stage0, [[left], right], last], device_mapping=[0, [1, 2], 2])


def test_f44_the_last_stages_may_be_concurrent(net, system):
    system(2)
    actual = run(
        net,
        4,
        stages=[net.stage0, [lambda h, y: ops.sum(h), lambda h, y: (y, h)]],
        device_mapping=[0, [0, 1]],
        optimizer_function=None,
        pipeline_schedule=PipelineSchedule.Sequential,
    )
    assert isinstance(actual, list)
    assert [value.shape for value in actual] == [(4,), (4, 2, 1), (4, 2, 5)]
    np.testing.assert_allclose(actual[0], actual[2].sum((1, 2)), rtol=1e-5)


@pytest.mark.slow
def test_f37_a_pipeline_of_two_shards_on_eight_devices_has_four_replicas(net, system):
    system(8)

    def first(x, y):
        return x, ipu.replication_ops.replication_index()

    index, rows = run(
        net,
        2,
        stages=[first, lambda x, index: (index, x)],
        optimizer_function=None,
        pipeline_schedule=PipelineSchedule.Sequential,
    )
    np.testing.assert_array_equal(index, [[0, 1, 2, 3]] * 2)
    np.testing.assert_array_equal(rows, net.x[:8].reshape(2, 4, 2, 3))
    system(3)
    with pytest.raises(RuntimeError, match=r"3.*2|2.*3"):
        run(net, 2, stages=[first, lambda x, index: (index, x)], optimizer_function=None)


@pytest.mark.slow
def test_f53_what_goes_to_the_outfeed(net, system):
    system(3)

    def last(h, y):
        loss = net.stage2(h, y)
        return loss, ops.sum(y)

    stages = [net.stage0, net.stage1, last]
    expected, _ = net.by_hand(6, RATE, elements=6)
    (shown,) = run(net, 6, stages=stages, outfeed_mask=[True, False])
    np.testing.assert_allclose(shown, net.y[:6].sum((1, 2)), rtol=1e-5, atol=1e-6)
    net.reset()
    losses = run(net, 6, stages=stages, outfeed_loss=True)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    net.reset()
    sums = run(net, 6, 2, stages=stages, accumulate_outfeed=True)
    one, _ = net.by_hand(6, RATE)
    np.testing.assert_allclose(sums[0], one.reshape(2, 6).sum(1), rtol=1e-5)
    with pytest.raises(ValueError, match=r"outfeed_mask=\[True\] has 1 entries.* has 2 outputs"):
        run(net, 6, stages=stages, outfeed_mask=[True])
    with pytest.raises(ValueError, match="exclude each other"):
        run(net, 6, stages=stages, outfeed_mask=[True, True], outfeed_loss=True)
    for option in ({"outfeed_loss": True}, {"outfeed_mask": [True, False]}):
        with pytest.raises(ValueError, match="is for training, and there is no optimizer_function"):
            run(net, 6, stages=stages, optimizer_function=None, **option)
    last_mode = ipu.ipu_outfeed_queue.IPUOutfeedQueue(ipu.ipu_outfeed_queue.IPUOutfeedMode.LAST)
    with pytest.raises(ValueError, match=r"accumulate_outfeed=True .* keeps only the last one"):
        run(net, 6, accumulate_outfeed=True, outfeed_queue=last_mode)


def test_f53_a_narrow_accumulator_overflows(net, system):
    system(2)

    def last(h, y):
        return ops.full((), 40000.0), ops.full((), 2.0)

    def dtype(value):
        return "float16"

    big, small = run(
        net, 2, stages=[net.stage0, last], optimizer_function=None, accumulate_outfeed=True,
        accumulate_outfeed_dtype=dtype, pipeline_schedule=PipelineSchedule.Sequential,
    )  # fmt: skip
    assert (big.dtype, small.dtype) == (np.float16, np.float16)
    assert np.isinf(big).all()
    np.testing.assert_array_equal(small, [4])


def test_f54_remaining_arguments(net, system):
    system(3)
    with pytest.raises(NotImplementedError, match="continuous_weight_updates=True"):
        run(net, 6, continuous_weight_updates=True)
    optimizer = keras.optimizers.SGD(RATE)
    options = {
        "optimizer_function": lambda loss: OptimizerFunctionOutput(optimizer, loss),
        "outfeed_queue": ipu.ipu_outfeed_queue.IPUOutfeedQueue(),
        "name": "mine",
    }
    run(net, 3, **options)
    strategy = ipu.ipu_strategy.current_strategy()
    compiled = len(strategy.compile_log)
    assert {record.model for record in strategy.compile_log} == {"mine"}
    run(net, 3, 3, **options)
    # The IPU compiled again for another repeat_count; here it is no part of a program.
    assert len(strategy.compile_log) == compiled
