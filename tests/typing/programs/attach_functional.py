"""A Functional model, and an annotation for functions that take any attached model."""

import keras

import millrace


def accumulate(model: millrace.Attached, steps: int) -> None:
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=steps)
    model.compile(optimizer="sgd", loss="mse", steps_per_execution=4 * steps)


inputs = keras.Input((8,))
strategy = millrace.Strategy()
model = strategy.attach(keras.Model(inputs, keras.layers.Dense(1)(inputs)))
accumulate(model, 4)
accumulate(model, "4")  # pyright: ignore[reportArgumentType]
accumulate(7, 4)  # pyright: ignore[reportArgumentType]
strategy.attach("model")  # pyright: ignore[reportArgumentType]
