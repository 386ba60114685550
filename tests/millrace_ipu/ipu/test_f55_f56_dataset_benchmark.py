import itertools
import json

import numpy as np
import pytest

from millrace_ipu import ipu

FIELDS = {
    "elements_processed",
    "total_bytes_processed",
    "time_elapsed",
    "elements_per_second",
    "bandwidth",
}


class Repeating:
    """A data set without end."""

    def __iter__(self):
        return itertools.repeat((np.ones((4, 8), np.float32), np.ones(4, np.int32)))


def check(result, epochs, elements):
    actual = json.loads(result[0])
    assert len(result) == 1
    assert list(actual) == ["epochs"]
    assert len(actual["epochs"]) == epochs
    for epoch in actual["epochs"]:
        assert set(epoch) == FIELDS
        assert all(isinstance(value, float) and value > 0 for value in epoch.values())
        assert epoch["elements_processed"] == elements
        assert epoch["total_bytes_processed"] == elements * (4 * 8 * 4 + 4 * 4)
        seconds = epoch["time_elapsed"]
        assert epoch["elements_per_second"] == pytest.approx(elements / seconds)
        bandwidth = epoch["total_bytes_processed"] / (1e9 * seconds)
        assert epoch["bandwidth"] == pytest.approx(bandwidth)


def test_f55_f56_a_data_set_of_ten_epochs():
    check(ipu.dataset_benchmark.dataset_benchmark(Repeating(), 10, 512), 10, 512)


def test_f55_f56_an_infeed_queue():
    queue = ipu.ipu_infeed_queue.IPUInfeedQueue(Repeating())
    check(ipu.dataset_benchmark.infeed_benchmark(queue, 2, 50, False, do_memcpy=False), 2, 50)


def test_f55_what_is_refused():
    with pytest.raises(ValueError, match=r"number_of_epochs .*0"):
        ipu.dataset_benchmark.dataset_benchmark(Repeating(), 0, 512)
    with pytest.raises(ValueError, match=r"elements_per_epochs .*0"):
        ipu.dataset_benchmark.dataset_benchmark(Repeating(), 1, 0)
    with pytest.raises(TypeError, match=r"takes a data set. Received: list"):
        ipu.dataset_benchmark.dataset_benchmark([np.ones(3)], 1, 1)
    with pytest.raises(TypeError, match=r"takes an IPUInfeedQueue. Received: Repeating"):
        ipu.dataset_benchmark.infeed_benchmark(Repeating(), 1, 1)


def test_utils_that_were_replaced():
    assert ipu.utils.auto_select_ipus(ipu.config.IPUConfig(), 2).auto_select_ipus == 2
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = ipu.utils.no_such_thing
    ipu.utils.move_variable_initialization_to_cpu()
    ipu.utils.reset_ipu_seed(1)
    assert not ipu.utils.running_on_ipu_model()
    assert ipu.utils.IPUConfig is ipu.config.IPUConfig
    config = ipu.utils.IPUConfig()
    config.device_connection.type = ipu.utils.DeviceConnectionType.ON_DEMAND
    config.selection_order = ipu.utils.SelectionOrder.SNAKE
    config.auto_select_ipus = [1, 2]
    config.configure_ipu_system()
    assert ipu.utils.get_num_of_ipus_in_device("/device:IPU:0") == 1
    assert ipu.utils.get_num_of_ipus_in_device("/device:IPU:1") == 2
