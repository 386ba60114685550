import keras
import numpy as np
import pytest
from examples_of_ipu import load

from millrace_ipu import ipu

LENGTH = 12


@pytest.fixture
def script(monkeypatch):
    """The program, with a small layer."""
    script = load("recompute_lstm")
    monkeypatch.setattr(script, "UNITS", 8)
    monkeypatch.setattr(script, "FEATURES", 4)
    return script


@pytest.mark.slow
def test_f05_slices_make_no_difference(script):
    """All slices but the last have no weight in the sum, so the loss is that of one slice."""
    losses, lstm, last = [], None, None
    for checkpoints in (0, 2):
        keras.utils.set_random_seed(0)
        script.configure()
        with ipu.ipu_strategy.IPUStrategy().scope():
            model = script.compiled(script.create_model(LENGTH, checkpoints))
        *lstm_weights, kernel, bias = model.get_weights()
        assert kernel.shape == (8 * (checkpoints + 1), 1)
        assert len(lstm_weights) == 3  # of one layer, however often it is called
        lstm, last = lstm or lstm_weights, kernel if last is None else last
        kernel = np.concatenate([np.zeros_like(last)] * checkpoints + [last])
        model.set_weights([*lstm, kernel, bias])
        history = model.fit(script.create_dataset(LENGTH), verbose=0).history
        losses.append(history["loss"][0])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert losses[0] > 0


def test_f05_a_length_that_is_not_a_multiple_is_an_error(script, capsys):
    script.main(["--seq-len", "5", "--checkpoints", "1"])
    text = capsys.readouterr().out
    assert "loss:" in text
    assert "5 steps can't be evenly divided into 2 slices" in text


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["--seq-len", "512", "--checkpoints", "8"]])
def test_f05_the_program_as_it_is(capsys, arguments):
    load("recompute_lstm").main(arguments)
    text = capsys.readouterr().out
    assert "loss:" in text
    assert ("can't be evenly divided" in text) == bool(arguments)
