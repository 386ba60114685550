"""Tables, and recommendations."""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

from code_examples.example import Case, example, random_of

AGES, INCOMES, KINDS, TOWNS = "age", "income", "kind", "town"
NUMBERS = {KINDS: 4, TOWNS: 5}  # of categories
CROSSES = 7  # of a kind and a town, hashed


def people(rows: int, crossed: bool = False) -> dict[str, Any]:
    """Two numbers and two categories of each; the cross of both as FeatureSpace would hash it."""
    random = random_of(51)
    x = {name: random.normal(size=(rows, 1)).astype("float32") for name in (AGES, INCOMES)}
    for name, number in NUMBERS.items():
        x[name] = random.integers(0, number, (rows, 1)).astype("int32")
    if crossed:
        x["cross"] = ((x[KINDS] * 31 + x[TOWNS] * 17) % CROSSES).astype("int32")
    y = (x[AGES] + x[KINDS] > 1.5).astype("float32")
    return {"x": x, "y": y}


def inputs_of_people(crossed: bool = False) -> dict[str, Any]:
    inputs = {name: keras.Input((1,), name=name) for name in (AGES, INCOMES)}
    for name in [*NUMBERS, *(["cross"] if crossed else [])]:
        inputs[name] = keras.Input((1,), name=name, dtype="int32")
    return inputs


def one_hot(tensor: Any, number: int) -> Any:
    return layers.CategoryEncoding(num_tokens=number, output_mode="one_hot")(tensor)


def embedded(inputs: dict[str, Any], width: int) -> list[Any]:
    return [layers.Embedding(number, width)(inputs[name])[:, 0] for name, number in NUMBERS.items()]


@example("Structured data", "categories and their cross, prepared outside of the model")
def feature_space() -> Case:
    def build() -> keras.Model:
        inputs = inputs_of_people(crossed=True)
        encoded = [one_hot(inputs[name], number) for name, number in NUMBERS.items()]
        encoded.append(one_hot(inputs["cross"], CROSSES))
        hidden = layers.concatenate([inputs[AGES], inputs[INCOMES], *encoded])
        hidden = layers.Dropout(0.5)(layers.Dense(8, "relu")(hidden))
        return keras.Model(inputs, layers.Dense(1, "sigmoid")(hidden))

    def data(rows: int) -> dict[str, Any]:
        return people(rows, crossed=True)

    return Case(build, data, "adam", "binary_crossentropy", ["accuracy"])


@example("Structured data", "wide, deep and cross networks")
def wide_and_deep() -> Case:
    def build() -> keras.Model:
        inputs = inputs_of_people()
        numbers = [inputs[AGES], inputs[INCOMES]]
        wide = layers.concatenate([*numbers, *(one_hot(inputs[n], k) for n, k in NUMBERS.items())])
        wide = layers.BatchNormalization()(wide)
        start = cross = layers.concatenate([*numbers, *embedded(inputs, 3)])
        for _ in range(2):
            cross = start * layers.Dense(start.shape[-1])(cross) + cross
        deep = layers.ReLU()(layers.BatchNormalization()(layers.Dense(6)(start)))
        merged = layers.concatenate([wide, layers.BatchNormalization()(cross), deep])
        return keras.Model(inputs, layers.Dense(1, "sigmoid")(merged))

    return Case(build, people, "adam", "binary_crossentropy", ["accuracy"])


@example("Structured data", "TabTransformer")
def tab_transformer() -> Case:
    def build() -> keras.Model:
        inputs = inputs_of_people()
        hidden = ops.stack(embedded(inputs, 4), axis=1)
        hidden = hidden + layers.Embedding(2, 4)(ops.arange(2))
        attended = layers.MultiHeadAttention(2, 4, dropout=0.1)(hidden, hidden)
        hidden = layers.LayerNormalization(epsilon=1e-6)(layers.Add()([attended, hidden]))
        ahead = layers.Dropout(0.1)(layers.Dense(4, "gelu")(hidden))
        hidden = layers.LayerNormalization(epsilon=1e-6)(layers.Add()([ahead, hidden]))
        numbers = layers.concatenate([inputs[AGES], inputs[INCOMES]])
        merged = layers.concatenate(
            [layers.Flatten()(hidden), layers.LayerNormalization(epsilon=1e-6)(numbers)]
        )
        merged = layers.Dense(6, "selu")(layers.BatchNormalization()(merged))
        return keras.Model(inputs, layers.Dense(1, "sigmoid")(layers.Dropout(0.2)(merged)))

    def data(rows: int) -> dict[str, Any]:
        return {**people(rows), "sample_weight": np.linspace(0.5, 2, rows, dtype="float32")}

    def metrics() -> list[Any]:
        return [keras.metrics.BinaryAccuracy(name="accuracy")]

    return Case(build, data, "adamw", keras.losses.BinaryCrossentropy, metrics)


