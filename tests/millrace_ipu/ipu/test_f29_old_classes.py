import keras
import numpy as np
import pytest

from millrace_ipu import ipu
from millrace_ipu import tensorflow as tf


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("IPUModel", "keras.Model, in the scope"),
        ("Model", "keras.Model, in the scope"),
        ("IPUSequential", "keras.Sequential, in the scope"),
        ("Sequential", "keras.Sequential, in the scope"),
        ("PipelineSequential", r"keras.Sequential and .*set_pipeline_stage_assignment\(\)"),
        ("PipelineModel", "keras.Model with ipu.keras.PipelineStage"),
    ],
)
def test_f29_old_classes_name_their_replacements(name, message):
    with pytest.raises(NotImplementedError, match=f"ipu.keras.{name} is not .*: {message}"):
        getattr(ipu.keras, name)([keras.layers.Dense(1)], gradient_accumulation_count=16)


def test_f29_the_guide_names_every_argument():
    guide = ipu.porting_guide()
    for name in ("PipelineModel", "gradient_accumulation_count", "offload_weights", "mapping"):
        assert name in guide
    assert all(len(line.split("  ")) > 1 for line in guide.splitlines() if line)


@pytest.mark.slow
def test_f29_the_new_way_of_the_old_example(system):
    system(2)
    random = np.random.default_rng(0)
    x = random.normal(size=(2048, 4, 4)).astype("float32")
    y = random.integers(0, 4, 2048).astype("int32")
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16, drop_remainder=True)
    strategy = ipu.ipu_strategy.IPUStrategyV1()
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Flatten(),
                keras.layers.Dense(16, activation="relu"),
                keras.layers.Dense(16, activation="relu"),
                keras.layers.Dense(16, activation="relu"),
                keras.layers.Dense(4, activation="softmax"),
            ]
        )
        model.set_pipeline_stage_assignment([0, 0, 0, 1, 1])
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=16)
        model.compile("sgd", "sparse_categorical_crossentropy", steps_per_execution=256)
        history = model.fit(data, epochs=2, steps_per_epoch=128, verbose=0).history
    assert len(history["loss"]) == 2
    assert int(model.optimizer.iterations) == 2 * 128 // 16
