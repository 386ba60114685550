"""Two competing networks in one compiled program: two optimizers in a step do not fit into `fit`.

The generator learns to turn noise into points on a circle, the discriminator to tell them from real
ones.
"""

import millrace  # before Keras: it makes JAX the backend
import keras
import numpy as np
from keras import ops


def network(inputs, outputs):
    hidden = [keras.layers.Dense(64, "leaky_relu") for _ in range(2)]
    return keras.Sequential([keras.Input((inputs,)), *hidden, keras.layers.Dense(outputs)])


def batches():
    random = np.random.default_rng(0)
    while True:
        angle = random.uniform(0, 2 * np.pi, 256)
        yield np.stack([np.cos(angle), np.sin(angle)], axis=1), random.normal(size=(256, 4))


keras.utils.set_random_seed(0)
generator, discriminator = network(4, 2), network(2, 1)
first, second = [keras.optimizers.Adam(5e-4, beta_1=0.5) for _ in range(2)]
loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
infeed, distances = millrace.InfeedQueue(batches), millrace.OutfeedQueue()


def step(points, noise):
    ones = ops.ones((256, 1))

    def tells():  # real points from made ones
        fake = discriminator(generator(noise))
        return loss_of(ones, discriminator(points)) + loss_of(0 * ones, fake)

    def deceives():
        return loss_of(ones, discriminator(generator(noise)))

    for trained, optimizer, loss in (discriminator, first, tells), (generator, second, deceives):
        _, gradients = millrace.value_and_grad(loss, trained.trainable_variables)
        optimizer.apply(gradients, trained.trainable_variables)
    distances.enqueue(ops.mean(ops.abs(ops.norm(generator(noise), axis=1) - 1)))


millrace.repeat(500, step, infeed=infeed)
infeed.close()
for number, distance in enumerate(distances.dequeue()):  # also while the program runs
    if number % 100 == 99:
        print(f"step {number + 1}: distance from the circle {distance:.3f}")
