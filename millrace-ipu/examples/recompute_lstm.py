"""A long LSTM as several short ones that keep only their states for the backward pass.

Stage 0 calls one LSTM per slice of a sequence; between two calls its state passes a
`RecomputationCheckpoint`. Stage 1 is a dense layer. Both are on one device.

    python millrace-ipu/examples/recompute_lstm.py --seq-len 2048 --checkpoints 7
"""

from millrace_ipu import ipu  # isort: skip - first: it makes JAX the backend of Keras

import argparse
import itertools

import numpy as np

from millrace_ipu import tensorflow as tf
from millrace_ipu.ipu.addons.keras.layers import PopnnLSTM, RecomputationCheckpoint
from millrace_ipu.ipu.ops import pipelining_ops

FEATURES, UNITS, ROWS, COPIES = 512, 256, 16, 64


def create_model(length, checkpoints):
    inputs = tf.keras.layers.Input((length, FEATURES))
    with ipu.keras.PipelineStage(0):
        lstm = PopnnLSTM(UNITS, return_state=True)
        ends = [k * length // (checkpoints + 1) for k in range(checkpoints + 2)]
        outputs, state = [], None
        for begin, end in itertools.pairwise(ends):
            output, *state = lstm(inputs[:, begin:end], initial_state=state)
            outputs.append(output)
            if end < length:
                state = RecomputationCheckpoint()(state)
        x = tf.keras.layers.concatenate(outputs, axis=1) if checkpoints else outputs[0]
    with ipu.keras.PipelineStage(1):
        x = tf.keras.layers.Dense(1)(x)
    return tf.keras.Model(inputs, x)


def create_dataset(length):
    one = np.full((length, FEATURES), 1.0, np.float32), np.full(length, 0.2, np.float32)
    dataset = tf.data.Dataset.from_tensors(one).repeat(COPIES)
    return dataset.batch(ROWS, drop_remainder=True)


def configure():
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 1
    config.allow_recompute = True
    config.configure_ipu_system()


def compiled(model):
    steps = COPIES // ROWS
    mode = pipelining_ops.RecomputationMode.RecomputeAndBackpropagateInterleaved
    model.set_pipelining_options(
        gradient_accumulation_steps_per_replica=steps,
        device_mapping=[0, 0],
        pipeline_schedule=pipelining_ops.PipelineSchedule.Sequential,
        recomputation_mode=mode,
    )
    model.set_infeed_queue_options(prefetch_depth=1)
    model.compile(tf.keras.optimizers.SGD(0.001), loss="mse", steps_per_execution=steps)
    return model


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", type=int, default=7, help="number of states to keep")
    parser.add_argument("--seq-len", type=int, default=2048, help="steps of the sequence")
    parser.add_argument("--small", action="store_true", help="32 steps unless --seq-len is given")
    options = parser.parse_args(arguments)
    length = options.seq_len
    if options.small and length == parser.get_default("seq_len"):
        length = 32
    slices = options.checkpoints + 1
    if length % slices:
        print(
            f"A sequence of {length} steps can't be evenly divided into {slices} slices: code "
            "for two lengths is compiled, instead of one shared by all slices."
        )

    configure()
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = compiled(create_model(length, options.checkpoints))
        # Keras prints the line with `loss: ...`.
        model.fit(create_dataset(length), verbose=2)


if __name__ == "__main__":
    main()
