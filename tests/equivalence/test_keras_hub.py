"""Models of KerasHub against plain Keras: docs/keras_hub.md."""

from dataclasses import replace

import keras
import numpy as np
import pipeline_cases as pipes
import pytest
from against_keras import WAYS, compare

from case_marks import with_marks

pytest.importorskip("keras_hub")

import models_of_keras_hub as hub
from keras_hub import models

SLOW = ("bert", "gemma_lora", "t5", "vit_of_blocks")


def assert_as_plain_keras(subject, ways):
    for way, found in compare(subject, ways).items():
        assert found.losses < 1e-6, (way, found)
        assert found.weights < 1e-6, (way, found)
        assert found.same_answers, way


def test_llama_as_it_is(monkeypatch):
    monkeypatch.setitem(hub.DECODER, "num_layers", 1)
    subject = replace(hub.subject_of(hub.llama), ask=lambda model: None)
    assert_as_plain_keras(subject, ["one piece"])


@pytest.mark.filterwarnings("ignore:.*does not support masking:UserWarning")  # T5's own
@pytest.mark.quick_compiler
@pytest.mark.parametrize(
    "build",
    with_marks(
        hub.DATA, slow=SLOW, exhaustive={build.__name__ for build in hub.DATA}.difference(SLOW)
    ),
    ids=lambda build: build.__name__,
)
def test_in_all_ways(build):
    assert_as_plain_keras(hub.subject_of(build), [*WAYS, "budget", "resumed"])


@pytest.mark.quick_compiler
@pytest.mark.parametrize(
    "build",
    with_marks((hub.gemma_lora, hub.mistral), slow=["gemma_lora"], exhaustive=["mistral"]),
    ids=lambda build: build.__name__,
)
def test_replicas_and_parts_of_batches(build):
    ways = ["replicas", "parts"]  # which draw other random numbers for dropout
    assert_as_plain_keras(hub.subject_of(build), ways)


@pytest.mark.slow
def test_a_vit_of_blocks_is_cut_between_them():
    (found,) = compare(hub.subject_of(hub.vit_of_blocks), ["cut"]).values()
    assert found.losses < 1e-6
    assert found.cut_at == "transformer_block_2"


@pytest.mark.slow
def test_mixed_precision():
    subject = hub.subject_of(hub.gpt2, policy="mixed_bfloat16")
    found = compare(subject, ["one piece"])["one piece"]
    assert found.losses < 2**-8  # the last place of bfloat16
    assert found.weights < 2**-9


@pytest.mark.slow
@pytest.mark.parametrize("is_compiled_first", [False, True])
def test_optimizer_state_and_accumulators_are_those_of_the_adapters(is_compiled_first):
    with pipes.strategy().scope():
        model = hub.gemma() if is_compiled_first else hub.gemma_lora()
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
    model.compile(**{**hub.compiled_to_generate(), "optimizer": "adam"})
    if is_compiled_first:
        model.backbone.enable_lora(4)
    data = hub.next_words_of_texts()
    report = pipes.strategy().memory_report(model, tuple(data.values()))
    (stage,) = report.devices[0].stages

    def nbytes(variables):
        return sum(4 * int(np.prod(variable.shape)) for variable in variables)

    adapters = nbytes(model.trainable_variables)
    assert [variable.name[:4] for variable in model.trainable_variables] == ["lora"] * 8
    assert nbytes(model.weights) > 6 * adapters
    assert stage.parameters == nbytes(model.weights)
    assert stage.accumulators == adapters
    assert 2 * adapters <= stage.optimizer_state < 2 * adapters + 64  # and its counters
    frozen = [np.array(variable) for variable in model.non_trainable_variables]
    model.fit(**data, batch_size=4, shuffle=False, verbose=0)
    for variable, before in zip(model.non_trainable_variables, frozen, strict=True):
        np.testing.assert_array_equal(variable, before)


WORDS = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "a", "good", "bad", "day", "night"]


@pytest.mark.slow
def test_strings_through_the_preprocessor():
    def build():
        tokenizer = models.BertTokenizer(vocabulary=WORDS)
        backbone = models.BertBackbone(**{**hub.ENCODER, "vocabulary_size": len(WORDS)})
        return models.BertTextClassifier(
            backbone,
            num_classes=2,
            preprocessor=models.BertTextClassifierPreprocessor(tokenizer, sequence_length=6),
        )

    texts = ["a good day", "a bad day", "good night", "bad night"] * 2
    data = {"x": texts, "y": np.array([1, 0, 1, 0] * 2)}
    subject = replace(
        hub.subject_of(hub.bert),
        build=build,
        data=lambda: data,
        ask=lambda model: model.predict(["a good night"], verbose=0).round(5),
    )
    assert_as_plain_keras(subject, ["accumulated"])


@pytest.mark.slow
def test_a_saved_model_has_its_stages_again(tmp_path):
    """The constructors of KerasHub build their graphs anew, with other automatic names."""
    data = tuple(hub.next_words_of_texts().values())
    with pipes.strategy(2).scope():
        model = hub.gemma()
    model.set_pipeline_stage_assignment("auto", num_stages=2, batch_spec=data)
    model.save(tmp_path / "gemma.keras")
    with pipes.strategy(2).scope():
        loaded = keras.saving.load_model(tmp_path / "gemma.keras", compile=False)
    found, saved = (
        [(call.layer.name, call.pipeline_stage) for call in pipes.leaf_calls(calls)]
        for calls in (m.get_pipeline_stage_assignment() for m in (loaded, model))
    )
    assert [stage for _, stage in found] == [stage for _, stage in saved]
    assert found != saved  # in a name of an operation
