"""On an accelerator: values that a pipeline offloads take no device memory."""

import jax
import keras
import numpy as np
import pytest
from functional_net import Net, run

from millrace_ipu import ipu
from millrace_ipu.ipu.ops.pipelining_ops import OptimizerFunctionOutput, PipelineSchedule

pytestmark = pytest.mark.gpu
ONE_DEVICE = {"device_mapping": [0, 0, 0]}


@pytest.fixture(autouse=True)
def accelerator():
    if jax.devices()[0].platform == "cpu":
        pytest.skip("the device is a CPU")


def trained(system, **options):
    """Returns weights, and the kinds of memory that hold momentum."""
    ipu.config.reset_system()
    system(1)
    keras.utils.set_random_seed(0)
    net = Net(elements=24, sizes=(256, 512, 512, 1))
    optimizer = keras.optimizers.SGD(1e-3, momentum=0.9)
    run(
        net,
        12,
        2,
        optimizer_function=lambda loss: OptimizerFunctionOutput(optimizer, loss),
        **ONE_DEVICE,
        **options,
    )
    kinds = {v.value.sharding.memory_kind for v in optimizer.variables if v.value.ndim}
    return net.weights(), kinds


def test_f47_momentum_rests_in_host_memory_between_updates(system):
    sequential = {"pipeline_schedule": PipelineSchedule.Sequential}
    expected, kinds = trained(system, offload_weight_update_variables=False, **sequential)
    assert kinds == {"device"}
    actual, kinds = trained(system, offload_weight_update_variables=True, **sequential)
    assert kinds == {"pinned_host"}
    for a, b in zip(expected, actual, strict=True):
        np.testing.assert_array_equal(a, b)


def test_f48_activations_rest_in_host_memory_and_change_no_number(system):
    grouped = {"pipeline_schedule": PipelineSchedule.Grouped}
    expected, _ = trained(system, offload_activations=False, **grouped)
    actual, _ = trained(system, offload_activations=True, **grouped)
    for a, b in zip(expected, actual, strict=True):
        np.testing.assert_array_equal(a, b)


def test_f48_the_peak_of_the_device_is_lower(system):
    peaks = []
    for on in (True, False):  # the peak of a process only grows
        system(1)
        with ipu.ipu_strategy.IPUStrategy().scope():
            model = keras.Sequential(
                [keras.Input((1024,)), *(keras.layers.Dense(1024, "tanh") for _ in range(8))]
            )
            model.set_pipeline_stage_assignment([0, 0, 1, 1, 2, 2, 3, 3])
            model.set_pipelining_options(
                gradient_accumulation_steps_per_replica=16,
                device_mapping=[0, 0, 0, 0],
                offload_activations=on,
            )
            model.compile("sgd", "mse", steps_per_execution=16)
            x = np.zeros((16 * 8192, 1024), "float32")
            model.fit(x, x, batch_size=8192, verbose=0)
        peaks.append(jax.devices()[0].memory_stats()["peak_bytes_in_use"])
        ipu.config.reset_system()
    assert peaks[0] < peaks[1]
