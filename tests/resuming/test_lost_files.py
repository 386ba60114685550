"""Files that other trainers lost or believed; see test_lost_state.py."""

import contextlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
from breaks import (
    EPOCHS,
    HERE,
    SAVED,
    Stop,
    at_once,
    break_and_compare,
    expect_equal,
    largest_file,
    make,
    place_of,
    saved_in,
    train,
)

from case_marks import exhaustive
from millrace.errors import MillraceError

pytestmark = [pytest.mark.shipped_compiler, pytest.mark.slow]


def damage(directory, how):
    newest = saved_in(directory)[-1]
    file = largest_file(newest)
    content = file.read_bytes()
    if how == "truncated":
        file.write_bytes(content[: len(content) // 2])
    elif how == "flipped":
        place = len(content) // 2
        file.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
    elif how == "missing":
        file.unlink()
    elif how == "zeros":
        file.write_bytes(bytes(len(content)))
    elif how == "emptied":
        shutil.rmtree(newest)
        newest.mkdir()
    elif how == "no small files":  # records of what there is, written last by many
        for path in newest.iterdir():
            if path != file:
                path.unlink()


@pytest.mark.parametrize(
    "how", ["truncated", "flipped", "missing", "zeros", "emptied", "no small files"]
)
def test_a_damaged_checkpoint_is_not_restored(tmp_path, how):
    """Half of a checkpoint restored, or a run that could not start for it."""
    whole = train()
    stopped = train(tmp_path, stop_after=13, **at_once())
    assert len(saved_in(tmp_path)) >= 2
    damage(tmp_path, how)
    resumed = train(tmp_path, **at_once())
    expect_equal(whole, stopped, resumed)


@pytest.mark.parametrize("kind", ["next step", "orbax", "file", "latest"])
def test_what_lies_beside_checkpoints(tmp_path, kind):
    """The directory with the highest number won, whatever it held."""
    whole = train()
    stopped = train(tmp_path, stop_after=13, **at_once())
    newest = saved_in(tmp_path)[-1]
    digits = re.search(r"(\d+)(\D*)$", newest.name)
    higher = newest.name[: digits.start()] + str(99).zfill(len(digits[1])) + digits[2]
    if kind == "next step":
        (tmp_path / higher).mkdir()
    elif kind == "orbax":
        (tmp_path / f"{higher}.orbax-checkpoint-tmp-1757000000").mkdir()
    elif kind == "file":
        (tmp_path / higher).write_text("not a checkpoint")
    elif kind == "latest":
        (tmp_path / "latest").symlink_to(tmp_path / higher)
    expect_equal(whole, stopped, train(tmp_path, **at_once()))


def test_saves_again_where_a_damaged_checkpoint_was(tmp_path):
    """After a step back, every save up to the damaged step was skipped without a word."""
    whole = train()
    parts = [train(tmp_path, stop_after=13, **at_once())]  # checkpoints of 5 and 10
    damage(tmp_path, "truncated")
    parts.append(train(tmp_path, stop_after=6, **at_once()))  # from 5, and saves 10 again
    parts.append(train(tmp_path, **at_once()))
    assert parts[-1].begun[0] == place_of(10)
    expect_equal(whole, *parts)


def test_all_checkpoints_damaged(tmp_path):
    """Training from the beginning would hide it."""
    train(tmp_path, stop_after=8, **at_once())
    for path in saved_in(tmp_path):
        file = largest_file(path)
        file.write_bytes(file.read_bytes()[:10])
    with pytest.raises(MillraceError):
        train(tmp_path, **at_once())


@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_keeps_the_newest_and_what_is_not_its_own(tmp_path, keep, asynchronous):
    """The last checkpoint or files of others deleted; more kept later."""
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "model.keras").write_text("mine, too")
    checkpoint = {"keep": keep, "async_save": asynchronous}
    whole = train()
    parts = [train(tmp_path, stop_after=9, every_steps=2, checkpoint=checkpoint)]
    parts.append(train(tmp_path, every_steps=2, checkpoint=checkpoint))
    expect_equal(whole, *parts)
    assert len(saved_in(tmp_path)) <= keep
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "best" / "model.keras").read_text() == "mine, too"
    assert train(tmp_path, every_steps=2, checkpoint=checkpoint).trained == 0


