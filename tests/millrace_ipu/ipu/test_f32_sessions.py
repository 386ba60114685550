"""Programs that are built first, and run by a session."""

import numpy as np
import pytest

from millrace_ipu import ipu
from millrace_ipu import tensorflow as tf
from millrace_ipu.tensorflow.compat import v1

compile_on_ipu = ipu.ipu_compiler.compile


@pytest.fixture(autouse=True)
def graph_mode():
    v1.disable_v2_behavior()
    yield
    v1.enable_v2_behavior()


def test_f37_a_system_that_is_configured_after_the_program_was_built(system):
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue([np.float32(k) for k in range(4)])
    outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

    def net():
        return ipu.loops.repeat(2, lambda x: outfeed.enqueue(x), [], infeed)

    with ipu.scopes.ipu_scope("/device:IPU:0"):
        operation = compile_on_ipu(net)
    arrived = outfeed.dequeue()
    system(2)
    with v1.Session() as session:
        session.run(infeed.initializer)
        session.run(operation)
        assert session.run(arrived).tolist() == [[0, 1], [2, 3]]


def test_f32_a_placeholder_of_any_length():
    x = tf.placeholder(tf.float32, [None, 2])
    with ipu.scopes.ipu_scope("/device:IPU:0"):
        [doubled] = compile_on_ipu(lambda x: x * 2, [x])
        ambiguous = compile_on_ipu(lambda x: tf.reshape(x, [3, 2]), [x])
    with v1.Session() as session:
        for rows in (1, 3):
            np.testing.assert_array_equal(session.run(doubled, {x: np.ones((rows, 2))}), 2.0)
        assert session.run(ambiguous, {x: np.ones((3, 2))})[0].shape == (3, 2)


def test_f32_a_missing_device_is_an_error_when_it_is_needed():
    with ipu.scopes.ipu_scope("/device:IPU:3"), pytest.raises(ValueError, match="up to 0"):
        compile_on_ipu(lambda: 1)


def test_f39_a_pipeline_in_a_session(system):
    rows = np.arange(16, dtype=np.float32).reshape(8, 2)
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(list(rows))
    outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

    def net(factor):
        return ipu.pipelining_ops.pipeline(
            [lambda factor, x: (factor, x + 1), lambda factor, x: factor * x],
            4,
            inputs=[factor],
            infeed_queue=infeed,
            outfeed_queue=outfeed,
        )

    factor = tf.placeholder(tf.float32, [])
    with ipu.scopes.ipu_scope("/device:IPU:0"):
        operation = compile_on_ipu(net, [factor])
    arrived = outfeed.dequeue()
    system(2)
    with v1.Session() as session:
        for begin, value in ((0, 2.0), (4, 3.0)):
            session.run(operation, {factor: value})
            actual = session.run(arrived)
            np.testing.assert_array_equal(actual, value * (rows[begin : begin + 4] + 1))
