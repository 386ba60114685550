import logging
import time

import numpy as np
import pytest

from millrace_ipu import ipu
from millrace_ipu import tensorflow as tf

IPUInfeedQueue = ipu.ipu_infeed_queue.IPUInfeedQueue


class Undefined(list):
    element_spec = tf.TensorSpec((None, 4), np.float32)


def test_f33_undefined_shapes():
    with pytest.raises(ValueError, match="drop_remainder=True"):
        IPUInfeedQueue(Undefined([np.ones((2, 4), np.float32)]))


@pytest.mark.parametrize("depth", [0, 256])
def test_f33_prefetch_depth(depth):
    with pytest.raises(ValueError, match=f"prefetch_depth .*Received: {depth}"):
        IPUInfeedQueue([1.0], prefetch_depth=depth)
    assert IPUInfeedQueue([1.0], prefetch_depth=255).prefetch_depth == 255


@pytest.mark.parametrize("ordinal", [-1, "a"])
def test_f33_device_ordinal(ordinal):
    with pytest.raises(ValueError, match="device_ordinal"):
        IPUInfeedQueue([1.0], device_ordinal=ordinal)


def test_f33_a_dict_is_given_by_name_and_a_dict_in_a_tuple_is_not():
    infeed = IPUInfeedQueue([{"b": np.float32(1), "a": np.float32(2)}] * 3)
    assert not infeed.dequeued
    assert ipu.loops.repeat(3, lambda n, a, b: n + a - b, 0.0, infeed) == 3
    assert infeed.dequeued
    infeed = IPUInfeedQueue([({"a": np.float32(2)},)] * 3)
    assert infeed.number_of_tuple_elements == 1
    assert ipu.loops.repeat(3, lambda n, element: n + element["a"], 0.0, infeed) == 6


def test_f33_the_position_goes_on_until_it_is_initialized():
    infeed = IPUInfeedQueue([np.float32(k) for k in range(9)])
    add = lambda n, x: n + x  # noqa: E731
    _ = infeed.initializer
    assert ipu.loops.repeat(2, add, 0.0, infeed) == 0 + 1
    assert ipu.loops.repeat(3, add, 0.0, infeed) == 2 + 3 + 4
    _ = infeed.initializer
    assert ipu.loops.repeat(2, add, 0.0, infeed) == 0 + 1
    _ = infeed.deleter


def test_f33_int64_becomes_int32_with_one_warning(caplog):
    infeed = IPUInfeedQueue([np.arange(3)] * 4)
    with caplog.at_level(logging.WARNING):
        actual = ipu.loops.repeat(4, lambda n, x: n + x, np.zeros(3, np.int32), infeed)
    np.testing.assert_array_equal(actual, [0, 4, 8])
    assert caplog.text.count("int64") == 1


def test_f33_an_exception_of_the_data_set_arrives_within_seconds():
    def broken():
        yield np.float32(1)
        raise KeyError("no such file")

    begin = time.perf_counter()
    with pytest.raises(KeyError, match="no such file"):
        ipu.loops.repeat(3, lambda n, x: n + x, 0.0, IPUInfeedQueue(broken))
    assert time.perf_counter() - begin < 5


def test_f33_get_next_is_obsolete():
    with pytest.raises(ValueError, match=r"infeed_queue=queue in loops.repeat"):
        IPUInfeedQueue([1.0]).get_next()
