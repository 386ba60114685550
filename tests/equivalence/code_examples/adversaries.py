"""Two networks against each other, and twins: steps of their own, most with two optimizers."""

import types
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from keras import layers, ops

from code_examples.example import IN_TURN, Case, example, random_of
from code_examples.own_step import Pair, Steps

SIZE, LATENT, KINDS = 4, 3, 3


def pictures(rows: int, channels: int = 1, seed: int = 81) -> np.ndarray:
    return random_of(seed).random((rows, SIZE, SIZE, channels), dtype="float32")


def only_pictures(rows: int) -> dict[str, Any]:
    return {"x": pictures(rows)}


def generator(inputs: int = LATENT, channels: int = 1) -> keras.Sequential:
    return keras.Sequential(
        [
            keras.Input((inputs,)),
            layers.Dense(2 * 2 * 4),
            layers.Reshape((2, 2, 4)),
            layers.Conv2DTranspose(4, 4, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Conv2D(channels, 3, padding="same", activation="sigmoid"),
        ]
    )


def discriminator(channels: int = 1, rate: float = 0.2) -> keras.Sequential:
    return keras.Sequential(
        [
            keras.Input((SIZE, SIZE, channels)),
            layers.Conv2D(4, 4, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Flatten(),
            layers.Dropout(rate),
            layers.Dense(1),
        ]
    )


class Adversaries(Steps):
    """The judge learns first, then the artist, from noise that is drawn anew for each."""

    names = ("d_loss", "g_loss")

    def __init__(self, channels: int = 1, inputs: int = LATENT):
        super().__init__()
        self.artist, self.judge = generator(inputs), discriminator(channels)
        self.seeds = keras.random.SeedGenerator(82)
        self.built = True

    @property
    def count(self) -> int:
        """Trainable variables of the artist; those of the judge follow."""
        return len(self.artist.trainable_variables)

    def judged(self, pictures: Any, data: Any) -> Any:
        """What the judge says of pictures."""
        return self.judge(pictures, training=True)

    def drawn(self, data: Any) -> Any:
        """Pictures of the artist."""
        return self.artist(keras.random.normal((len(data[0]), LATENT), seed=self.seeds))

    def loss_of_judge(self, data: Any) -> Any:
        cross = keras.losses.BinaryCrossentropy(from_logits=True)
        real, drawn = self.judged(data[0], data), self.judged(self.drawn(data), data)
        return cross(ops.ones_like(real), real) + cross(ops.zeros_like(drawn), drawn)

    def loss_of_artist(self, data: Any) -> Any:
        judged = self.judged(self.drawn(data), data)
        cross = keras.losses.BinaryCrossentropy(from_logits=True)
        return cross(ops.ones_like(judged), judged)

    def stateless(self, loss: Any, trainable: Any, others: Any, data: Any) -> Any:
        """A loss as a function of variables; the second result is what has become of the others."""
        values = [*zip(self.trainable_variables, trainable, strict=True)]
        values += zip(self.non_trainable_variables, others, strict=True)
        with keras.StatelessScope(state_mapping=values) as scope:
            result = loss(data)
        return result, [scope.get_current_value(v) for v in self.non_trainable_variables]

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, others, optimizer, metrics = state
        data = data if isinstance(data, tuple) else (data,)
        losses = []
        for part, loss in enumerate((self.loss_of_artist, self.loss_of_judge)[::-1]):

            def of_all(trainable: Any, others: Any, loss: Any = loss) -> Any:
                return self.stateless(loss, trainable, others, data)

            (value, others), gradients = jax.value_and_grad(of_all, has_aux=True)(trainable, others)
            artist, judge = gradients[: self.count], gradients[self.count :]
            # Zeros for the other one: its optimizer still counts this as an update.
            rests = artist if part == 0 else judge
            zeros = [ops.zeros_like(gradient) for gradient in rests]
            gradients = [*zeros, *judge] if part == 0 else [*artist, *zeros]
            trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
            losses.append(value)
        logs, metrics = self.tracked(metrics, losses)
        return logs, (trainable, others, optimizer, metrics)


def accumulated(model: Any, steps: int) -> Any:
    """Makes each batch be `steps` batches of one update: both networks learn once, in turn."""

    def train_step(self: Any, state: Any, data: Any) -> Any:
        trainable, others, optimizer, metrics = state
        data = data if isinstance(data, tuple) else (data,)
        rows = len(data[0]) // steps
        parts = [tuple(leaf[k * rows :][:rows] for leaf in data) for k in range(steps)]
        losses, begun, before = [], [], others
        for part in parts:  # the random numbers of each, in the order of single steps
            begun.append(before)
            for loss in (self.loss_of_judge, self.loss_of_artist):
                _, before = self.stateless(loss, trainable, before, part)
        for number, loss in enumerate((self.loss_of_judge, self.loss_of_artist)):
            sums = None
            for k, part in enumerate(parts):

                def of_all(trainable: Any, others: Any, loss: Any = loss, part: Any = part) -> Any:
                    return self.stateless(loss, trainable, others, part)

                differentiated = jax.value_and_grad(of_all, has_aux=True)
                (value, begun[k]), gradients = differentiated(trainable, begun[k])
                losses.append(value)
                sums = gradients if sums is None else jax.tree.map(jnp.add, sums, gradients)
            means = [total / steps for total in sums]
            kept = range(self.count) if number else range(self.count, len(means))
            means = [g if k in kept else ops.zeros_like(g) for k, g in enumerate(means)]
            trainable, optimizer = self.optimizer.stateless_apply(optimizer, means, trainable)
        for pair in zip(losses[:steps], losses[steps:], strict=True):
            logs, metrics = self.tracked(metrics, pair)
        return logs, (trainable, before, optimizer, metrics)

    model.train_step = types.MethodType(train_step, model)
    return model


def against(build: Any, data: Any) -> Case:
    return Case(build, data, two_adams(6), by_hand=accumulated, refused=IN_TURN)


def two_adams(count: int) -> Any:
    def optimizer(**more: Any) -> Any:
        first = keras.optimizers.Adam(3e-4, beta_1=0.5, **more)
        return Pair(first, keras.optimizers.Adam(1e-4, beta_1=0.5, **more), count)

    return optimizer


@example("Adversaries", "DCGAN: its own step, two optimizers")
def convolutional_gan() -> Case:
    return against(Adversaries, only_pictures)


class Conditional(Adversaries):
    """Draws a picture of a class; the judge sees the class as further channels."""

    def __init__(self):
        super().__init__(1 + KINDS, LATENT + KINDS)

    def judged(self, pictures: Any, data: Any) -> Any:
        kinds = ops.broadcast_to(data[1][:, None, None], (*pictures.shape[:3], KINDS))
        return self.judge(ops.concatenate([pictures, kinds], axis=-1), training=True)

    def drawn(self, data: Any) -> Any:
        noise = keras.random.normal((len(data[0]), LATENT), seed=self.seeds)
        return self.artist(ops.concatenate([noise, data[1]], axis=1))


@example("Adversaries", "conditional GAN")
def conditional_gan() -> Case:
    def data(rows: int) -> dict[str, Any]:
        kinds = random_of(83).integers(0, KINDS, rows)
        return {"x": pictures(rows), "y": np.eye(KINDS, dtype="float32")[kinds]}

    return against(Conditional, data)


class Wasserstein(Adversaries):
    """A judge without a bound, whose gradient is kept near one."""

    def loss_of_judge(self, data: Any) -> Any:
        drawn = self.drawn(data)
        loss = ops.mean(self.judged(drawn, data)) - ops.mean(self.judged(data[0], data))
        between = keras.random.uniform((len(drawn), 1, 1, 1), seed=self.seeds)
        between = data[0] + between * (drawn - data[0])
        slopes = jax.grad(lambda pictures: ops.sum(self.judge(pictures, training=False)))(between)
        norms = ops.sqrt(ops.sum(ops.square(slopes), axis=(1, 2, 3)) + 1e-12)
        return loss + 10 * ops.mean(ops.square(norms - 1))

    def loss_of_artist(self, data: Any) -> Any:
        return -ops.mean(self.judged(self.drawn(data), data))


@example("Adversaries", "WGAN-GP: a gradient of a gradient")
def wasserstein_gan() -> Case:
    return against(Wasserstein, only_pictures)


class Cycle(keras.Model):
    """Two artists that undo each other's work, and two judges, in one sum of losses."""

    def __init__(self):
        super().__init__()
        self.there, self.back = (self.artist() for _ in range(2))
        self.judges = [discriminator(3, rate=0.0) for _ in range(2)]

    def artist(self) -> keras.Sequential:
        hidden = [layers.Conv2D(4, 3, padding="same"), layers.GroupNormalization(groups=-1)]
        return keras.Sequential(
            [*hidden, layers.ReLU(), layers.Conv2D(3, 3, padding="same", activation="tanh")]
        )

    def call(self, inputs: Any, training: bool = False) -> Any:
        real, other = inputs
        to, fro = self.there(real), self.back(other)
        return ops.stack(
            [to, fro, self.back(to), self.there(fro), self.back(real), self.there(other)]
        )

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        real, other = x
        judged = [
            judge(drawn) for judge, drawn in zip(self.judges, (y_pred[1], y_pred[0]), strict=True)
        ]
        adversarial = sum(ops.mean(ops.square(score - 1)) for score in judged)
        cycle = ops.mean(ops.abs(real - y_pred[2])) + ops.mean(ops.abs(other - y_pred[3]))
        same = ops.mean(ops.abs(real - y_pred[4])) + ops.mean(ops.abs(other - y_pred[5]))
        return adversarial + 10 * cycle + 5 * same


@example("Adversaries", "CycleGAN: networks called twice, a sum of six losses")
def cycle_gan() -> Case:
    def data(rows: int) -> dict[str, Any]:
        return {"x": (pictures(rows, 3), pictures(rows, 3, seed=84))}

    return Case(Cycle, data, "adam")


class Triplets(Steps):
    """Brings two pictures of one thing together, and a third one away from them."""

    def __init__(self):
        super().__init__()
        hidden = [layers.Conv2D(4, 3, activation="relu"), layers.Flatten()]
        self.embedding = keras.Sequential([*hidden, layers.BatchNormalization(), layers.Dense(4)])

    def call(self, inputs: Any, training: bool = False) -> Any:
        anchor, same, other = (self.embedding(each, training=training) for each in inputs)
        near, far = (ops.sum(ops.square(anchor - each), -1) for each in (same, other))
        return near, far

    def losses_of(self, data: Any, outputs: Any) -> tuple[Any, ...]:
        near, far = outputs
        return (ops.mean(ops.maximum(near - far + 0.5, 0.0)),)


@example("Adversaries", "siamese network with a triplet loss in a step of its own")
def siamese_triplets() -> Case:
    def data(rows: int) -> dict[str, Any]:
        return {"x": tuple(pictures(rows, seed=seed) for seed in (85, 86, 87))}

    return Case(Triplets, data)


class Contrasts(Steps):
    """Learns that two views are of one picture; a probe on it learns classes at the same time."""

    names = ("c_loss", "p_loss")

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(88)
        self.encoder = keras.Sequential(
            [layers.Flatten(), layers.Dense(6, "relu"), layers.Dense(4)]
        )
        self.head, self.probe = layers.Dense(4), layers.Dense(KINDS)

    def call(self, inputs: Any, training: bool = False) -> Any:
        noise = keras.random.normal((2, *inputs.shape), stddev=0.1, seed=self.seeds)
        views = [self.head(self.encoder(inputs + each)) for each in noise]
        return *views, self.probe(ops.stop_gradient(self.encoder(inputs)))

    def train_step(self, state: Any, data: Any) -> Any:
        self.labels = data[1]
        return super().train_step(state, data)

    def losses_of(self, data: Any, outputs: Any) -> tuple[Any, ...]:
        left, right, probed = outputs
        alike = ops.matmul(ops.normalize(left), ops.transpose(ops.normalize(right))) / 0.1
        same = ops.arange(len(alike))
        cross = [
            ops.mean(keras.losses.sparse_categorical_crossentropy(same, each, from_logits=True))
            for each in (alike, ops.transpose(alike))
        ]
        probe = keras.losses.sparse_categorical_crossentropy(self.labels, probed, from_logits=True)
        contrast, probe = sum(cross) / 2, ops.mean(probe)
        return contrast + probe, probe


@example("Adversaries", "SimCLR with a probe, in a step of its own")
def contrastive_pretraining() -> Case:
    def data(rows: int) -> dict[str, Any]:
        return {"x": pictures(rows), "y": random_of(89).integers(0, KINDS, rows).astype("int32")}

    return Case(Contrasts, data)


class SupervisedContrast(keras.losses.Loss):
    """Pulls rows of one class together: every row of the batch counts for every other one."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        vectors = ops.normalize(y_pred, axis=1)
        logits = ops.matmul(vectors, ops.transpose(vectors)) / 0.5
        others = 1 - ops.eye(len(logits))
        labels = ops.reshape(y_true, (-1, 1))
        same = ops.cast(labels == ops.transpose(labels), logits.dtype) * others
        logs = logits - ops.log(ops.sum(ops.exp(logits) * others, axis=1, keepdims=True))
        return -ops.sum(same * logs, axis=1) / ops.maximum(ops.sum(same, axis=1), 1)


@example("Adversaries", "supervised contrastive learning: a loss over all pairs of a batch")
def supervised_contrast() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((SIZE, SIZE, 1))
        hidden = layers.Flatten()(layers.Conv2D(4, 3, activation="relu")(inputs))
        return keras.Model(inputs, layers.Dense(4, "relu")(layers.Dropout(0.2)(hidden)))

    def data(rows: int) -> dict[str, Any]:
        return {"x": pictures(rows), "y": random_of(90).integers(0, 2, rows).astype("int32")}

    return Case(build, data, "adam", SupervisedContrast)
