"""F58 and F59: activations of every step leave a model."""

import keras
import numpy as np
import pytest

from millrace_ipu import ipu
from millrace_ipu.ipu.ipu_outfeed_queue import IPUOutfeedQueue
from millrace_ipu.ipu.outfeed_layers import MaybeOutfeed, Outfeed
from millrace_ipu.ipu.outfeed_wrapper import MaybeOutfeedQueue

ROWS, WIDTH = 32, 6


def data(steps):
    random = np.random.default_rng(0)
    x = random.random((steps * ROWS, WIDTH), np.float32)
    return x, random.integers(0, 10, steps * ROWS).astype("float32")


def build(after_128=(), after_10=()):
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((WIDTH,)),
            keras.layers.Dense(128, "relu", name="Dense_128"),
            *after_128,
            keras.layers.Dense(10, "softmax", name="Dense_10"),
            *after_10,
        ]
    )


def fit(model, steps):
    model.compile(
        keras.optimizers.SGD(0.0), "sparse_categorical_crossentropy", steps_per_execution=steps
    )
    model.fit(*data(steps), batch_size=ROWS, shuffle=False, verbose=0)


def activations(steps):
    """Returns the activations of a plain model, by layer."""
    plain = build()
    both = keras.Model(plain.inputs, [layer.output for layer in plain.layers])
    actual = both.predict(data(steps)[0], batch_size=steps * ROWS, verbose=0)
    return [a.reshape(steps, ROWS, -1) for a in actual]


def test_f58_the_inputs_of_500_steps(system):
    system(1)
    with ipu.ipu_strategy.IPUStrategy().scope():
        queue = IPUOutfeedQueue()
        model = build([Outfeed(queue, name="Dense_128_acts")])
    fit(model, 500)
    actual = queue.dequeue()
    assert {name: value.shape for name, value in actual.items()} == {
        "Dense_128_acts": (500, ROWS, 128)
    }
    np.testing.assert_allclose(actual["Dense_128_acts"], activations(500)[0], atol=1e-6)
    x = data(2)[0]
    mine, theirs = (m.predict(x, batch_size=ROWS, verbose=0) for m in (model, build()))
    np.testing.assert_array_equal(mine, theirs)
    assert queue.dequeue()["Dense_128_acts"].shape == (2, ROWS, 128)  # of predict


def test_f58_a_layer_without_its_queue(system):
    system(1)
    layer = Outfeed(IPUOutfeedQueue(), name="acts")
    with pytest.raises(ValueError, match="'acts' needs a queue, which a config or a file"):
        Outfeed.from_config(layer.get_config())
    with pytest.raises(ValueError, match=r"enqueues into a .*OutfeedQueue.*Received: None"):
        Outfeed(None)


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("filters", [None, ["Dense_10"]])
def test_f59_two_layers_and_one_queue(system, pipelined, filters):
    steps = 500 if filters else 8
    system(2 if pipelined else 1)
    with ipu.ipu_strategy.IPUStrategy().scope():
        queue = MaybeOutfeedQueue(filters=filters)
        model = build(
            [MaybeOutfeed(queue, final_outfeed=False, name="Dense_128_acts")],
            [MaybeOutfeed(queue, final_outfeed=True, name="Dense_10_acts")],
        )
        if pipelined:
            model.add(keras.layers.Identity())
            model.set_pipeline_stage_assignment([0, 0, 0, 0, 1])
            model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    fit(model, steps)
    actual = queue.dequeue()
    hidden, outputs = activations(steps)
    # By micro-batch, although an update has four; in the order of the layers.
    expected = {"Dense_128_acts": hidden, "Dense_10_acts": outputs}
    if filters:
        assert actual["Dense_10_acts"].shape == (500, 32, 10)
        del expected["Dense_128_acts"]
    assert list(actual) == list(expected)
    for name, values in actual.items():
        np.testing.assert_allclose(values, expected[name], atol=1e-6)


def test_f59_the_final_layer_decides(system):
    system(1)
    strategy = ipu.ipu_strategy.IPUStrategy()
    for finals, arrived in (((False, False), []), ((True, False), ["Dense_128_acts"])):
        with strategy.scope():
            queue = MaybeOutfeedQueue()
            first, last = (
                MaybeOutfeed(queue, final_outfeed=final, name=name)
                for final, name in zip(finals, ("Dense_128_acts", "Dense_10_acts"), strict=True)
            )
            model = build([first], [last])
        fit(model, 2)
        assert list(queue.maybe_dequeue() or ()) == arrived
