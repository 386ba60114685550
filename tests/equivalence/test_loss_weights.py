"""Losses that divide by a number of the data: updates are those of one big batch in plain Keras.

micro-batches   5 words | 9 words | 2 words      each loss is a mean over its own words
update          a mean over 16 words
"""

from dataclasses import dataclass, field
from typing import Any

import jax
import keras
import numpy as np
import pytest
from keras import layers

import millrace
from case_marks import slow, with_marks

RNG = np.random.default_rng(1)
LENGTHS = RNG.integers(1, 8, size=(72, 1))
WORDS = RNG.integers(1, 20, size=(72, 7)) * (np.arange(7) < LENGTHS)
ANY_WORDS = RNG.integers(0, 20, size=(72, 7))
WORD_WEIGHTS = RNG.uniform(0.1, 3, size=(72, 7)).astype("float32")
ROW_WEIGHTS = RNG.choice([0.0, 0.3, 2.0], size=(72, 1)).astype("float32")
BIG = 24
EPOCHS = 2
SCALE = 17  # times the seven tokens of a row, gradients of micro-batches would overflow


@dataclass
class Subject:
    """A model and its training."""

    x: Any = field(default_factory=lambda: WORDS)
    y: Any = field(default_factory=lambda: ANY_WORDS)
    mask_zero: bool = True
    sample_weight: Any = None
    loss: dict = field(default_factory=dict)
    optimizer: Any = lambda: keras.optimizers.Adam(0.01)
    make: Any = keras.Model
    regularizer: Any = "l2"

    def model(self, steps=1):
        keras.utils.set_random_seed(3)
        words = keras.Input((None,), dtype="int32")
        x = layers.Embedding(20, 8, mask_zero=self.mask_zero)(words)
        x = layers.Dense(9, activation="tanh", kernel_regularizer=self.regularizer, name="first")(x)
        x = layers.Dense(20, name="second")(x)
        model = self.make(words, x)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, **self.loss)
        model.compile(self.optimizer(), loss, steps_per_execution=steps)
        return model

    def fit(self, model, batch_size, rows=72):
        data = {"x": self.x[:rows], "y": self.y[:rows]}
        if self.sample_weight is not None:
            data["sample_weight"] = self.sample_weight[:rows]
        model.fit(**data, batch_size=batch_size, epochs=EPOCHS, shuffle=False, verbose=0)
        return [np.array(v) for v in (*model.weights, *model.optimizer.variables)]


class OwnStep(keras.Model):
    """Its `train_step` is that of Keras's guide for JAX."""

    def loss_of(self, trainable, non_trainable, x, y, weight):
        y_pred, non_trainable = self.stateless_call(trainable, non_trainable, x, training=True)
        return self.compute_loss(x, y, y_pred, weight), non_trainable

    def train_step(self, state, data):
        trainable, non_trainable, optimizer, metrics = state
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        gradient = jax.value_and_grad(self.loss_of, has_aux=True)
        (loss, non_trainable), gradients = gradient(trainable, non_trainable, x, y, weight)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        return {"loss": loss}, (trainable, non_trainable, optimizer, metrics)


WEIGHTED = {"reduction": "mean_with_sample_weight"}
SUBJECTS = {
    "mask": Subject(),
    "ignored class": Subject(mask_zero=False, loss={"ignore_class": 3}),
    "weights of words": Subject(mask_zero=False, sample_weight=WORD_WEIGHTS, loss=WEIGHTED),
    "mask and weights": Subject(sample_weight=WORD_WEIGHTS, loss=WEIGHTED),
    "weights of rows": Subject(mask_zero=False, sample_weight=ROW_WEIGHTS, loss=WEIGHTED),
    "clipped": Subject(optimizer=lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.3)),
    "own step": Subject(make=OwnStep, regularizer=None),
}


def accumulated(model):
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=3)


def staged(model, **options):
    calls = model.get_pipeline_stage_assignment()
    for call in calls:
        call.pipeline_stage = int(call.layer.name == "second")
    model.set_pipeline_stage_assignment(calls)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=3, **options)


def zero_bubble(model):
    staged(model, pipeline_schedule="zero_bubble")


def stages_of_replicas(model):
    staged(model)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=1)


def sharded(model):
    model.set_replication_options(replicated_optimizer_state_sharding=True)


def in_parts(model):
    accumulated(model)
    model.set_gradient_accumulation_options(micro_batch=3)


def within_budget(model):
    accumulated(model)
    model.set_recomputation_options(budget=0.97)


WAYS = {  # devices, options
    "accumulated": (1, accumulated),
    "replicas": (3, lambda model: None),
    "sharded state": (3, sharded),
    "stages": (2, staged),
    "halves of backward": (2, zero_bubble),
    "stages of replicas": (6, stages_of_replicas),
    "in parts": (1, in_parts),
    "within a budget": (1, within_budget),
}


def train(subject, way, rows=72):
    devices, options = WAYS[way]
    strategy = millrace.Strategy(devices=f"cpu:{devices}")
    with strategy.scope():
        model = subject.model(3)
    options(model)
    return subject.fit(model, BIG // 3, rows)


def assert_same(found, expected):
    for value, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=2e-5, atol=2e-6)


