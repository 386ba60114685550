import keras
import numpy as np
import pytest
from keras import ops

from millrace_ipu import ipu
from millrace_ipu.ipu.ops.pipelining_ops import OptimizerFunctionOutput, PipelineSchedule, pipeline


class CastingSGD(keras.optimizers.SGD):
    """An optimizer as IPU programs have it, which records the dtypes of its gradients."""

    def apply_gradients(self, grads_and_vars, name=None):
        pairs = list(grads_and_vars)
        self.seen = [str(gradient.dtype) for gradient, _ in pairs]
        cast = [(ops.cast(gradient, variable.dtype), variable) for gradient, variable in pairs]
        return super().apply_gradients(cast, name)


@pytest.fixture
def halves():
    layers = [keras.layers.Dense(3, dtype="float16"), keras.layers.Dense(1, dtype="float16")]
    for layer, width in zip(layers, (4, 3), strict=True):
        layer.build((None, width))
    return layers


def train(halves, optimizer, dtype):
    queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
    rows = np.random.default_rng(0).normal(size=(4, 2, 4)).astype("float16")
    pipeline(
        [halves[0], lambda h: ops.mean(halves[1](h) ** 2)],
        4,
        dtype,
        infeed_queue=ipu.ipu_infeed_queue.IPUInfeedQueue(list(rows)),
        outfeed_queue=queue,
        optimizer_function=lambda loss: OptimizerFunctionOutput(optimizer, loss),
        pipeline_schedule=PipelineSchedule.Sequential,
    )
    return queue.dequeue()


def test_f46_a_pipelines_optimizer_sees_the_accumulators_dtype(halves, system):
    system(2)
    before = halves[1].kernel.numpy()
    optimizer = CastingSGD(0.1)
    train(halves, optimizer, "float32")
    assert set(optimizer.seen) == {"float32"}
    assert halves[1].kernel.dtype == "float16"
    assert not np.array_equal(halves[1].kernel.numpy(), before)
    assert int(optimizer.iterations.value) == 1


def test_f46_a_function_chooses_for_a_pipelines_variables(halves, system):
    system(2)
    optimizer = CastingSGD(0.1)
    train(halves, optimizer, lambda variable: "float32" if "kernel" in variable.path else "float16")
    assert optimizer.seen == ["float32", "float16"] * 2


def test_f46_a_stock_optimizer_does_not_take_another_dtype_in_a_pipeline(halves, system):
    system(2)
    with pytest.raises(TypeError, match=r"accumulated as float32, and the variable is float16"):
        train(halves, keras.optimizers.SGD(0.1), "float32")
    with pytest.raises(TypeError, match=r"gradient_accumulation_dtype is a dtype.*Received: 3"):
        train(halves, keras.optimizers.SGD(0.1), 3)


def test_f46_a_pipeline_with_such_a_function_is_compiled_once(halves, system):
    system(2)
    queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
    rows = np.random.default_rng(0).normal(size=(8, 2, 4)).astype("float16")
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(list(rows))
    optimizer = CastingSGD(0.1)

    def last(h):
        return ops.mean(halves[1](h) ** 2)

    def chosen(variable):
        return "float32"

    def again():
        pipeline(
            [halves[0], last],
            4,
            chosen,
            infeed_queue=infeed,
            outfeed_queue=queue,
            optimizer_function=lambda loss: OptimizerFunctionOutput(optimizer, loss),
            pipeline_schedule=PipelineSchedule.Sequential,
        )

    again()
    with ipu.ipu_strategy.current_strategy().no_recompile():
        again()
    assert int(optimizer.iterations.value) == 2
