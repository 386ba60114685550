import keras
import numpy as np
import pytest
from linear_models import RATE, rows, two_stages

from millrace_ipu.ipu.ipu_strategy import IPUStrategy
from millrace_ipu.ipu.ops.schedules import PipelineSchedule

GROUPED, INTERLEAVED, SEQUENTIAL = PipelineSchedule


def stock(weights):
    layers = [keras.layers.Dense(4, "tanh"), keras.layers.Dense(1, "tanh")]
    model = keras.Sequential([keras.Input((1,)), *layers])
    model.set_weights(weights)
    model.compile(keras.optimizers.SGD(RATE), "mse")
    return model


def test_f22_normalized_fit_equals_big_batches_and_inference_plain_keras(system):
    system(2)
    x, y = rows(32)
    model = two_stages(IPUStrategy(), 8)
    model.set_pipelining_options(4, experimental_normalize_gradients=True)
    plain = stock(model.get_weights())
    actual = model.fit(x, y, batch_size=2, epochs=2, shuffle=False, verbose=0).history
    wanted = plain.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    np.testing.assert_allclose(actual["loss"], wanted["loss"], rtol=1e-5)
    for value, expected in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-7)
    data = {"batch_size": 2, "verbose": 0}
    np.testing.assert_allclose(
        model.evaluate(x, y, **data), plain.evaluate(x, y, **data), rtol=1e-5
    )
    np.testing.assert_allclose(model.predict(x, **data), plain.predict(x, **data), rtol=1e-5)


def test_f22_accumulated_outfeeds_report_the_same_history(system):
    system(2)
    x, y = rows(16)
    weights, histories = None, []
    for accumulates in (False, True):
        model = two_stages(IPUStrategy(), 8)
        model.set_weights(weights or model.get_weights())
        weights = weights or model.get_weights()
        model.set_pipelining_options(4, accumulate_outfeed=accumulates)
        histories.append(model.fit(x, y, batch_size=2, shuffle=False, verbose=0).history)
    np.testing.assert_allclose(histories[0]["loss"], histories[1]["loss"], rtol=1e-6)


@pytest.mark.parametrize(
    ("schedule", "stages", "steps", "message"),
    [
        (
            GROUPED,
            (0, 1),
            6,
            "Grouped and 2 stages runs 4 micro-batches at once, and 6 is not a",
        ),
        (INTERLEAVED, (0, 1), 3, "Interleaved and 2 stages runs 2 micro-batches.* 3 is not a mult"),
    ],
)
def test_f22_micro_batches_that_the_schedule_does_not_run(schedule, stages, steps, message, system):
    system(2)
    model = two_stages(IPUStrategy(), steps, stages)
    model.set_pipelining_options(steps, pipeline_schedule=schedule)
    x, y = rows(2 * steps)
    with pytest.raises(RuntimeError, match=message):
        model.fit(x, y, batch_size=2)


def test_f22_inference_has_a_rule_of_its_own(system):
    system(4)
    model = two_stages(IPUStrategy(), 256)
    x, y = rows(12)
    for run in (lambda: model.evaluate(x, y, 2, 0), lambda: model.predict(x, 2, 0)):
        with pytest.raises(
            RuntimeError, match=r"multiple of the 2 micro-batches that .* 2 x 2 = 4"
        ):
            run()
    model.set_pipelining_options(pipeline_schedule=SEQUENTIAL)
    assert model.predict(x, 2, 0).shape == (12, 1)


def test_f22_stages_that_share_a_device_are_not_trained_interleaved(system):
    system(2)
    model = two_stages(IPUStrategy(), 4)
    model.set_pipelining_options(4, device_mapping=[0, 0], pipeline_schedule=INTERLEAVED)
    with pytest.raises(NotImplementedError, match=r"\[0, 0\] puts several stages on one device"):
        model.fit(*rows(8), batch_size=2)
