import keras
import numpy as np
import pytest

from millrace_ipu import ipu
from millrace_ipu.ipu.ops.schedules import PipelineSchedule

ROWS, WIDTH, ACCUMULATION = 4, 3, 6
SHARED = r"'again/kernel'.*stages \[0, 2\].*devices \[0, 2\].*device_mapping"


def data():
    x = np.random.default_rng(0).normal(size=(ROWS * ACCUMULATION, WIDTH)).astype("float32")
    return x, np.tanh(x[:, :1])


def fit(model, optimizer=None):
    model.compile(optimizer or keras.optimizers.SGD(0.1), "mse", steps_per_execution=ACCUMULATION)
    model.fit(*data(), batch_size=ROWS, shuffle=False, verbose=0)
    return model.get_weights()


def shared():
    keras.utils.set_random_seed(0)
    again = keras.layers.Dense(WIDTH, "tanh", name="again")
    x = inputs = keras.Input((WIDTH,))
    for layer in (again, keras.layers.Dense(WIDTH, "tanh", name="between"), again):
        x = layer(x)
    return keras.Model(inputs, x[:, :1])


def in_stages(model, *stages):
    items = model.get_pipeline_stage_assignment()
    for item, stage in zip(items, stages, strict=True):
        item.pipeline_stage = stage
    model.set_pipeline_stage_assignment(items)


@pytest.mark.parametrize("mapping", [[0, 1, 0], [0, 1, 2]])
def test_f20_a_layer_in_two_stages_is_on_one_device(system, mapping):
    system(max(mapping) + 2 & ~1)
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = shared()
        in_stages(model, 0, 1, 2, 2)
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=ACCUMULATION,
            device_mapping=mapping,
            experimental_normalize_gradients=True,
        )
    if mapping[0] != mapping[2]:
        with pytest.raises(RuntimeError, match=SHARED):
            fit(model)
        return
    plain = keras.optimizers.SGD(0.1, gradient_accumulation_steps=ACCUMULATION)
    for mine, theirs in zip(fit(model), fit(shared(), plain), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def normalized():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((WIDTH,)),
            keras.layers.Dense(4, name="first"),
            keras.layers.BatchNormalization(momentum=0.7),
            keras.layers.Dropout(0.5, seed=1),
            keras.layers.Dense(1, name="last"),
        ]
    )


def test_f20_moving_statistics_are_those_of_training_in_one_piece(system):
    system(2)
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = normalized()
        model.set_pipeline_stage_assignment([0, 0, 1, 1])
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=ACCUMULATION,
            experimental_normalize_gradients=True,
            pipeline_schedule=PipelineSchedule.Sequential,
        )
    plain = keras.optimizers.SGD(0.1, gradient_accumulation_steps=ACCUMULATION)
    fit(model)
    other = normalized()
    fit(other, plain)
    for mine, theirs in zip(model.variables, other.variables, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6, err_msg=mine.path)
    moving = model.layers[1].moving_mean
    assert np.abs(np.asarray(moving)).max() > 1e-3
