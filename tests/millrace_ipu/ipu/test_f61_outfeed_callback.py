import re

import keras
import numpy as np

from millrace_ipu import ipu
from millrace_ipu.ipu.ipu_outfeed_queue import IPUOutfeedQueue
from millrace_ipu.ipu.outfeed_callback import OutfeedCallback
from millrace_ipu.ipu.outfeed_layers import Outfeed
from millrace_ipu.ipu.outfeed_wrapper import MaybeOutfeedQueue

ROWS, STEPS = 2, 4


def printed(capsys, rows_of_epochs, queue, callbacks):
    """Returns the output of one model that is fitted on several data sets in turn."""
    with ipu.ipu_strategy.IPUStrategy().scope():
        layer = Outfeed(queue, name="taken")
        model = keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0), "mse", steps_per_execution=STEPS)
    actual = []
    for x in rows_of_epochs:
        capsys.readouterr()
        model.fit(x, x[:, :1], batch_size=ROWS, shuffle=False, verbose=0, callbacks=callbacks)
        actual.append(capsys.readouterr().out)
    return actual


def test_f61_the_table(system, capsys):
    system(1)
    fine = np.random.default_rng(0).normal(size=(STEPS * ROWS, 3)).astype("float32")
    broken = fine.copy()
    broken[3, 1] = np.nan
    infinite = fine.copy()
    infinite[0, 0] = -np.inf
    queue = IPUOutfeedQueue()
    callback = OutfeedCallback(queue, name="What goes in")
    texts = printed(capsys, (fine, broken, infinite), queue, [callback])
    # Index 5, Name longest + 5, four of 12, two of 7: one space between them, and padding kept.
    header = "Index Name       Mean         Std          Minimum      Maximum      NaNs    infs   "
    numbers = [f"{f(fine):.6f}".ljust(12) for f in (np.mean, np.std, np.min, np.max)]
    assert texts[0].split("\n") == [
        "",
        "What goes in",
        "key: taken shape: (4, 2, 3)",
        "Epoch 1 - Summary Stats",
        header,
        " ".join(["0".ljust(5), "taken".ljust(10), *numbers, "False  ", "False  "]),
        "",
    ]
    assert (
        texts[1].split("\n")[-2].endswith(" ".join(["nan".ljust(12)] * 4 + ["True   ", "False  "]))
    )
    assert re.search(r"-inf +\S+ +False   True   $", texts[2].split("\n")[-2])
    assert [row.has_nans for row in callback.history] == [False, True, False]


def test_f61_an_unused_queue(system, capsys):
    system(1)
    x = np.zeros((STEPS * ROWS, 3), "float32")
    callbacks = [OutfeedCallback(IPUOutfeedQueue()), OutfeedCallback(MaybeOutfeedQueue(), "Maybe")]
    (text,) = printed(capsys, [x], IPUOutfeedQueue(), callbacks)
    assert text == "\nOutfeedCallback\nNo data enqueued\n\nMaybe\nNo data enqueued\n"
