"""Graphs, padded to one shape: citations, molecules, walks."""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

from code_examples.example import Case, example, random_of

NODES, EDGES, WIDTH = 7, 12, 5


def graph(seed: int = 61) -> tuple[np.ndarray, np.ndarray]:
    """One graph: features of nodes, and the two ends of its edges."""
    random = random_of(seed)
    features = random.normal(size=(NODES, WIDTH)).astype("float32")
    ends = random.integers(0, NODES, (2, EDGES)).astype("int32")
    return features, ends


def nodes(rows: int) -> dict[str, Any]:
    random = random_of(62)
    x = random.integers(0, NODES, (rows,)).astype("int32")
    return {"x": x, "y": (x % 3).astype("int32")}


def ahead(width: int, rate: float = 0.2) -> keras.Sequential:
    """Normalizes, drops and maps, as each part of the network does."""
    return keras.Sequential(
        [layers.BatchNormalization(), layers.Dropout(rate), layers.Dense(width, "gelu")]
    )


class GraphConvolution(layers.Layer):
    """Sends messages along edges, sums them at nodes, and updates the nodes."""

    def __init__(self, width: int):
        super().__init__()
        self.prepare, self.update = ahead(width), ahead(width)

    def call(self, inputs: Any, training: bool = False) -> Any:
        features, ends, weights = inputs
        messages = self.prepare(ops.take(features, ends[1], axis=0), training=training)
        sums = ops.segment_sum(messages * weights[:, None], ends[0], num_segments=NODES)
        hidden = self.update(ops.concatenate([features, sums], axis=1), training=training)
        return ops.normalize(hidden, axis=-1)


class NodeClassifier(keras.Model):
    """The graph is part of the model; a batch is numbers of its nodes."""

    def __init__(self):
        super().__init__()
        self.features, self.ends = graph()
        self.edge_weights = np.full((EDGES,), 1 / EDGES, "float32")
        self.before, self.after = ahead(6), ahead(6)
        self.convolutions = [GraphConvolution(6), GraphConvolution(6)]
        self.scores = layers.Dense(3)

    def call(self, inputs: Any, training: bool = False) -> Any:
        hidden = self.before(self.features, training=training)
        for layer in self.convolutions:
            found = layer((hidden, self.ends, self.edge_weights), training=training)
            hidden = hidden + found
        hidden = self.after(hidden, training=training)
        return self.scores(ops.take(hidden, inputs, axis=0))


@example("Graphs", "graph convolution over citations; the graph is in the model")
def graph_convolution() -> Case:
    def loss() -> Any:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def metrics() -> list[Any]:
        return [keras.metrics.SparseCategoricalAccuracy(name="acc")]

    return Case(NodeClassifier, nodes, "adam", loss, metrics)


class GraphAttention(layers.Layer):
    """Weighs the neighbours of a node by attention."""

    def __init__(self, units: int):
        super().__init__()
        self.units = units

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(
            shape=(shape[0][-1], self.units), regularizer=keras.regularizers.L2(1e-3)
        )
        self.attention = self.add_weight(shape=(2 * self.units, 1), initializer="glorot_uniform")

    def call(self, inputs: Any) -> Any:
        features, ends = inputs
        states = ops.matmul(features, self.kernel)
        pairs = ops.concatenate([ops.take(states, ends[i], axis=0) for i in range(2)], axis=-1)
        scores = ops.leaky_relu(ops.matmul(pairs, self.attention))[:, 0]
        scores = ops.exp(ops.clip(scores, -2, 2))
        total = ops.segment_sum(scores, ends[0], num_segments=NODES)
        weights = scores / (ops.take(total, ends[0]) + 1e-7)
        neighbours = ops.take(states, ends[1], axis=0) * weights[:, None]
        return ops.segment_sum(neighbours, ends[0], num_segments=NODES)


@example("Graphs", "graph attention: several heads, one tensor of nodes for all rows")
def graph_attention() -> Case:
    class Network(keras.Model):
        def __init__(self):
            super().__init__()
            self.features, self.ends = graph()
            self.before = layers.Dense(6, "relu")
            self.heads = [GraphAttention(3), GraphAttention(3)]
            self.scores = layers.Dense(3)

        def call(self, inputs: Any) -> Any:
            hidden = self.before(self.features)
            heads = [head([hidden, self.ends]) for head in self.heads]
            hidden = hidden + ops.relu(ops.concatenate(heads, axis=-1))
            return ops.take(self.scores(hidden), inputs, axis=0)

    def optimizer(epsilon: float = 0, **more: Any) -> Any:  # SGD has none
        return keras.optimizers.SGD(0.3, momentum=0.9, **more)

    def loss() -> Any:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    return Case(Network, nodes, optimizer, loss, ["accuracy"])


