"""Small models of KerasHub, made from configurations: nothing is downloaded."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from against_keras import Subject
from keras_hub import models

WORDS = 40
LENGTH = 12
ROWS = 8  # two batches: one update with accumulation
CLASSES = 3
DROPOUT = 0.1

ENCODER = {
    "vocabulary_size": WORDS,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 32,
    "dropout": DROPOUT,
}
DECODER = {
    "vocabulary_size": WORDS,
    "num_layers": 2,
    "num_query_heads": 4,
    "num_key_value_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 32,
}


def texts() -> dict[str, np.ndarray]:
    """Returns texts of different lengths, as a preprocessor would make them."""
    numbers = np.random.default_rng(0)
    lengths = numbers.integers(5, LENGTH + 1, ROWS)
    mask = (np.arange(LENGTH) < lengths[:, None]).astype("int32")
    return {
        "token_ids": numbers.integers(1, WORDS, mask.shape).astype("int32") * mask,
        "padding_mask": mask,
    }


def labels() -> np.ndarray:
    """Returns a class for each row."""
    return np.random.default_rng(1).integers(0, CLASSES, ROWS)


def next_words(x: dict[str, np.ndarray]) -> dict[str, Any]:
    """Returns the arguments of `fit` for texts whose next words are to be found."""
    after = {name: np.pad(values[:, 1:], ((0, 0), (0, 1))) for name, values in x.items()}
    weight = after["padding_mask"].astype("float32")
    return {"x": x, "y": after["token_ids"], "sample_weight": weight}


def classified_texts() -> dict[str, Any]:
    return {"x": texts(), "y": labels()}


def pairs_of_texts() -> dict[str, Any]:
    x = texts()
    x["segment_ids"] = np.broadcast_to(np.arange(LENGTH) > 5, (ROWS, LENGTH)).astype("int32")
    return {"x": x, "y": labels()}


def pictures() -> dict[str, Any]:
    x = np.random.default_rng(0).uniform(size=(ROWS, 16, 16, 3)).astype("float32")
    return {"x": x, "y": labels()}


def translated() -> dict[str, Any]:
    source, target = texts(), {name: values[::-1].copy() for name, values in texts().items()}
    data = next_words(target)
    data["x"] = {
        f"{side}_{name}": values
        for side, x in (("encoder", source), ("decoder", target))
        for name, values in x.items()
    }
    return data


def classifier(task: Any, backbone: Any) -> keras.Model:
    made = backbone(**ENCODER, max_sequence_length=LENGTH)
    return task(made, num_classes=CLASSES, dropout=DROPOUT, preprocessor=None)


def bert() -> keras.Model:
    return classifier(models.BertTextClassifier, models.BertBackbone)


def roberta() -> keras.Model:
    return classifier(models.RobertaTextClassifier, models.RobertaBackbone)


def distil_bert() -> keras.Model:
    return classifier(models.DistilBertTextClassifier, models.DistilBertBackbone)


def gpt2() -> keras.Model:
    backbone = models.GPT2Backbone(**ENCODER, max_sequence_length=LENGTH)
    return models.GPT2CausalLM(backbone, preprocessor=None)


def gpt_neo_x() -> keras.Model:
    backbone = models.GPTNeoXBackbone(**ENCODER, max_sequence_length=LENGTH)
    return models.GPTNeoXCausalLM(backbone, preprocessor=None)


def opt() -> keras.Model:
    backbone = models.OPTBackbone(**ENCODER, max_sequence_length=LENGTH)
    return models.OPTCausalLM(backbone, preprocessor=None)


def gemma() -> keras.Model:
    backbone = models.GemmaBackbone(**DECODER, head_dim=8)
    return models.GemmaCausalLM(backbone, preprocessor=None)


def gemma_lora() -> keras.Model:
    model = gemma()
    model.backbone.enable_lora(4)
    return model


def llama() -> keras.Model:
    return models.LlamaCausalLM(models.LlamaBackbone(**DECODER), preprocessor=None)


def mistral() -> keras.Model:
    return models.MistralCausalLM(models.MistralBackbone(**DECODER), preprocessor=None)


def mixtral() -> keras.Model:
    backbone = models.MixtralBackbone(**DECODER, num_experts=3, top_k=2)
    return models.MixtralCausalLM(backbone, preprocessor=None)


def t5() -> keras.Model:
    backbone = models.T5Backbone(**ENCODER)
    words = backbone(backbone.input)["decoder_sequence_output"]
    return keras.Model(backbone.input, backbone.token_embedding(words, reverse=True), name="t5")


def vit() -> keras.Model:
    backbone = models.ViTBackbone(
        (16, 16, 3),
        patch_size=(8, 8),
        num_layers=2,
        num_heads=2,
        hidden_dim=16,
        mlp_dim=32,
        dropout_rate=DROPOUT,
    )
    return models.ViTImageClassifier(backbone, num_classes=CLASSES, preprocessor=None)


def vit_of_blocks() -> keras.Model:
    """Calls the blocks of a ViT one by one, as docs/keras_hub.md does to cut between them."""
    backbone = vit().backbone
    encoder = backbone.get_layer("vit_encoder")
    x = backbone.get_layer("vit_patching_and_embedding")(backbone.input)
    x = encoder.dropout(x)
    for block in encoder.encoder_layers:
        x = block(x)
    scores = keras.layers.Dense(CLASSES)(encoder.layer_norm(x)[:, 0])
    return keras.Model(backbone.input, scores)


def resnet() -> keras.Model:
    backbone = models.ResNetBackbone(
        [64], [3], [64], [1], [1], "basic_block", image_shape=(16, 16, 3)
    )
    return models.ResNetImageClassifier(backbone, num_classes=CLASSES, preprocessor=None)


def next_words_of_texts() -> dict[str, Any]:
    return next_words(texts())


DATA: dict[Callable[[], keras.Model], Callable[[], dict[str, Any]]] = {
    bert: pairs_of_texts,
    **dict.fromkeys((roberta, distil_bert), classified_texts),
    **dict.fromkeys((gpt2, gpt_neo_x, opt), next_words_of_texts),
    **dict.fromkeys((gemma, gemma_lora, llama, mistral, mixtral), next_words_of_texts),
    t5: translated,
    **dict.fromkeys((vit, vit_of_blocks, resnet), pictures),
}
GENERATE = (gpt2, gpt_neo_x, opt, gemma, gemma_lora, llama, mistral, mixtral)


def compiled(**accumulation: Any) -> dict[str, Any]:
    return {
        "optimizer": keras.optimizers.SGD(0.05, momentum=0.9, **accumulation),
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "weighted_metrics": [keras.metrics.SparseCategoricalAccuracy()],
    }


def compiled_to_generate(**accumulation: Any) -> dict[str, Any]:
    return {**compiled(**accumulation), "sampler": "greedy"}


def generated(model: keras.Model) -> np.ndarray:
    """Returns what a model writes after the first words of two texts."""
    given = {name: values[:2] * (np.arange(LENGTH) < 5) for name, values in texts().items()}
    return np.asarray(model.generate(given, stop_token_ids=None)["token_ids"])


def subject_of(build: Callable[[], keras.Model], **changes: Any) -> Subject:
    """Returns a model, its data and its training. KerasHub does not shuffle, and warns of it."""
    arguments = {"fit": {"shuffle": False}, **changes}
    if build in GENERATE:
        return Subject(
            build.__name__, build, DATA[build], compiled_to_generate, ask=generated, **arguments
        )
    return Subject(build.__name__, build, DATA[build], compiled, **arguments)