@contextlib.contextmanager
def full_disk():
    """No file can grow beyond 4 KiB, as on a disk without space."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("epochs", "asynchronous"),
    [(EPOCHS, False), (EPOCHS, True), (2, False), exhaustive(2, True)],
)
def test_a_save_that_fails_is_heard_of(tmp_path, asynchronous, epochs):
    """Fit ended as if all were saved; the only good checkpoint had been deleted."""
    build = lambda: make(width=64)  # noqa: E731
    checkpoint = {"keep": 1, "async_save": asynchronous}
    whole = train(build=build)
    stopped = train(tmp_path, build=build, stop_after=8, checkpoint=checkpoint)
    with full_disk(), pytest.raises(Exception) as caught:  # noqa: PT011
        train(tmp_path, build=build, epochs=epochs, checkpoint=checkpoint)
    assert not isinstance(caught.value, (AssertionError, Stop))
    resumed = train(tmp_path, build=build, checkpoint=checkpoint)
    seen = {**stopped.rows, **resumed.rows}
    assert {place: whole.rows[place] for place in seen} == seen
    assert resumed.history == whole.history
    for got, expected in zip(resumed.variables, whole.variables, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_every_some_seconds(tmp_path):
    """A checkpoint by time, and none by steps."""

    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.05)

    arguments = {"callbacks": lambda: [Slow()], "every_steps": None, **at_once(every_seconds=0.1)}
    _, (_, resumed) = break_and_compare(tmp_path, 14, **arguments)
    assert resumed.begun[0] > (0, 0)


# Real signals, in processes of their own


def start(directory=None, *signal_at, executed=1, every_steps=SAVED):
    """Returns the end of a process that trains, and what it printed."""
    script = HERE.parent / "signalled_fit.py"
    arguments = [executed, every_steps, *([directory] if directory else []), *signal_at]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, *map(str, [script, *arguments])],
        capture_output=True,
        text=True,
        timeout=180,
        env=environment,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def digests():
    """Digests of runs without a break, by steps per execution."""
    known = {}

    def of(executed):
        if executed not in known:
            code, output, errors = start(executed=executed)
            assert code == 0, errors
            known[executed] = output.split()[1]
        return known[executed]

    return of


@pytest.mark.parametrize(
    ("where", "number", "executed"),
    [
        exhaustive("train", 2, 1),
        ("train", 9, 1),
        ("train", 1, 4),
        exhaustive("train", 3, 4),
        exhaustive("test", 3, 1),
        ("test", 2, 4),
    ],
)
def test_sigterm_loses_nothing(tmp_path, digests, where, number, executed):
    """No checkpoint, as the signal came in validation, or in a handler's middle."""
    code, output, errors = start(
        tmp_path, "SIGTERM", number, where, executed=executed, every_steps=1000
    )
    assert "digest" not in output, "the signal was ignored"
    assert saved_in(tmp_path), errors
    assert code != -signal.SIGKILL
    code, output, errors = start(tmp_path, executed=executed, every_steps=1000)
    assert code == 0, errors
    found, epoch, batch = output.split()[1:4]
    assert found == digests(executed)
    assert (int(epoch), int(batch)) > (0, 0)  # and so continued


@pytest.mark.parametrize("number", [exhaustive(3), 6, 11, exhaustive(12)])
def test_sigkill_at_any_step(tmp_path, digests, number):
    """Killed while an asynchronous save is written."""
    code, output, _ = start(tmp_path, "SIGKILL", number, "train", every_steps=1)
    assert code == -signal.SIGKILL
    assert "digest" not in output
    code, output, errors = start(tmp_path, every_steps=1)
    assert code == 0, errors
    assert output.split()[1] == digests(1)