class Messages(layers.Layer):
    """Messages along the bonds of padded molecules, and a GRU cell that takes them in."""

    def __init__(self, width: int = WIDTH, rounds: int = 2):
        super().__init__()
        self.rounds, self.width = rounds, width
        self.kernel = self.add_weight(shape=(2, width * width), initializer="glorot_uniform")
        self.cell = layers.GRUCell(width)

    def call(self, inputs: Any) -> Any:
        atoms, bonds, kinds = inputs
        shape = ops.shape(atoms)
        matrices = ops.reshape(
            ops.matmul(kinds, self.kernel), (*kinds.shape[:1], -1, self.width, self.width)
        )
        for _ in range(self.rounds):
            ends = ops.take_along_axis(atoms, bonds[..., 1:], axis=1)
            sent = ops.squeeze(ops.matmul(matrices, ends[..., None]), -1)
            to = ops.one_hot(bonds[..., 0], NODES, dtype=sent.dtype)
            sums = ops.einsum("rbn,rbw->rnw", to, sent)
            flat, _ = self.cell(
                ops.reshape(sums, (-1, self.width)), [ops.reshape(atoms, (-1, self.width))]
            )
            atoms = ops.reshape(flat, shape)
        return atoms


@example("Graphs", "message passing over padded molecules, with a readout under a mask")
def message_passing() -> Case:
    def build() -> keras.Model:
        atoms, there = keras.Input((NODES, WIDTH)), keras.Input((NODES,), dtype="bool")
        bonds = keras.Input((EDGES, 2), dtype="int32")
        kinds = keras.Input((EDGES, 2))
        hidden = Messages()([atoms, bonds, kinds])
        mask = ops.expand_dims(there, 1)
        attended = layers.MultiHeadAttention(2, WIDTH)(hidden, hidden, attention_mask=mask)
        hidden = layers.LayerNormalization()(hidden + attended)
        hidden = layers.GlobalAveragePooling1D()(hidden, mask=there)
        hidden = layers.Dense(6, "relu")(hidden)
        return keras.Model([atoms, bonds, kinds, there], layers.Dense(1, "sigmoid")(hidden))

    def data(rows: int) -> dict[str, Any]:
        random = random_of(63)
        there = np.arange(NODES) < random.integers(2, NODES + 1, (rows, 1))
        atoms = random.normal(size=(rows, NODES, WIDTH)).astype("float32") * there[..., None]
        bonds = random.integers(0, 2, (rows, EDGES, 2)).astype("int32")
        kinds = np.eye(2, dtype="float32")[random.integers(0, 2, (rows, EDGES))]
        y = random.integers(0, 2, (rows, 1)).astype("float32")
        return {"x": [atoms, bonds, kinds, there], "y": y}

    def metrics() -> list[Any]:
        return [keras.metrics.AUC(name="auc")]

    weights = {"class_weight": {0: 2.0, 1: 0.5}}
    return Case(build, data, "adam", keras.losses.BinaryCrossentropy, metrics, fit=weights)


@example("Graphs", "node2vec: two inputs into one embedding, the products of both")
def walks() -> Case:
    def build() -> keras.Model:
        inputs = {name: keras.Input((), name=name, dtype="int32") for name in ("target", "context")}
        embedding = layers.Embedding(
            NODES, 4, embeddings_initializer="he_normal", embeddings_regularizer="l2"
        )
        product = layers.Dot(axes=1, normalize=False)([embedding(inputs[n]) for n in inputs])
        return keras.Model(inputs, product)

    def data(rows: int) -> dict[str, Any]:
        random = random_of(64)
        pairs = random.integers(0, NODES, (2, rows)).astype("int32")
        y = random.integers(0, 2, (rows, 1)).astype("float32")
        return {"x": {"target": pairs[0], "context": pairs[1]}, "y": y}

    def loss() -> Any:
        return keras.losses.BinaryCrossentropy(from_logits=True)

    return Case(build, data, "adam", loss)