class GatedResidual(layers.Layer):
    """A residual whose second half is gated."""

    def __init__(self, units: int):
        super().__init__()
        self.hidden, self.linear = layers.Dense(units, "elu"), layers.Dense(units)
        self.value, self.gate = layers.Dense(units), layers.Dense(units, "sigmoid")
        self.dropout, self.norm = layers.Dropout(0.15), layers.LayerNormalization()
        self.project = layers.Dense(units)

    def call(self, inputs: Any, training: bool = False) -> Any:
        hidden = self.dropout(self.linear(self.hidden(inputs)), training=training)
        return self.norm(self.project(inputs) + self.value(hidden) * self.gate(hidden))


class VariableSelection(layers.Layer):
    """Weighs columns by what they hold."""

    def __init__(self, columns: int, units: int):
        super().__init__()
        self.columns = [GatedResidual(units) for _ in range(columns)]
        self.all, self.weights_of = GatedResidual(units), layers.Dense(columns, "softmax")

    def call(self, inputs: Any, training: bool = False) -> Any:
        weights = self.weights_of(self.all(ops.concatenate(inputs, axis=-1), training=training))
        columns = [
            layer(each, training=training) for layer, each in zip(self.columns, inputs, strict=True)
        ]
        return ops.squeeze(ops.matmul(ops.expand_dims(weights, 1), ops.stack(columns, 1)), 1)


@example("Structured data", "gated residual and variable selection networks")
def gated_residual() -> Case:
    def build() -> keras.Model:
        inputs = inputs_of_people()
        numbers = [layers.Dense(4)(inputs[name]) for name in (AGES, INCOMES)]
        hidden = VariableSelection(4, 4)([*numbers, *embedded(inputs, 4)])
        return keras.Model(inputs, layers.Dense(1, "sigmoid")(hidden))

    return Case(build, people, "adam", "binary_crossentropy", ["accuracy"])


@example("Structured data", "rare classes: class weights and counting metrics")
def rare_classes() -> Case:
    def build() -> keras.Model:
        hidden = [layers.Dense(8, "relu"), layers.Dropout(0.3), layers.Dense(8, "relu")]
        return keras.Sequential([keras.Input((5,)), *hidden, layers.Dense(1, "sigmoid")])

    def data(rows: int) -> dict[str, Any]:
        x = random_of(52).normal(size=(rows, 5)).astype("float32")
        return {"x": x, "y": (x[:, :1] > 0.8).astype("uint8")}

    def metrics() -> list[Any]:
        kinds = ("FalseNegatives", "FalsePositives", "TrueNegatives", "TruePositives")
        return [getattr(keras.metrics, kind)(name=kind) for kind in (*kinds, "Precision", "Recall")]

    weights = {"class_weight": {0: 0.3, 1: 4.0}}
    return Case(build, data, "adam", "binary_crossentropy", metrics, fit=weights)


class DecisionTree(layers.Layer):
    """Routes rows to leaves by decisions that can be differentiated."""

    def __init__(self, depth: int, features: int, used: int, classes: int, seed: int):
        super().__init__()
        self.depth, self.leaves = depth, 2**depth
        chosen = random_of(seed).choice(features, used, replace=False)
        self.features = np.eye(features, dtype="float32")[chosen]
        self.outcomes = self.add_weight(shape=(self.leaves, classes), initializer="random_normal")
        self.decide = layers.Dense(self.leaves, "sigmoid")

    def call(self, inputs: Any) -> Any:
        rows = ops.shape(inputs)[0]
        left = ops.expand_dims(self.decide(ops.matmul(inputs, self.features.T)), 2)
        decisions = ops.concatenate([left, 1 - left], axis=2)
        reached, begin = ops.ones((rows, 1, 1)), 1
        for level in range(self.depth):
            reached = ops.tile(ops.reshape(reached, (rows, -1, 1)), (1, 1, 2))
            end = begin + 2**level
            reached, begin = reached * decisions[:, begin:end], end
        return ops.matmul(ops.reshape(reached, (rows, -1)), ops.softmax(self.outcomes))


@example("Structured data", "a forest of neural decision trees")
def decision_forest() -> Case:
    class Forest(keras.Model):
        def __init__(self, trees: int = 3):
            super().__init__()
            self.trees = [DecisionTree(2, 6, 4, 2, seed) for seed in range(trees)]
            self.norm = layers.BatchNormalization()

        def call(self, inputs: Any, training: bool = False) -> Any:
            hidden = self.norm(inputs, training=training)
            return sum(tree(hidden) for tree in self.trees) / len(self.trees)

    def data(rows: int) -> dict[str, Any]:
        x = random_of(53).normal(size=(rows, 6)).astype("float32")
        return {"x": x, "y": (x[:, 0] > 0).astype("int32")}

    return Case(Forest, data, "adam", "sparse_categorical_crossentropy", ["accuracy"])


