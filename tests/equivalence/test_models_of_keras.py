"""Models of keras.applications, as users train them: docs/models.md has all families."""

import pathlib

import cases
import keras
import models_of_keras
import numpy as np
import pipeline_cases as pipes
import pytest
from against_keras import WAYS, Subject, compare
from keras import layers

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "models.md"
SIDE = 32


def backbone(**arguments):
    """The first block of a MobileNet."""
    shape = {"input_shape": (SIDE, SIDE, 3), "alpha": 0.25}
    model = keras.applications.MobileNet(
        **shape, **{"weights": None, "include_top": False, **arguments}
    )
    return keras.Model(model.input, model.get_layer("conv_pw_1_relu").output, name="backbone")


def head(features):
    return layers.Dense(5, "softmax")(layers.GlobalAveragePooling2D()(features))


def pictures(**arguments):
    return models_of_keras.pictures(SIDE, **arguments)


def assert_as_plain_keras(subject, ways=WAYS):
    for way, found in compare(subject, ways).items():
        assert found.losses < 1e-6, (way, found)
        assert found.weights < 1e-6, (way, found)


def fine_tuned(compile_=models_of_keras.classify, build=None, **changes):
    def with_head():
        model = backbone()
        return keras.Model(model.input, head(model.output))

    arguments = {"batch_size": 4, **changes}
    return Subject("fine-tuned", build or with_head, pictures, compile_, **arguments)


@pytest.mark.slow
def test_a_resnet_of_two_blocks():
    def build():
        return models_of_keras.short_resnet(
            1, [4], weights=None, classes=5, input_shape=(SIDE, SIDE, 3)
        )

    assert_as_plain_keras(fine_tuned(build=build), ["cut"])


def test_the_page_has_every_family():
    """One that a new version of Keras brings needs a row."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    listed = {line.split("`")[1] for line in rows}
    assert set(models_of_keras.families()) <= listed


@pytest.mark.slow
@pytest.mark.parametrize("family", ["convnext", "resnet"])
def test_a_family(family):
    """A cut accumulates, too."""
    assert_as_plain_keras(models_of_keras.subject_of(family, full=False), ["cut"])


@pytest.mark.exhaustive
@pytest.mark.quick_compiler
@pytest.mark.parametrize("family", models_of_keras.families())
def test_every_family_in_all_ways(family):
    assert_as_plain_keras(models_of_keras.subject_of(family, full=False))


def frozen():
    base = backbone()
    base.trainable = False
    inputs = keras.Input((SIDE, SIDE, 3))
    return keras.Model(inputs, head(layers.Dropout(0.2)(base(inputs, training=False))))


@pytest.mark.slow
@pytest.mark.parametrize("stages", [None, 2])
def test_a_head_is_trained_then_all_then_evaluated(stages):
    """The recipe of transfer learning: train the head, thaw the rest, compile again."""
    case = cases.Case("transfer", frozen, compile=models_of_keras.classify)
    outcomes = []
    for devices in (None, stages or 1):
        model = cases.compiled(case, pipes.strategy(devices) if devices else None)
        if devices == 2:
            model.set_pipeline_stage_assignment("auto", num_stages=2)
            model.set_pipelining_options(gradient_accumulation_steps_per_replica=1)
        data = pictures()
        losses = []
        for trainable in (False, True):
            model.get_layer("backbone").trainable = trainable
            model.compile(**models_of_keras.classify(), metrics=["accuracy"])
            keras.utils.set_random_seed(2)
            losses.append(model.fit(**data, batch_size=4, epochs=2, verbose=0).history)
        evaluated = model.evaluate(**data, batch_size=4, verbose=0, return_dict=True)
        predicted = model.predict(data["x"], batch_size=4, verbose=0)
        outcomes.append((losses, evaluated, predicted, model.get_weights()))
    cases.assert_close(outcomes[1], outcomes[0])


@pytest.mark.slow
def test_weights_of_a_file_and_several_outputs(tmp_path):
    saved = backbone()
    path = tmp_path / "saved.weights.h5"
    saved.save_weights(path)

    def build():
        model = backbone()
        model.load_weights(path)
        features = layers.GlobalAveragePooling2D()(model.output)
        box = layers.Dense(4, name="box")(layers.Dense(8, "relu")(features))
        return keras.Model(
            model.input, {"kind": layers.Dense(5, "softmax", name="kind")(features), "box": box}
        )

    def data():
        y = np.random.default_rng(1).normal(size=(8, 4)).astype("float32")
        made = pictures()
        return {"x": made["x"], "y": {"kind": made["y"], "box": y}}

    def compile_(**accumulation):
        losses = {"kind": "sparse_categorical_crossentropy", "box": "huber"}
        return {**models_of_keras.classify(**accumulation), "loss": losses}

    subject = Subject("outputs", build, data, compile_, batch_size=4)
    assert_as_plain_keras(subject, ["one piece", "cut"])


@pytest.mark.slow
def test_layers_in_front_that_prepare_pictures():
    def build():
        average = layers.Normalization()
        average.adapt(pictures(largest=255.0)["x"])
        inputs = keras.Input((SIDE, SIDE, 3))
        value = layers.RandomFlip("horizontal")(inputs)
        value = layers.RandomContrast(0.2)(value)
        return keras.Model(inputs, head(backbone()(average(value))))

    assert_as_plain_keras(fine_tuned(build=build), ["cut"])
