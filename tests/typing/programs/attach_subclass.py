"""A class of the user's own: one name for its attributes, one for the methods of millrace."""

from typing import assert_type

import keras

import millrace


class Classifier(keras.Model):
    def __init__(self, classes: int):
        super().__init__()
        self.classes = classes
        self.dense = keras.layers.Dense(classes)

    def call(self, x):
        return self.dense(x)

    def names(self) -> list[str]:
        return [f"class {number}" for number in range(self.classes)]


strategy = millrace.Strategy()
with strategy.scope():
    classifier = Classifier(10)
    model = strategy.attach(classifier)

assert_type(classifier.names(), list[str])
model.names()  # accepted, but of no known type
model.set_recomputation_options(budget="1.5GB")
model.set_recomputation_options(budget=[1.5])  # pyright: ignore[reportArgumentType]
