"""Programs with their own copies of the tutorial's modules for outfeeds."""

import pytest
from idioms import idiom

from case_marks import slow

TRAINS = """
import numpy as np
from tensorflow import keras
from tensorflow.python import ipu
from {where}outfeed_optimizer import OutfeedOptimizer, OutfeedOptimizerMode
from {where}outfeed_callback import OutfeedCallback
from {where}outfeed_wrapper import MaybeOutfeedQueue
import {where}outfeed_layers as outfeed_layers

with ipu.ipu_strategy.IPUStrategy().scope():
    gradients = MaybeOutfeedQueue(filters=["second"])
    activations = MaybeOutfeedQueue()
    model = keras.Sequential(
        [
            keras.Input((4)),
            keras.layers.Dense(3, name="first"),
            outfeed_layers.MaybeOutfeed(activations, final_outfeed=True, name="first_acts"),
            keras.layers.Dense(1, name="second"),
        ]
    )
    optimizer = OutfeedOptimizer(keras.optimizers.SGD(0.1), gradients, model=model)
    model.compile(optimizer, "mse", steps_per_execution=2)
    callbacks = [OutfeedCallback(gradients, name="of gradients"), OutfeedCallback(activations)]
    model.fit(np.ones((8, 4)), np.ones((8, 1)), 4, verbose=0, callbacks=callbacks)
"""

OPTIMIZER = """
from keras.optimizer_v2 import optimizer_v2
from tensorflow.python.training.optimizer import Optimizer


class OutfeedOptimizerMode:
    AFTER_COMPUTE = 1


class OutfeedOptimizer(Optimizer):
    def __init__(self, optimizer, queue, model=None):
        assert isinstance(optimizer, optimizer_v2.OptimizerV2)
"""

LAYERS = """
import tensorflow as tf


class MaybeOutfeed(tf.keras.layers.Layer):
    def call(self, inputs):
        if tf.compat.v1.get_default_graph().name.endswith("_scratch_graph"):
            return inputs
"""

WRAPPER = """
class MaybeOutfeedQueue:
    enqueued = False
"""


@idiom("Queues", "copies of the tutorial's `outfeed_*.py`, written against `keras.optimizer_v2`")
@pytest.mark.parametrize("where", ["", slow("tools.")])
def test_copies_against_private_keras(program, tmp_path, caplog, where):
    directory = tmp_path / where.rstrip(".")
    directory.mkdir(exist_ok=True)
    copies = {"outfeed_optimizer": OPTIMIZER, "outfeed_layers": LAYERS, "outfeed_wrapper": WRAPPER}
    for name, text in copies.items():
        (directory / f"{name}.py").write_text(text)
    if where:
        (directory / "__init__.py").write_text("")
        (directory / "outfeed_callback.py").write_text(
            "from millrace_ipu.ipu.outfeed_callback import OutfeedCallback\n"
        )
    printed = program(TRAINS.format(where=where))
    assert "of gradients" in printed
    assert "second" in printed
    assert "first_acts" in printed
    said = [record.message for record in caplog.records if "private Keras" in record.message]
    assert len(said) == 1
    assert "outfeed_layers.py, " in said[0]
    assert "outfeed_optimizer.py, " in said[0]
    assert "outfeed_wrapper.py: written against" in said[0]


@idiom("Queues", "a module `outfeed_callback.py` of one's own, against public names: it is run")
def test_a_module_that_runs_is_run(program, caplog):
    printed = program(
        """
        from outfeed_callback import OutfeedCallback
        import outfeed_wrapper
        print(OutfeedCallback.NAME, outfeed_wrapper.__name__)
        """,
        outfeed_callback="""
        from tensorflow.keras.callbacks import Callback


        class OutfeedCallback(Callback):
            NAME = "mine"
        """,
    )
    assert printed == "mine millrace_ipu.ipu.tutorial\n"
    assert caplog.messages == []


def test_a_module_with_more_than_the_tutorial_is_the_programs_own(program):
    printed = program(
        "import outfeed_optimizer; print(outfeed_optimizer.Another.__name__)",
        outfeed_optimizer="""
        from keras.optimizer_v2 import optimizer_v2


        class OutfeedOptimizer(optimizer_v2.OptimizerV2):
            pass


        class Another:
            pass
        """,
    )
    assert printed == "Another\n"


@idiom("Imports", "`from maybe_outfeed_queue import MaybeOutfeedQueue`")
def test_the_older_name_of_the_queue(program):
    assert (
        program("""
        from maybe_outfeed_queue import MaybeOutfeedQueue
        print(MaybeOutfeedQueue(filters=["a"]).enqueued)
        """)
        == "False\n"
    )


def test_copies_that_a_program_does_not_import_are_not_spoken_of(program, caplog):
    program("import tensorflow as tf\nprint(tf.__version__)\n", outfeed_optimizer=OPTIMIZER)
    assert caplog.messages == []