class Recommender(keras.Model):
    """Scores of users and films, by a product of embeddings and biases."""

    def __init__(self, users: int = 6, films: int = 8, width: int = 4):
        super().__init__()
        penalty = keras.regularizers.l2(1e-6)
        self.users, self.films = (
            layers.Embedding(
                number,
                width,
                embeddings_initializer="he_normal",
                embeddings_regularizer=penalty,
            )
            for number in (users, films)
        )
        self.user_bias, self.film_bias = layers.Embedding(users, 1), layers.Embedding(films, 1)

    def call(self, inputs: Any) -> Any:
        users, films = inputs[:, 0], inputs[:, 1]
        products = ops.tensordot(self.users(users), self.films(films), 2)
        return ops.sigmoid(products + self.user_bias(users) + self.film_bias(films))


def ratings(rows: int) -> dict[str, Any]:
    random = random_of(54)
    pairs = np.stack([random.integers(0, 6, rows), random.integers(0, 8, rows)], axis=1)
    return {"x": pairs.astype("int32"), "y": random.random((rows, 1), dtype="float32")}


@example("Recommendations", "collaborative filtering: a product over the whole batch")
def collaborative_filtering() -> Case:
    return Case(Recommender, ratings, "adam", keras.losses.BinaryCrossentropy)


@example("Recommendations", "a transformer over what somebody saw before")
def behaviour_sequence() -> Case:
    def build() -> keras.Model:
        seen = keras.Input((4,), dtype="int32", name="seen")
        scores = keras.Input((4,), name="scores")
        target = keras.Input((1,), dtype="int32", name="target")
        films = layers.Embedding(8, 6, name="films")
        before = films(seen) + layers.Embedding(4, 6)(ops.arange(4))
        before = before * ops.expand_dims(scores, -1)
        hidden = layers.Concatenate(axis=1)([before, films(target)])
        attended = layers.Dropout(0.1)(layers.MultiHeadAttention(2, 5)(hidden, hidden))
        normed = layers.LayerNormalization()(layers.Add()([hidden, attended]))
        ahead = layers.Dropout(0.1)(layers.Dense(6)(layers.LeakyReLU()(normed)))
        hidden = layers.Flatten()(layers.LayerNormalization()(layers.Add()([normed, ahead])))
        hidden = layers.LeakyReLU()(layers.BatchNormalization()(layers.Dense(8)(hidden)))
        return keras.Model(
            {"seen": seen, "scores": scores, "target": target}, layers.Dense(1)(hidden)
        )

    def data(rows: int) -> dict[str, Any]:
        random = random_of(55)
        films = random.integers(0, 8, (rows, 5)).astype("int32")
        scores = random.random((rows, 4), dtype="float32")
        x = {"seen": films[:, :4], "scores": scores, "target": films[:, 4:]}
        return {"x": x, "y": random.random((rows, 1), dtype="float32")}

    def metrics() -> list[Any]:
        return [keras.metrics.MeanAbsoluteError()]

    return Case(build, data, "adagrad", keras.losses.MeanSquaredError, metrics)


class HashedEmbedding(layers.Layer):
    """Embeddings of many by two small tables: one of quotients, one of remainders."""

    def __init__(self, number: int, buckets: int, width: int):
        super().__init__()
        self.buckets = buckets
        self.quotients = layers.Embedding(number // buckets + 1, width)
        self.remainders = layers.Embedding(buckets, width)

    def call(self, inputs: Any) -> Any:
        quotient, remainder = inputs // self.buckets, inputs % self.buckets
        return self.quotients(quotient) * self.remainders(remainder)


@example("Recommendations", "embeddings that take less memory: quotients, remainders, mixed widths")
def small_embeddings() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((2,), dtype="int32")
        user = HashedEmbedding(6, 3, 4)(inputs[:, 0])
        often = layers.Embedding(4, 4)(ops.minimum(inputs[:, 1], 3))
        seldom = layers.Dense(4)(layers.Embedding(8, 2)(inputs[:, 1]))
        film = ops.where(ops.expand_dims(inputs[:, 1] < 4, -1), often, seldom)
        rating = layers.Activation("sigmoid")(layers.Dot(axes=1)([user, film]))
        return keras.Model(inputs, rating)

    return Case(build, ratings, "adam", keras.losses.MeanSquaredError, ["mae"])
