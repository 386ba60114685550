"""A graph network on graphs of any size, packed into rows of one shape.

    graphs   3 nodes | 7 nodes | 2 nodes | 5 nodes | ...      ragged: each shape would compile anew
    packed   [7 + 5 nodes], [3 + 2 + 4 + 2 nodes], ...        one shape, few empty places

Each row holds several whole graphs: their nodes, their edges, and for each node the number of its
graph within the row. A program for rows of one shape is compiled once, however many sizes of graphs
there are. The network passes messages along the edges, adds up the nodes of each graph, and learns
the number of triangles of a graph. Plain Keras trains the same model for comparison; losses should
agree to 1e-6.
"""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import argparse
import sys
from typing import Any, NamedTuple

import keras
import numpy as np

ops = keras.ops
NODES, EDGES, GRAPHS = 48, 160, 8  # places for them in one row
BATCH = 16  # rows


class Graph(NamedTuple):
    """A graph without directions; each edge is listed in both."""

    nodes: int
    edges: np.ndarray  # [edges, 2], int32: from which node to which
    triangles: int


def draw_graph(random: np.random.Generator) -> Graph:
    """Draws a graph of 3 to 16 nodes."""
    nodes = int(random.integers(3, 17))
    linked = np.triu(random.random((nodes, nodes)) < 2.5 / nodes, 1)
    linked = linked | linked.T
    counts = linked.astype("int64")
    return Graph(
        nodes, np.argwhere(linked).astype("int32"), int(np.trace(counts @ counts @ counts)) // 6
    )


def pack(graphs: list[Graph]) -> list[list[Graph]]:
    """Packs graphs into rows: the largest first, each into the first row with places for it."""
    rows: list[list[Graph]] = []
    for graph in sorted(graphs, key=lambda graph: -graph.nodes):
        for row in rows:
            nodes = sum(each.nodes for each in row) + graph.nodes
            edges = sum(len(each.edges) for each in row) + len(graph.edges)
            if nodes <= NODES and edges <= EDGES and len(row) < GRAPHS:
                row.append(graph)
                break
        else:
            rows.append([graph])
    return rows


def as_arrays(rows: list[list[Graph]]) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Returns the inputs of rows, their targets, and the weights: 0 for places without a graph.

    Empty edges lead from node 0 to the place after the last node, which is cut off, and empty
    nodes belong to the place after the last graph.
    """
    sources = np.zeros((len(rows), EDGES), "int32")
    targets = np.full((len(rows), EDGES), NODES, "int32")
    owners = np.full((len(rows), NODES), GRAPHS, "int32")
    degrees = np.zeros((len(rows), NODES, 1), "float32")
    triangles = np.zeros((len(rows), GRAPHS, 1), "float32")
    weights = np.zeros((len(rows), GRAPHS), "float32")
    for index, row in enumerate(rows):
        node = edge = 0
        for number, graph in enumerate(row):
            ends = slice(edge, edge + len(graph.edges))
            sources[index, ends], targets[index, ends] = node + graph.edges.T
            owners[index, node : node + graph.nodes] = number
            triangles[index, number], weights[index, number] = graph.triangles, 1.0
            node, edge = node + graph.nodes, edge + len(graph.edges)
        np.add.at(degrees[index, :, 0], sources[index, :edge], 1.0)
    inputs = {"degrees": degrees, "sources": sources, "targets": targets, "owners": owners}
    return inputs, triangles, weights


class SumByIndex(keras.layers.Layer):
    """Adds values `[rows, places, width]` by the index of each, `[rows, places]`.

    The result is `[rows, count, width]`; values with the index `count` are left out.
    """

    def __init__(self, count: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.count = count

    def call(self, values, index):
        rows, size = ops.shape(values)[0], self.count + 1
        offsets = ops.arange(rows, dtype="int32")[:, None] * size
        flat = ops.reshape(values, (-1, values.shape[-1]))
        sums = ops.segment_sum(flat, ops.reshape(index + offsets, (-1,)), rows * size)
        return ops.reshape(sums, (rows, size, values.shape[-1]))[:, : self.count]


class TakeByIndex(keras.layers.Layer):
    """Takes values `[rows, places, width]` at an index `[rows, number]`, at most the last one."""

    def call(self, values, index):
        index = ops.minimum(index, values.shape[1] - 1)
        return ops.take_along_axis(values, index[..., None], axis=1)


def build(width: int, depth: int) -> keras.Model:
    """Builds a network of `depth` rounds of messages."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    degrees = keras.Input((NODES, 1), name="degrees")
    sources = keras.Input((EDGES,), dtype="int32", name="sources")
    targets = keras.Input((EDGES,), dtype="int32", name="targets")
    owners = keras.Input((NODES,), dtype="int32", name="owners")
    x = layers.Dense(width, "relu", name="encoder")(degrees)
    for number in range(depth):
        at_source, at_target = TakeByIndex()(x, sources), TakeByIndex()(x, targets)
        message = layers.Concatenate()([at_source, at_target])
        message = layers.Dense(width, "relu", name=f"message_{number}")(message)
        change = layers.Concatenate()([x, SumByIndex(NODES)(message, targets)])
        change = layers.Dense(width, "relu", name=f"update_{number}")(change)
        x = layers.LayerNormalization()(x + change)
    x = SumByIndex(GRAPHS)(x, owners)
    x = layers.Dense(width, "relu", name="decoder")(x)
    triangles = layers.Dense(1, "softplus", name="triangles")(x)
    return keras.Model([degrees, sources, targets, owners], triangles, name="graph_network")


def train(model: keras.Model, data: Any, epochs: int) -> list[float]:
    """Trains a model, and returns its losses."""
    x, y, weights = data
    model.compile(keras.optimizers.Adam(0.003), "huber", steps_per_execution=8)
    keras.utils.set_random_seed(1)  # of the order of rows
    history = model.fit(x, y, BATCH, epochs, sample_weight=weights, verbose=0)
    return history.history["loss"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--depth", type=int, default=3, help="rounds of messages")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--small", action="store_true", help="few graphs, for a quick run")
    options = parser.parse_args()
    width, depth, epochs, number = options.width, options.depth, options.epochs, 4000
    if options.small:
        width, depth, epochs, number = 16, 2, 3, 500
    random = np.random.default_rng(0)
    graphs = [draw_graph(random) for _ in range(number)]
    rows = pack(graphs)
    filled = sum(graph.nodes for graph in graphs) / (len(rows) * NODES)
    sizes = len({graph.nodes for graph in graphs})
    print(
        f"{number} graphs of {sizes} sizes in {len(rows)} rows, {filled:.0%} of the places filled"
    )
    rows = rows[: len(rows) // BATCH * BATCH]
    data = as_arrays([rows[index] for index in random.permutation(len(rows))])

    strategy = millrace.Strategy(devices=1)
    with strategy.scope():
        model = build(width, depth)
    losses = train(model, data, epochs)
    compilations = strategy.statistics().compilations
    plain = train(build(width, depth), data, epochs)
    for epoch, (loss, other) in enumerate(zip(losses, plain, strict=True)):
        print(f"epoch {epoch}: loss {loss:.7f}, plain Keras {other:.7f}")
    print(f"{compilations} programs compiled")
    if not np.allclose(losses, plain, rtol=1e-6, atol=0):
        print("the losses should agree to 1e-6")
        return 1
    if losses[-1] >= losses[0]:
        print("the loss should fall")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
