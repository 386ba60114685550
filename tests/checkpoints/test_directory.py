import errno
import multiprocessing
import os
import shutil

import numpy as np
import pytest

from millrace.base.checkpoints import directory_lock as module
from millrace.base.checkpoints.directory import CheckpointDirectory
from millrace.base.checkpoints.manifest import DamagedError, Manifest
from millrace.base.checkpoints.stored import Snapshot
from millrace.errors import CheckpointError


def snapshot(step, value=1.0):
    return Snapshot(
        step=step, epoch=0, epoch_step=step, kind="fit", model={"w": np.full(3, value)}, others=step
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A directory with checkpoints of steps 1 to 3."""
    path = tmp_path_factory.mktemp("written") / "deep" / "checkpoints"
    directory = CheckpointDirectory(path)
    for step in (1, 2, 3):
        manifest = directory.write(snapshot(step))
        assert manifest.step == step
    return path


@pytest.fixture
def path(written, tmp_path):
    return shutil.copytree(written, tmp_path / "checkpoints")


def names(path):
    return sorted(os.listdir(path))


def damage(path, step):
    file = path / f"step-{step:08d}" / "arrays.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def test_newest_and_its_values(path):
    directory = CheckpointDirectory(path)
    assert directory.steps() == [1, 2, 3]
    checkpoint, (model, others) = directory.newest()
    assert checkpoint.path == path / "step-00000003"
    assert checkpoint.manifest.is_finite
    assert (model["w"] == 1).all()
    assert others == 3


def test_a_directory_that_is_not_there(tmp_path):
    directory = CheckpointDirectory(tmp_path / "none")
    assert directory.steps() == []
    assert directory.newest() is None
    assert not directory.path.exists()


def fake(path, step, finite=True):
    """Makes a checkpoint without arrays, which takes no time."""
    name = path / f"step-{step:08d}"
    name.mkdir(parents=True)
    manifest = Manifest(
        step=step, epoch=0, epoch_step=0, kind="fit", written="", is_finite=finite, tree=[1, 2]
    )
    (name / "checkpoint.json").write_text(manifest.to_text())


@pytest.mark.parametrize(
    ("finite", "keep", "left"),
    [
        ("yyyy", None, [0, 1, 2, 3]),
        ("yyyy", 1, [3]),
        ("yyyy", 2, [2, 3]),
        ("yyyy", 9, [0, 1, 2, 3]),
        ("yynn", 1, [1, 3]),
        ("yynn", 2, [1, 2, 3]),
        ("yyny", 2, [2, 3]),
        ("nnnn", 1, [3]),
        ("ynnn", 2, [0, 2, 3]),
    ],
)
def test_which_are_kept(tmp_path, finite, keep, left):
    for step, letter in enumerate(finite):
        fake(tmp_path, step, letter == "y")
    directory = CheckpointDirectory(tmp_path, keep)
    directory._remove_old()
    assert directory.steps() == left
    assert names(tmp_path) == [f"step-{step:08d}" for step in left]


def test_damaged_ones_are_set_aside(path, caplog):
    damage(path, 3)
    (path / "step-00000002" / "checkpoint.json").unlink()
    checkpoint, _ = CheckpointDirectory(path).newest()
    assert checkpoint.manifest.step == 1
    assert names(path) == ["step-00000001", "step-00000002.damaged", "step-00000003.damaged"]
    [first, second] = [record.getMessage() for record in caplog.records]
    assert "step 3" in first
    assert "does not match its checksum. It is called step-00000003.damaged now" in first
    assert "checkpoint.json is missing" in second
    assert CheckpointDirectory(path).newest()[0].manifest.step == 1


def test_all_are_damaged(path):
    for step in (1, 2, 3):
        damage(path, step)
    with pytest.raises(CheckpointError, match=r"All 3 checkpoints in .* of step 3: .* Bring back"):
        CheckpointDirectory(path).newest()
    assert CheckpointDirectory(path).steps() == [1, 2, 3]


def test_a_checkpoint_with_the_name_of_another_step(path):
    os.rename(path / "step-00000003", path / "step-00000009")
    directory = CheckpointDirectory(path)
    with pytest.raises(DamagedError, match="it is of step 3"):
        directory.open(9)
    assert directory.newest()[0].manifest.step == 2


def test_other_names_are_none_of_ours(path):
    for name in (
        "step-5",
        "step-\N{ARABIC-INDIC DIGIT FIVE}",
        "step-x",
        "notes.txt",
        "step-00000007.damaged-1",
    ):
        (path / name).mkdir()
    directory = CheckpointDirectory(path)
    assert directory.steps() == [1, 2, 3]
    with directory.locked():
        assert len(names(path)) == 9


def test_a_replaced_checkpoint_stands_in_until_another_has_its_name(path):
    os.rename(path / "step-00000003", path / "step-00000003.replaced-7")
    directory = CheckpointDirectory(path)
    with directory.locked():
        assert directory.steps() == [1, 2, 3]
        assert directory.newest()[0].path.name == "step-00000003.replaced-7"
        directory.write(snapshot(3, value=2.0))
    with directory.locked():
        assert names(path) == ["lock", *(f"step-0000000{step}" for step in (1, 2, 3))]
    assert directory.newest()[1][0]["w"][0] == 2.0


def test_the_same_step_again(path):
    directory = CheckpointDirectory(path, keep=1)
    directory.write(snapshot(3, value=np.nan))
    assert names(path) == ["step-00000002", "step-00000003"]
    assert not directory.newest()[0].manifest.is_finite


def test_what_is_unfinished_is_removed(path):
    for name in (
        "step-00000004.partial-1",
        "step-00000001.removed-2-1",
        "step-00000003.replaced-9",
    ):
        (path / name).mkdir()
    with CheckpointDirectory(path).locked():
        assert names(path) == ["lock", *(f"step-0000000{step}" for step in (1, 2, 3))]


def test_two_trainings_in_one_process(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_LOCK_SECONDS", 0.1)
    directory = CheckpointDirectory(tmp_path)
    with (
        directory.locked(),
        pytest.raises(CheckpointError, match=f"process {os.getpid()} on"),
        CheckpointDirectory(tmp_path).locked(),
    ):
        pass
    with directory.locked():
        pass


def _hold(path, has_it, ends):
    with CheckpointDirectory(path).locked():
        has_it.set()
        ends.wait(60)
        os._exit(9)  # as if it was killed


def test_two_trainings_in_two_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_LOCK_SECONDS", 0.1)
    context = multiprocessing.get_context("fork")
    has_it, ends = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(tmp_path, has_it, ends))
    process.start()
    assert has_it.wait(60)
    with (
        pytest.raises(CheckpointError, match=f"Another training .* process {process.pid} on"),
        CheckpointDirectory(tmp_path).locked(),
    ):
        pass
    ends.set()
    process.join(60)
    with CheckpointDirectory(tmp_path).locked():
        pass


def test_a_disk_without_room_for_the_lock_is_cleaned_first(path, monkeypatch):
    (path / "step-00000004.partial-1").mkdir()
    monkeypatch.setattr(module.socket, "gethostname", lambda: raising(errno.ENOSPC))
    with CheckpointDirectory(path).locked():
        assert "step-00000004.partial-1" not in names(path)


def raising(number, *_):
    raise OSError(number, os.strerror(number))


def test_a_file_system_without_locks(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(module.fcntl, "flock", lambda *_: raising(errno.ENOLCK))
    with CheckpointDirectory(tmp_path).locked():
        assert "Nothing keeps another training from writing to" in caplog.text


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE])
def test_what_the_system_does_not_let_be_read_is_not_damaged(path, monkeypatch, number):
    before = names(path)
    monkeypatch.setattr("millrace.base.checkpoints.stored.read_arrays", lambda *_: raising(number))
    with pytest.raises(CheckpointError, match=f"cannot be read: {os.strerror(number)}"):
        CheckpointDirectory(path).newest()
    assert names(path) == before


def as_nobody(function, *args):
    """Runs a function in a process without rights; returns its exit code."""

    def run():
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        try:
            function(*args)
        except CheckpointError as error:
            os._exit(7 if "Permission denied" in str(error) else 8)
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join(60)
    return process.exitcode


def _lock_it(path):
    with CheckpointDirectory(path).locked():
        pass


def test_a_directory_without_permission(path):
    for each in path.parents:
        if os.stat(each).st_uid == os.getuid() and str(each).count("/") > 1:
            os.chmod(each, 0o755)
    os.chmod(path, 0o555)
    try:
        assert as_nobody(_lock_it, path) == 7
        os.chmod(path, 0o000)
        assert as_nobody(lambda: CheckpointDirectory(path).newest()) == 7
    finally:
        os.chmod(path, 0o755)
    os.chmod(path / "step-00000003" / "checkpoint.json", 0o000)
    assert as_nobody(lambda: CheckpointDirectory(path).newest()) == 7
    assert CheckpointDirectory(path).steps() == [1, 2, 3]


def test_a_file_in_place_of_the_directory(tmp_path):
    (tmp_path / "file").write_text("")
    directory = CheckpointDirectory(tmp_path / "file")
    with (
        pytest.raises(CheckpointError, match=r"cannot be written to .*: File exists"),
        directory.locked(),
    ):
        pass
    with pytest.raises(CheckpointError, match="The checkpoint of step 1 could not be written"):
        directory.write(snapshot(1))
    assert directory.newest() is None
