import re

import numpy as np
import pytest
from examples_of_ipu import load

from millrace_ipu import tensorflow as tf

HEADER = (
    "Index Name                         Mean         Std          Minimum      Maximum      "
    "NaNs    infs   "
)


@pytest.fixture(scope="module")
def tutorial():
    return load("mnist_inspection")


@pytest.fixture
def stub(tutorial, monkeypatch):
    """Replaces the data of the program by one batch of other digits, repeated."""

    def create_dataset(path, batches):
        random = np.random.default_rng(0)
        images = random.random((32, 28, 28, 1), np.float32)
        digits = random.integers(0, 10, 32).astype("float32")
        return tf.data.Dataset.from_tensors((images, digits)).repeat(batches)

    monkeypatch.setattr(tutorial, "create_dataset", create_dataset)


def blocks(text):
    """Returns the lines of each callback of each epoch, without those of Keras's progress."""
    lines = [line for line in text.split("\n") if not re.match(r"Epoch \d/|\d+/\d+ - ", line)]
    return [block.split("\n") for block in "\n".join(lines).strip("\n").split("\n\n")]


@pytest.mark.slow
def test_f63_the_program_as_it_is(tutorial, stub, capsys):
    tutorial.main([])
    actual = blocks(capsys.readouterr().out)
    assert len(actual) == 6
    for epoch, (gradients, activations) in enumerate(zip(actual[::2], actual[1::2], strict=True)):
        assert gradients[:5] == [
            "Gradients callback",
            "key: Dense_128/bias:0_grad shape: (125, 128)",
            "key: Dense_128/kernel:0_grad shape: (125, 256, 128)",
            f"Epoch {epoch + 1} - Summary Stats",
            HEADER,
        ]
        for row, name in zip(gradients[5:], ("bias:0_grad  ", "kernel:0_grad"), strict=True):
            number = r"-?\d+\.\d{6} +"
            flags = "False   False  "
            assert re.fullmatch(rf"\d     Dense_128/{name} +({number}){{4}}{flags}", row)
        # The original unpacks this option for pipelined models, too, which do not use it.
        assert activations == ["Single layer activations callback", "No data enqueued"]


@pytest.mark.parametrize(
    ("kind", "flag"),
    [
        ("Sequential", "--outfeed-pre-accumulated-gradients"),
        ("Model", "--no-gradient-accumulation"),
    ],
)
def test_f63_one_device(tutorial, stub, capsys, kind, flag):
    flags = ["--model-type", kind, "--no-pipelining", "--read-activations", flag]
    tutorial.main([*flags, "--small", "--epochs", "1"])
    first, unused, read = blocks(capsys.readouterr().out)
    assert first[2] == "key: Dense_128/kernel:0_grad shape: (20, 784, 128)"
    assert unused == ["Multi-layer activations callback", "No data enqueued"]
    assert read[0] == "Single layer activations callback"
    assert read[1] == "key: Dense_128_acts shape: (20, 32, 128)"


def test_f63_a_pipelined_model_of_calls(tutorial, stub, capsys):
    tutorial.main(["--model-type", "Model", "--small", "--epochs", "1", "--read-activations"])
    first, unused, read = blocks(capsys.readouterr().out)
    assert first[2] == "key: Dense_128/kernel:0_grad shape: (5, 256, 128)"
    assert unused == ["Single layer activations callback", "No data enqueued"]
    assert read[:3] == [
        "Multi-layer activations callback",
        "key: Dense_128_acts shape: (20, 32, 128)",
        "key: Dense_10_acts shape: (20, 32, 10)",
    ]


def test_f63_another_type(tutorial):
    with pytest.raises(ValueError, match="'Graph' is no proper model type"):
        tutorial.main(["--model-type", "Graph"])