QUICK = {("mask", way) for way in ("accumulated", "replicas", "stages", "in parts")}
QUICK |= {(name, "accumulated") for name in ("weights of words", "own step")}


@pytest.mark.parametrize(
    ("name", "way"),
    [(name, way) if (name, way) in QUICK else slow(name, way) for name in SUBJECTS for way in WAYS],
)
def test_an_update_is_that_of_the_big_batch(name, way):
    subject = SUBJECTS[name]
    assert_same(train(subject, way), subject.fit(subject.model(), BIG))


@pytest.mark.parametrize("way", with_marks(WAYS, slow=set(WAYS) - {"accumulated"}))
def test_the_last_update_is_smaller(way):
    subject = SUBJECTS["mask"]
    assert_same(train(subject, way, 68), subject.fit(subject.model(), BIG, 68))


def test_no_word_of_an_update_counts():
    subject = Subject(x=WORDS * (np.arange(72) >= 24)[:, None], regularizer=None)
    assert_same(train(subject, "accumulated"), subject.fit(subject.model(), BIG))


def lengths():
    """Yields batches of other lengths, and then the same rows in one length."""
    for start, length in ((0, 7), (8, 3), (16, 5)):
        yield WORDS[start : start + 8, :length], ANY_WORDS[start : start + 8, :length]


@pytest.mark.parametrize("way", [slow("accumulated"), "stages"])
def test_micro_batches_have_other_lengths(way):
    subject = SUBJECTS["mask"]
    devices, options = WAYS[way]
    with millrace.Strategy(devices=f"cpu:{devices}").scope():
        model = subject.model(3)
    options(model)
    model.fit(lengths(), shuffle=False, verbose=0)
    plain = subject.model()
    x, y = (np.zeros((24, 7), "int32") for _ in range(2))
    for number, (words, targets) in enumerate(lengths()):
        x[8 * number : 8 * number + 8, : words.shape[1]] = words
        y[8 * number : 8 * number + 8, : words.shape[1]] = targets
    plain.fit(x, y, batch_size=24, verbose=0)
    assert_same(*([np.array(v) for v in m.weights] for m in (model, plain)))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["accumulated", "within a budget", "stages"])
def test_weights_let_no_scaled_gradient_overflow(way):
    """Times the tokens of a row, gradients of this scale would leave the range of float16."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        subject = Subject(
            regularizer=None,
            optimizer=lambda: keras.optimizers.LossScaleOptimizer(
                keras.optimizers.SGD(0.1), initial_scale=2.0**SCALE
            ),
        )
        found, expected = train(subject, way), subject.fit(subject.model(), BIG)
    finally:
        keras.config.set_dtype_policy("float32")
    assert float(found[5 + 3]) == float(expected[5 + 3]) == 2.0**SCALE  # no update was skipped
    for value, other in zip(found[:4], expected[:4], strict=True):
        np.testing.assert_allclose(value, other, atol=2e-3)


def test_mean_weighs_by_rows():
    subject = Subject()
    with millrace.Strategy(devices=1).scope():
        model = subject.model(3)
    model.set_gradient_accumulation_options(
        gradient_accumulation_steps_per_replica=3, gradient_accumulation_reduction_method="mean"
    )
    found = subject.fit(model, BIG // 3)
    subject.optimizer = lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=3)
    expected = subject.fit(subject.model(), BIG // 3)
    assert_same(found[:4], expected[:4])


@pytest.mark.parametrize("way", ["accumulated", slow("within a budget")])
def test_two_losses_of_one_mask(way):
    def two_heads(batch_size, **changes):
        keras.utils.set_random_seed(3)
        words = keras.Input((7,), dtype="int32")
        x = layers.Embedding(20, 8, mask_zero=True)(words)
        outputs = {name: layers.Dense(1, name=name)(x) for name in ("a", "b")}
        model = keras.Model(words, outputs)
        model.compile("sgd", {"a": "mse", "b": "mae"})
        if changes:
            WAYS[way][1](model)
        targets = {"a": ANY_WORDS[..., None], "b": WORD_WEIGHTS[..., None]}
        model.fit(WORDS, targets, batch_size=batch_size, shuffle=False, verbose=0)
        return [np.array(v) for v in model.weights]

    with millrace.Strategy(devices=1).scope():
        found = two_heads(BIG // 3, way=way)
    assert_same(found, two_heads(BIG))


def test_several_losses_are_weighed_by_rows_and_a_line_says_so(caplog):
    words = keras.Input((7,), dtype="int32")
    x = layers.Embedding(20, 8, mask_zero=True)(words)
    with millrace.Strategy(devices=1).scope():
        pooled = layers.Dense(1, name="row")(layers.GlobalAveragePooling1D()(x))
        model = keras.Model(words, {"words": layers.Dense(1, name="words")(x), "row": pooled})
        model.compile("sgd", {"words": "mse", "row": "mse"})
    accumulated(model)
    targets = {"words": np.ones((24, 7, 1)), "row": np.ones((24, 1))}
    model.fit(WORDS[:24], targets, batch_size=8, verbose=0)
    assert "weighed by their rows" in caplog.text
