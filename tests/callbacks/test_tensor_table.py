"""The table that an epoch ends with."""

import io

import numpy as np
import pytest
from rich.console import Console
from watching import built, data, fit, rows

from millrace.base.records.tensors import STATISTICS
from millrace.callbacks import TensorStatistics


def printed(strategy, xy=None, **arguments):
    console = Console(file=io.StringIO(), width=120)
    statistics = TensorStatistics("hidden", "out/*", console=console, **arguments)
    fit(strategy.attach(built(steps_per_execution=6)), statistics, xy, epochs=2)
    return statistics, console.file.getvalue()


def test_the_table_of_an_epoch(strategy):
    statistics, text = printed(strategy)
    title, head, *lines = text.splitlines()[:5]
    whole = "nans and infs of the whole epoch"
    assert title == f"epoch 1: tensors of step 5 and update 5, {whole}"
    assert head.split() == ["tensor", *STATISTICS]
    assert [line.split()[:-8] for line in lines] == [
        ["activation", "hidden"],
        ["gradient", "out/kernel"],
        ["out/bias"],
    ]
    last = rows(statistics.history, name="hidden")[5]
    assert [float(word) for word in lines[0].split()[-8:]] == pytest.approx(last, rel=1e-2)
    assert f"epoch 2: tensors of step 11 and update 11, {whole}" in text
    assert text.isascii()


def test_tables_of_some_epochs_or_none(strategy):
    assert "epoch 2" in (text := printed(strategy, print_every=2)[1])
    assert "epoch 1" not in text
    assert not printed(strategy, print_every=0)[1]


def test_the_table_marks_what_is_not_finite(strategy):
    x, y = data()
    x[0] = np.nan
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system="standard")
    statistics = TensorStatistics("out", console=console)
    fit(strategy.attach(built(steps_per_execution=6)), statistics, (x, y))
    assert "\x1b[31m" in console.file.getvalue()
    assert statistics.history["nans"].sum() == 1 + 5 * 4  # the weights are NaN from step 1 on
