import keras
import numpy as np
import pytest
from linear_models import linear, rows, two_stages

from millrace.base.options import Reduction
from millrace.errors import OptionError
from millrace_ipu import ipu
from millrace_ipu.ipu.gradient_accumulation import GradientAccumulationReductionMethod
from millrace_ipu.ipu.ipu_strategy import IPUStrategy

KEY = "gradient_accumulation_steps_per_replica"


@pytest.fixture
def model():
    return linear(IPUStrategy(), 8)


def accumulation(model):
    return model._millrace.setup.options.accumulation


def test_f13_updates_do_not_divide_an_execution(model):
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=3)
    with pytest.raises(
        RuntimeError,
        match=rf"steps_per_execution=8 of .* must be a multiple of {KEY} x replicas = 3 x 1 = 3. "
        r"An epoch has 16 batches. .* steps_per_epoch=15; .* set steps_per_execution to 3 or 15",
    ):
        model.fit(*rows(16), batch_size=1, verbose=0)


def test_f13_the_optimizer_counts_updates(model):
    model.set_gradient_accumulation_options(4)
    model.fit(*rows(32), batch_size=1, epochs=2, verbose=0)  # 4 executions in an epoch
    assert int(model.optimizer.iterations) == 2 * 4 * 8 // 4
    before = int(model.optimizer.iterations)
    model.evaluate(*rows(32), batch_size=1, verbose=0)
    model.set_gradient_accumulation_options(1)
    model.fit(*rows(32), batch_size=1, verbose=0)
    assert int(model.optimizer.iterations) == before + 32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({KEY: 0}, "at least 1. Received: 0"),
        ({KEY: 2.5}, "whole number .* Received: 2.5"),
        ({"num_mini_batches": 4}, f"does not take num_mini_batches: set {KEY} instead"),
        ({"opt": None}, "does not take opt: the optimizer is the one given to compile"),
        ({"offload_weights_update_variables": 1}, "Did you mean offload_weight_update_variables"),
        ({"gradient_accumulation_reduction_method": "average"}, "'RUNNING_MEAN'.*'average'"),
        ({"experimental_normalize_gradients": 3}, r"one of \['SUM'.*Received: 3"),
        (
            {
                "experimental_normalize_gradients": True,
                "gradient_accumulation_reduction_method": "mean",
            },
            "both scale gradients",
        ),
        (
            {
                "replicated_optimizer_state_sharding": True,
                "offload_weight_update_variables": False,
            },
            "forbids offloading it. Set .* to None or True",
        ),
    ],
)
def test_f13_what_the_setter_refuses(model, arguments, message):
    with pytest.raises(OptionError, match=message):
        model.set_gradient_accumulation_options(**arguments)


def test_f13_none_keeps_values_and_keyword_arguments_are_replaced(model):
    set_options = model.set_gradient_accumulation_options
    set_options(4, dtype="float32", offload_weight_update_variables=False, name="update")
    assert (accumulation(model).steps, accumulation(model).dtype) == (4, "float32")
    assert model._millrace.setup.options.offload.optimizer_state is False
    set_options(gradient_accumulation_reduction_method="running_MEAN")
    assert (accumulation(model).steps, accumulation(model).dtype) == (4, None)
    assert accumulation(model).reduction is Reduction.RUNNING_MEAN_THEN_SUM
    assert model._millrace.setup.options.offload.optimizer_state is None
    set_options()
    assert accumulation(model).reduction is Reduction.RUNNING_MEAN_THEN_SUM
    set_options(2, GradientAccumulationReductionMethod.MEAN)  # as in later releases
    assert accumulation(model).reduction is Reduction.MEAN_THEN_SUM
    set_options(gradient_accumulation_reduction_method="sum")
    set_options(2, True)
    assert accumulation(model).reduction is Reduction.MEAN
    set_options(2, False)
    assert accumulation(model).reduction is Reduction.SUM


@pytest.mark.parametrize(
    "optimizer",
    [
        keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
        ipu.optimizers.GradientAccumulationOptimizerV2(keras.optimizers.SGD(0.1), 2),
        keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
        ),
    ],
)
def test_f13_an_optimizer_that_accumulates_would_be_a_second_one(optimizer):
    model = linear(IPUStrategy(), 4, optimizer=optimizer)
    model.set_gradient_accumulation_options(4)
    advice = r"accumulate gradients twice.*model.set_gradient_accumulation_options\("
    with pytest.raises(ValueError, match=advice):
        model.fit(*rows(8), batch_size=1, verbose=0)


def test_f13_a_pipeline_names_its_own_setter(system):
    system(2)
    accumulating = ipu.optimizers.GradientAccumulationOptimizerV2(keras.optimizers.SGD(0.1), 4)
    model = two_stages(IPUStrategy(), 4, optimizer=accumulating)
    model.set_pipelining_options(4)
    with pytest.raises(ValueError, match=r"twice.*V2,.*model.set_pipelining_options\("):
        model.fit(*rows(8), batch_size=1, verbose=0)


def test_f13_the_accumulator_has_the_dtype_asked_for():
    with pytest.raises(TypeError, match=r"is a dtype, a function.*Received: 3"):
        linear(IPUStrategy()).set_gradient_accumulation_options(2, dtype=3)
    keras.config.set_dtype_policy("float16")
    x, y = np.full((4, 1), 200.0), np.zeros((4, 1))
    weights = []
    for dtype in (None, "float32"):
        model = linear(IPUStrategy(), 4, optimizer=keras.optimizers.SGD(2.0**-17))
        model.set_gradient_accumulation_options(4, True, dtype=dtype)
        model.fit(x, y, batch_size=1, verbose=0)
        weights.append(model.get_weights()[0].item())
    assert not np.isfinite(weights[0])  # 4 * 20000 is too large for float16
    assert np.isfinite(weights[1])
