"""Synchronized batch statistics in float64; run by `test_synchronized_statistics.py`."""

import types

import keras
import test_synchronized_statistics as cases
from keras.src.layers.normalization import batch_normalization  # noqa: TID251

keras.config.set_floatx("float64")
# Keras computes BatchNormalization in float32, unless told otherwise here.
backend = batch_normalization.backend
names = {name: getattr(backend, name) for name in dir(backend) if not name.startswith("__")}
names["result_type"] = lambda *dtypes: "float64"
batch_normalization.backend = types.SimpleNamespace(**names)
for make in (cases.unet, cases.channels_first):
    for rows in (24, 29):
        x, y = cases.images(rows)
        cases.assert_as_big_batch(
            make, (x.astype("float64"), y), rtol=1e-12, loss="sparse_categorical_crossentropy"
        )
        print(make.__name__, "agrees")
