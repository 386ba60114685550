"""Six ways to compile twice by accident: each is shown, with its cause, and then cured."""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import keras
import numpy as np
from keras import layers

from millrace.errors import PlanError, RecompilationError

strategy = millrace.Strategy(devices=1, cache_dir=None)  # shows every compilation
random = np.random.default_rng(0)
x, y = random.random((100, 8), np.float32), random.random((100, 1), np.float32)


def new_model(first=None):
    model = strategy.attach(
        keras.Sequential([keras.Input((8,)), first or layers.Dense(16, "relu"), layers.Dense(1)])
    )
    model.compile("sgd", "mse", steps_per_execution=4)
    return model


def compiled(what):
    """Runs a function, and returns the records of its compilations."""
    before = len(strategy.compile_log)
    what()
    return [record for record in strategy.compile_log[before:] if record.is_executable]


def show(title, records, expected):
    """Prints compilations and their causes; fails if their number is wrong."""
    print(f"  {title}: {len(records)}")
    for record in records:
        print(f"    {record.program}: {record.cause}")
        if record.remedy:
            print(f"      {record.remedy}")
    if len(records) != expected:
        raise SystemExit(f"{expected} were expected")


print("1. Scopes within scopes, and unnecessary strategies")
try:
    with strategy.scope(), millrace.Strategy(devices=1).scope():
        pass
except PlanError as error:
    print(f"  refused: {error}")
model = new_model()
show("the first fit", compiled(lambda: model.fit(x[:96], y[:96], verbose=0)), 1)
show("another fit of the same model", compiled(lambda: model.fit(x[:96], y[:96], verbose=0)), 0)

print("\n2. A last batch with fewer rows")
show("100 rows in batches of 32", compiled(lambda: model.fit(x, y, verbose=0)), 1)
model = new_model()
model.fit(x[:96], y[:96], verbose=0)
show("without the remainder", compiled(lambda: model.fit(x[:96], y[:96], verbose=0)), 0)

print("\n3. Constants that change")


def scale_by(factor):
    @millrace.compile
    def scaled(rows):
        return factor * rows.sum()

    return scaled


def in_the_closure():
    for factor in (10.0, 0.3):
        strategy.run(scale_by(factor), [x])


@millrace.compile
def scaled_by_argument(rows, factor):
    return factor * rows.sum()


def as_an_argument():
    for factor in (10.0, 0.3):
        strategy.run(scaled_by_argument, [x, np.float32(factor)])


show("in the closure of a function", compiled(in_the_closure), 2)
show("as an argument", compiled(as_an_argument), 1)

print("\n4. Weights and rates are never constants")


def change_weights():
    model.set_weights([weight + 0.1 for weight in model.get_weights()])
    model.optimizer.learning_rate = 0.001
    model.fit(x[:96], y[:96], verbose=0)


show("new weights, another learning rate", compiled(change_weights), 0)

print("\n5. Programs that alternate")


def alternate():
    for _ in range(3):
        model.train_on_batch(x[:32], y[:32])
        model.test_on_batch(x[:32], y[:32])


alternate()
before = strategy.statistics().switches
alternate()
print(f"  training and testing alternately: {strategy.statistics().switches - before} switches")


@millrace.compile
def train_and_measure(rows, targets):
    loss, gradients = millrace.value_and_grad(
        lambda: keras.ops.mean(keras.ops.square(model(rows) - targets)), model.trainable_variables
    )
    model.optimizer.apply(gradients, model.trainable_variables)
    return loss, keras.ops.mean(keras.ops.square(model(rows) - targets))


strategy.run(train_and_measure, [x[:32], y[:32]])
before = strategy.statistics().switches
for _ in range(3):
    strategy.run(train_and_measure, [x[:32], y[:32]])
print(f"  both in one function: {strategy.statistics().switches - before} switches")

print("\n6. A difference that only the program shows")


class Noisy(layers.Layer):
    """Adds a number that differs in each trace."""

    def call(self, rows):
        """Adds the number to all rows."""
        return rows + np.float32(random.random())


noisy = new_model(Noisy())
noisy.fit(x[:96], y[:96], verbose=0)
noisy.compile("sgd", "mse", steps_per_execution=4)
show("a number drawn while tracing", compiled(lambda: noisy.fit(x[:96], y[:96], verbose=0)), 1)
steady = new_model(layers.GaussianNoise(1.0))
steady.fit(x[:96], y[:96], verbose=0)
steady.compile("sgd", "mse", steps_per_execution=4)
records = compiled(lambda: steady.fit(x[:96], y[:96], verbose=0))
show("keras.random instead", records, 1)
print(f"    ... which is {records[0].origin.value}: nothing was compiled")

print("\nNo compilation where it is forbidden, as within a benchmark")
model.fit(x[:96], y[:96], verbose=0)
with strategy.no_recompile():
    model.fit(x[:96], y[:96], verbose=0)
    try:
        model.fit(x[:90], y[:90], verbose=0)
    except RecompilationError as error:
        print(f"  refused: {error}")
