"""Scalars for TensorBoard, read back by its own reader."""

import sys

import pytest
from watching import built, fit, rows, watch

import millrace


def test_scalars_for_tensorboard(strategy, tmp_path):
    pytest.importorskip("tensorboard")
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    statistics = watch("hidden", "out/bias", tensorboard=tmp_path / "logs")
    model = strategy.attach(built(steps_per_execution=6))
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
    fit(model, statistics, epochs=2)
    found = events.EventAccumulator(str(tmp_path / "logs")).Reload()
    scalars = found.Scalars("activation/hidden/mean")
    assert [scalar.step for scalar in scalars] == list(range(12))
    means = rows(statistics.history, "activation")[:, 0]
    assert [scalar.value for scalar in scalars] == pytest.approx(means, rel=1e-6)
    assert [scalar.step for scalar in found.Scalars("gradient/out/bias/norm")] == list(range(6))


def test_tensorboard_is_asked_for_where_it_is_absent(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(millrace.errors.OptionError, match=r'pip install "millrace\[tensorboard\]"'):
        watch("out", tensorboard=tmp_path)


def test_histograms_for_tensorboard(strategy, tmp_path):
    pytest.importorskip("tensorboard")
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    statistics = watch("hidden", "out/kernel", tensorboard=tmp_path / "logs", histograms=True)
    fit(strategy.attach(built(steps_per_execution=6)), statistics)
    found = events.EventAccumulator(
        str(tmp_path / "logs"), size_guidance={events.TENSORS: 0, events.HISTOGRAMS: 0}
    ).Reload()
    drawn = found.Histograms("activation/hidden")
    seen = rows(statistics.history, "activation")
    assert len(drawn) == len(seen)
    for histogram, row in zip(drawn, seen, strict=True):
        value = histogram.histogram_value
        assert value.sum == pytest.approx(row[0] * value.num, rel=1e-4, abs=1e-4)
        assert (value.min, value.max) == pytest.approx((row[2], row[3]), rel=1e-6)
        assert sum(value.bucket) == value.num


def test_histograms_need_a_directory():
    with pytest.raises(millrace.errors.OptionError, match="needs a directory for the histograms"):
        watch("out", histograms=True)
