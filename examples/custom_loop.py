"""A custom training loop: two competing networks in one compiled program.

A generator learns to turn noise into points on a circle, and a discriminator to tell them from real
ones: two models, two optimizers and two gradients in one step, which does not fit into `fit`. A
thread prints the distance of the points from the circle while the program runs.
"""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import sys
import threading
import time

import keras
import numpy as np

STEPS, ROWS = (200, 64) if "--small" in sys.argv else (2_400, 256)
EVERY = STEPS // 8

layers = keras.layers


def real_points():
    """Yields batches of points near a circle, and of noise."""
    random = np.random.default_rng(0)
    while True:
        angle = random.uniform(0, 2 * np.pi, ROWS)
        points = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        noise = random.standard_normal((ROWS, 4), np.float32)
        yield points.astype("float32"), noise


def network(inputs, outputs):
    """Returns a small network."""
    hidden = [layers.Dense(64, "leaky_relu") for _ in range(2)]
    return keras.Sequential([keras.Input((inputs,)), *hidden, layers.Dense(outputs)])


strategy = millrace.Strategy(devices=1)
with strategy.scope():
    generator, discriminator = network(4, 2), network(2, 1)
    of_generator, of_discriminator = (keras.optimizers.Adam(5e-4, beta_1=0.5) for _ in range(2))
    loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
    distance = keras.metrics.Mean()

infeed = millrace.InfeedQueue(real_points)
watched = millrace.OutfeedQueue()


def step(points, noise):
    """Trains both networks for one step."""
    ones, zeros = keras.ops.ones((ROWS, 1)), keras.ops.zeros((ROWS, 1))

    def loss_of_discriminator():
        made = generator(noise)
        return loss_of(ones, discriminator(points)) + loss_of(zeros, discriminator(made))

    def loss_of_generator():
        made = generator(noise)
        return loss_of(ones, discriminator(made)), made

    weights = discriminator.trainable_variables
    loss, gradients = millrace.value_and_grad(loss_of_discriminator, weights)
    of_discriminator.apply(gradients, weights)

    weights = generator.trainable_variables
    (_, made), gradients = millrace.value_and_grad(loss_of_generator, weights)
    of_generator.apply(gradients, weights)

    off = keras.ops.mean(keras.ops.abs(keras.ops.norm(made, axis=1) - 1))
    distance.update_state(off)
    watched.enqueue({"loss": loss, "distance": off})


@millrace.compile
def train(steps):
    """Trains both networks, and returns the mean distance."""
    millrace.repeat(steps, step, infeed=infeed)
    return distance.result()


def watch():
    """Prints some elements as they arrive."""
    seen = 0
    while seen < STEPS:
        for element in watched:
            if seen % EVERY == 0:
                print(f"step {seen:5}  distance {element['distance']:.3f}", flush=True)
            seen += 1
        time.sleep(0.01)


thread = threading.Thread(target=watch)
thread.start()
mean = strategy.run(train, args=[STEPS])
thread.join()
infeed.close()
print(f"{train.compilations} program, mean distance {float(mean):.3f}")
