"""Digests of what training leaves, for changes that must not change a bit.

Ten trainings of 20 updates, and the bytes of all weights, optimizer variables and losses after
them. Run it on two trees and compare what it prints:

    python tests/digests.py > before.txt
    python tests/digests.py --compare before.txt       # exit status 1 if a digest differs

Bits hold for one machine, one version of JAX and one of Keras: so nothing is kept in the tree.
"""

import millrace  # isort: skip - it makes JAX the backend of Keras

import argparse
import hashlib
import pathlib
import sys
from collections.abc import Callable

import jax
import keras
import numpy as np
from keras import layers

UPDATES = 20
millrace.Strategy(devices="cpu:4", cache_dir=None)  # before JAX starts, which fixes the number
random = np.random.default_rng(0)


def fit(model: keras.Model, x: object, y: object, rows: int, **options: object) -> list[float]:
    history = model.fit(x, y, batch_size=rows, epochs=2, verbose=0, shuffle=True, **options)
    return history.history["loss"]


def compiled(model: keras.Model, steps: int, optimizer: object = "adam", **more: object) -> None:
    model.compile(
        optimizer=optimizer, loss="mse", metrics=["mae"], steps_per_execution=steps, **more
    )


def digest(model: keras.Model, losses: list[float]) -> str:
    sha = hashlib.sha256()
    for value in [*model.weights, *model.optimizer.variables]:
        sha.update(np.asarray(keras.ops.convert_to_numpy(value.value)).tobytes())
    sha.update(np.float64(losses).tobytes())
    return sha.hexdigest()[:16]


def mlp(width: int = 32, depth: int = 4, dropout: float = 0.2) -> keras.Model:
    hidden = [
        layer
        for _ in range(depth)
        for layer in (layers.Dense(width, "tanh"), layers.Dropout(dropout))
    ]
    return keras.Sequential([keras.Input((16,)), *hidden, layers.Dense(4)])


def table(rows: int) -> tuple[np.ndarray, np.ndarray]:
    x = random.standard_normal((rows, 16), dtype="float32")
    return x, np.tanh(x[:, :4])


def plain() -> tuple[keras.Model, list[float]]:
    with millrace.Strategy(devices="cpu:1", cache_dir=None).scope():
        model = mlp()
    compiled(model, 5)
    return model, fit(model, *table(80), 8)


def convolutions() -> tuple[keras.Model, list[float]]:
    with millrace.Strategy(devices="cpu:1", cache_dir=None).scope():
        model = keras.Sequential(
            [
                keras.Input((8, 8, 3)),
                layers.Conv2D(8, 3, use_bias=False),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.Conv2D(8, 3),
                layers.GlobalAveragePooling2D(),
                layers.Dropout(0.1),
                layers.Dense(4),
            ]
        )
    compiled(model, 4, keras.optimizers.SGD(0.05, momentum=0.9))
    x = random.standard_normal((80, 8, 8, 3), dtype="float32")
    return model, fit(model, x, table(80)[1], 8)


def recurrent() -> tuple[keras.Model, list[float]]:
    with millrace.Strategy(devices="cpu:1", cache_dir=None).scope():
        inputs = keras.Input((12, 16))
        hidden = layers.LSTM(16, return_sequences=True, dropout=0.1)(inputs)
        hidden = millrace.layers.RecomputationCheckpoint()(hidden)
        hidden = layers.GRU(16)(hidden)
        hidden = millrace.layers.RecomputationCheckpoint()(hidden)
        model = keras.Model(inputs, layers.Dense(4)(hidden))
        model.set_recomputation_options(mode="recompute_and_backpropagate_interleaved")
    compiled(model, 5)
    x = random.standard_normal((80, 12, 16), dtype="float32")
    return model, fit(model, x, table(80)[1], 8)


def attention() -> tuple[keras.Model, list[float]]:
    """A budget of memory: segments are chosen by cost, and run again."""
    with millrace.Strategy(devices="cpu:1", cache_dir=None).scope():
        inputs = keras.Input((12, 16))
        hidden = inputs
        for _ in range(3):
            attended = layers.MultiHeadAttention(2, 8, dropout=0.1)(hidden, hidden)
            hidden = layers.LayerNormalization()(hidden + attended)
            hidden = hidden + layers.Dense(16)(layers.Dense(64, "gelu")(hidden))
        model = keras.Model(inputs, layers.Dense(4)(layers.GlobalAveragePooling1D()(hidden)))
        model.set_recomputation_options(budget="2.2MB")
    compiled(model, 5, keras.optimizers.AdamW(1e-3, clipnorm=1.0))
    x = random.standard_normal((320, 12, 16), dtype="float32")
    return model, fit(model, x, table(320)[1], 32)


def accumulated() -> tuple[keras.Model, list[float]]:
    with millrace.Strategy(devices="cpu:1", cache_dir=None).scope():
        model = mlp()
        model.set_gradient_accumulation_options(
            gradient_accumulation_steps_per_replica=4,
            gradient_accumulation_reduction_method="running_mean",
        )
    compiled(model, 8, keras.optimizers.Adam(1e-2, global_clipnorm=1.0))
    return model, fit(model, *table(320), 8)


