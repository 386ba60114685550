"""Models of the code examples on keras.io train under a strategy as they do in plain Keras.

docs/models.md has the figures of all of them. Here the optimizers have an epsilon for which it does
not matter that some gradients are rounding alone, such as those of the bias of attention keys: so
weights are held as near as losses. What takes no part of `make test-slow` is in
`make test-exhaustive`, in all three ways.
"""

import pathlib
from typing import Any

import jax
import keras
import numpy as np
import pytest
from against_keras import WAYS, Comparison, Refusal, Subject, compare
from code_examples.catalogue import EXAMPLES
from code_examples.text import WORDS, sentences
from keras import layers, ops

from millrace._compat.keras_steps import compute_forward

NEAR = 1e-6
EPSILON = 1e-4

FAST = ("guided_train_step", "own_metrics")
# The cheapest of each kind.
SLOW = [
    "endpoint_layer",
    "target_network",
    "conditional_gan",
    "wasserstein_gan",
    "kernel_machine",
    "siamese_triplets",
    "convolutional_gan",
    "contrastive_pretraining",
    "gradient_centralization",
    "checkpointed_layer",
    "clipped_and_scheduled",
    "walks",
    "real_nvp",
    "supervised_contrast",
    "feature_space",
    "variational_train_step",
    "codes_autoencoder",
    "pixel_cnn",
    "policy_gradient",
    "quantization_aware",
    "text_convnet",
    "pretrained_embeddings",
    "mixture_density",
    "bayesian_layers",
    "low_light",
    "antirectifier",
    "traffic_graph",
    "rare_classes",
    "small_embeddings",
    "digits_convnet",
    "distillation",
    "collaborative_filtering",
    "recurrent_cell",
    "character_seq2seq",
    "denoising_autoencoder",
    "gated_mlp",
    "weather_lstm",
    "siamese_contrastive",
    "miniature_gpt",
]
# Without optimization the gradient of its maximum over points is NaN where it is cut; the cause was
# not established.
SHIPPED = ("point_net",)
OTHERS = [name for name in EXAMPLES if name not in (*FAST, *SLOW, *SHIPPED)]


def check(name: str, ways: tuple[str, ...]) -> None:
    example = EXAMPLES[name]
    refused = example.make().refused
    subject = example.subject(epsilon=EPSILON)
    for way, found in compare(subject, ways).items():
        if way in refused:
            assert isinstance(found, Refusal), way
            assert refused[way] in found.text
        else:
            assert isinstance(found, Comparison), found
            assert max(found.losses, found.weights) <= NEAR, (way, found)


def ways_of(name: str) -> tuple[str, ...]:
    """A cut accumulates, too: it says what the other two would, where it is not refused."""
    return WAYS if EXAMPLES[name].make().refused else ("cut",)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FAST, *SLOW])
def test_trains_as_plain_keras(name):
    check(name, ways_of(name))


@pytest.mark.filterwarnings("ignore::UserWarning")  # of Keras, about masks
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SHIPPED)
def test_these_train_as_plain_keras_with_the_shipped_compiler(name):
    check(name, WAYS)


@pytest.mark.exhaustive
@pytest.mark.quick_compiler
@pytest.mark.parametrize("name", OTHERS)
def test_all_others_train_as_plain_keras_in_all_ways(name):
    check(name, WAYS)


class Noisy(keras.Model):
    """Draws twice from its own generator, on both stages; its outputs carry a mask."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(3)
        self.words = layers.Embedding(WORDS, 4, mask_zero=True)
        self.hidden, self.scores = layers.Dense(4, "tanh"), layers.Dense(WORDS, "softmax")

    def call(self, inputs: Any) -> Any:
        hidden = self.words(inputs)
        hidden = self.hidden(hidden + keras.random.normal((4,), stddev=0.1, seed=self.seeds))
        noise = 1 + keras.random.uniform((4,), maxval=0.1, seed=self.seeds)
        return self.scores(hidden * noise)


@pytest.mark.slow
def test_metrics_of_masked_outputs_and_seeds_of_the_model():

    def data() -> dict[str, Any]:
        words = sentences(8, padded=True)
        return {"x": words, "y": ops.convert_to_numpy(words)}

    def compile_arguments(**more: Any) -> dict[str, Any]:
        return {
            "optimizer": keras.optimizers.SGD(0.1, **more),
            "loss": "sparse_categorical_crossentropy",
            "metrics": ["accuracy"],
        }

    found = compare(Subject("noisy", Noisy, data, compile_arguments, epochs=1), ("cut",))["cut"]
    assert isinstance(found, Comparison), found
    assert max(found.losses, found.weights) <= NEAR
    assert min(found.stages) >= 1


def test_metrics_ignore_masks_in_training_as_those_of_keras():
    """They see what `jax.value_and_grad` returns: other tensors than those with a mask."""
    hidden = [layers.Embedding(WORDS, 4, mask_zero=True), layers.Dense(WORDS, "softmax")]
    model = keras.Sequential([keras.Input((6,), dtype="int32"), *hidden])
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    words = sentences(8, padded=True)
    model.optimizer.build(model.trainable_variables)
    model.train_on_batch(words, words)  # makes the variables of the metrics
    model.reset_metrics()
    guesses = np.argmax(model(words), axis=-1)
    batch = words, np.where(words > 0, guesses, (guesses + 1) % WORDS)  # wrong where nobody counts
    kinds = (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )
    state = tuple([variable.value for variable in kind] for kind in kinds)
    expected, _ = jax.jit(model.train_step)(state, batch)
    found = jax.jit(lambda *args: compute_forward(model, "train", *args)[2])(state, batch)
    assert 0 < float(found["accuracy"]) == float(expected["accuracy"]) < 1
    tested, _ = jax.jit(model.test_step)((*state[:2], state[3]), batch)
    assert float(tested["accuracy"]) == 1


def test_the_page_lists_every_model():
    text = (pathlib.Path(__file__).parents[2] / "docs" / "models.md").read_text()
    table = text.partition("code examples: begin")[2].partition("code examples: end")[0]
    assert [each.title for each in EXAMPLES.values() if f"{each.title} |" not in table] == []
    assert "nan" not in table