def replicas() -> tuple[keras.Model, list[float]]:
    with millrace.Strategy(devices="cpu:2", cache_dir=None).scope():
        model = mlp()
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
        model.set_replication_options(replicated_optimizer_state_sharding=True)
    compiled(model, 8)
    return model, fit(model, *table(320), 8)


def pipelined(
    schedule: str, devices: int, stages: list[int], **options: object
) -> Callable[[], tuple[keras.Model, list[float]]]:
    def run() -> tuple[keras.Model, list[float]]:
        with millrace.Strategy(devices=f"cpu:{devices}", cache_dir=None).scope():
            model = mlp()
            model.set_pipeline_stage_assignment(stages)
            model.set_pipelining_options(
                gradient_accumulation_steps_per_replica=6, pipeline_schedule=schedule, **options
            )
        replicas = devices // (max(stages) + 1) if schedule != "looped" else 1
        compiled(model, 6 * replicas)
        return model, fit(model, *table(480 * replicas), 8)

    return run


def functional_pipeline() -> tuple[keras.Model, list[float]]:
    """A skip connection past a stage, a weight of two stages, and recomputation of stages."""
    with millrace.Strategy(devices="cpu:3", cache_dir=None).scope():
        shared = layers.Dense(16, "tanh")
        inputs = keras.Input((16,))
        with millrace.PipelineStage(0):
            first = shared(inputs)
        with millrace.PipelineStage(1):
            second = layers.BatchNormalization()(layers.Dense(16)(first))
        with millrace.PipelineStage(2):
            outputs = layers.Dense(4)(shared(second + first))
        model = keras.Model(inputs, outputs)
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=4,
            pipeline_schedule="gpipe",
            recomputation_mode="recompute_then_backpropagate",
        )
    compiled(model, 4)
    return model, fit(model, *table(320), 8)


def tapped() -> tuple[keras.Model, list[float]]:
    queue = millrace.OutfeedQueue()
    with millrace.Strategy(devices="cpu:1", cache_dir=None).scope():
        inputs = keras.Input((16,))
        hidden = millrace.layers.Outfeed(queue)(layers.Dense(16, "relu")(inputs))
        model = keras.Model(inputs, layers.Dense(4)(hidden))
    compiled(model, 5)
    statistics = millrace.callbacks.TensorStatistics(activations=("*",), gradients=("*",))
    losses = fit(model, *table(80), 8, callbacks=[statistics])
    sums = [float(np.sum(leaf, dtype="float64")) for leaf in jax.tree.leaves(queue.dequeue())]
    return model, [*losses, *sums]


def own_loop() -> tuple[keras.Model, list[float]]:
    with millrace.Strategy(devices="cpu:1", cache_dir=None).scope():
        model = mlp(dropout=0.0)
    optimizer = keras.optimizers.Adam(1e-2)
    optimizer.build(model.trainable_variables)
    model.compile(optimizer=optimizer, loss="mse")
    x, y = table(16)

    def body(total):
        def loss():
            return keras.ops.mean(keras.ops.square(model(x, training=True) - y))

        value, gradients = millrace.value_and_grad(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return total + value

    return model, [float(millrace.repeat(UPDATES, body, 0.0))]


CASES = {
    "plain": plain,
    "convolutions": convolutions,
    "recurrent, recomputed": recurrent,
    "attention, budget": attention,
    "accumulated": accumulated,
    "replicas, sharded state": replicas,
    "pipeline 1f1b": pipelined("1f1b", 3, [0, 0, 0, 1, 1, 1, 2, 2, 2]),
    "pipeline zero_bubble": pipelined(
        "zero_bubble", 2, [0, 0, 0, 0, 0, 1, 1, 1, 1], gradient_accumulation_dtype="float32"
    ),
    "pipeline looped": pipelined(
        "looped", 2, [0, 0, 0, 1, 1, 2, 2, 3, 3], device_mapping=[0, 1, 0, 1]
    ),
    "pipeline of two replicas": pipelined("1f1b", 4, [0, 0, 0, 0, 0, 1, 1, 1, 1]),
    "functional pipeline": functional_pipeline,
    "tapped": tapped,
    "own loop": own_loop,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compare", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--only", default="", help="names that contain this")
    arguments = parser.parse_args()
    before = {}
    if arguments.compare:
        lines = arguments.compare.read_text().splitlines()
        before = {line[17:].split(": ")[0]: line[:16] for line in lines}
    differ = 0
    for name, case in CASES.items():
        if arguments.only not in name:
            continue
        global random
        random = np.random.default_rng(0)
        keras.utils.set_random_seed(1)
        model, losses = case()
        value = digest(model, losses)
        same = before.get(name, value) == value
        differ += not same
        print(f"{value} {name}: {losses[-1]:.9g}{'' if same else ' DIFFERS'}", flush=True)
    return differ > 0


if __name__ == "__main__":
    sys.exit(main())
