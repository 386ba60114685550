"""Directories and files that another user can write: nothing is read from them."""

import logging
import os

import jax
import pytest

import millrace
from millrace._compat import jax_cache
from millrace.base.records.compilation import ProgramKey
from millrace.compilation.cache import files as cache_files
from millrace.compilation.cache import use as cache
from millrace.compilation.cache.private import (
    NotPrivateError,
    check_private,
    make_private,
    read_private,
)
from millrace.compilation.cache.store import CacheStore
from millrace.compilation.cache.use import cache_statistics, use_cache
from millrace.compilation.export import file as export_file
from millrace.compilation.export.file import EXECUTABLE, Header, environment
from millrace.errors import OptionError

OTHER = 54321  # a user
KEY = f"jit_run-{'0' * 64}"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
pytestmark = pytest.mark.quick


def mode_of(path):
    return path.stat().st_mode & 0o7777


@pytest.fixture
def umask():
    """The usual one of systems where each user has a group."""
    before = os.umask(0o002)
    yield
    os.umask(before)


@pytest.fixture
def own_process(monkeypatch, tmp_path):
    """A process that has no cache yet, and a user with a home; JAX is left as it was."""
    monkeypatch.setattr(cache, "_cache", cache._Cache())
    monkeypatch.delenv("MILLRACE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(cache.sys, "platform", "linux")
    monkeypatch.setattr(jax_cache, "loads_quietly", lambda: True)
    yield
    jax_cache.uninstall()


@pytest.mark.parametrize("mode", [0o770, 0o720, 0o707, 0o702, 0o777, 0o1777])
def test_a_directory_that_others_can_write_is_refused(tmp_path, mode):
    path = tmp_path / "a b"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(NotPrivateError) as error:
        check_private(path)
    assert f"(mode {mode:04o})" in str(error.value)
    assert f"chmod go-w '{path}'" in str(error.value)
    path.chmod(mode & 0o755)
    check_private(path)


@needs_root
def test_a_directory_of_another_user_is_refused(tmp_path, monkeypatch):
    check_private(tmp_path / "missing")
    os.chown(tmp_path, OTHER, OTHER)
    with pytest.raises(NotPrivateError, match=rf"belongs to the user {OTHER} \(mode 0700\)"):
        check_private(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    check_private(tmp_path)
    os.chown(tmp_path, 0, 0)  # root can write everywhere
    check_private(tmp_path)


@needs_root
def test_a_link_counts_as_its_target(tmp_path):
    """In a directory like /tmp, anyone can make a link: to a directory of his own, say."""
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    link = shared / "cache"
    link.symlink_to(target)
    check_private(link)
    os.chown(target, OTHER, OTHER)
    with pytest.raises(NotPrivateError, match=str(OTHER)):
        check_private(link)


def test_missing_parents_are_made_private_too(tmp_path, umask):
    make_private(tmp_path / "a" / "b" / "c")
    assert [mode_of(tmp_path / each) for each in ("a", "a/b", "a/b/c")] == [0o700] * 3
    make_private(tmp_path / "a" / "b" / "c")
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"exists|Not a directory"):
        make_private(tmp_path / "file")


def test_a_link_to_nothing_is_no_directory(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.raises(FileExistsError):
        make_private(tmp_path / "link")
    assert not (tmp_path / "nothing").exists()


def test_a_file_that_others_can_write_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"code")
    path.chmod(0o664)
    assert read_private(path) == b"code"  # nobody can enter the directory
    tmp_path.chmod(0o755)
    with pytest.raises(NotPrivateError, match=rf"mode 0664.*chmod go-w {path}"):
        read_private(path)
    path.chmod(0o644)
    assert read_private(path) == b"code"


@needs_root
def test_a_file_of_another_user_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"code")
    os.chown(path, OTHER, OTHER)
    with pytest.raises(NotPrivateError, match=str(OTHER)):
        read_private(path)


def test_a_pipe_does_not_wait_for_a_writer(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotPrivateError, match="pipe"):
        read_private(tmp_path / "pipe")


def test_what_the_cache_makes_is_private(tmp_path, umask):
    store = CacheStore(tmp_path / "new" / "root", 1 << 20, lambda: None)
    store.put(KEY, b"payload")
    path = tmp_path / "new" / "root" / cache_files.environment()
    assert [mode_of(each) for each in (path, *path.parents[:2])] == [0o700] * 3
    assert [mode_of(each) for each in path.iterdir()] == [0o600]
    assert store.get(KEY) == b"payload"


@needs_root
def test_a_cached_file_of_another_user_is_not_read_nor_removed(tmp_path, caplog):
    store = CacheStore(tmp_path, 1 << 20, lambda: None)
    store.put(KEY, b"payload")
    (path,) = tmp_path.glob("*/*.mrx")
    os.chown(path, OTHER, OTHER)
    assert [store.get(KEY) for _ in range(3)] == [None] * 3
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"{path} belongs to the user {OTHER}")
    assert path.exists()


@pytest.mark.parametrize("by_variable", [False, True])
def test_a_chosen_cache_that_others_can_write_is_an_error(
    own_process, monkeypatch, tmp_path, by_variable
):
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(0o775)
    if by_variable:
        monkeypatch.setenv("MILLRACE_CACHE_DIR", str(path))
    choice = f"MILLRACE_CACHE_DIR={path}" if by_variable else f"cache_dir='{path}'"
    with pytest.raises(OptionError) as error:
        millrace.Strategy(devices=1, **({} if by_variable else {"cache_dir": path}))
    text = str(error.value)
    assert text.startswith(f"{choice} is refused")
    assert "mode 0775" in text
    assert f"chmod go-w {path}" in text
    assert cache_statistics().directory is None
    path.chmod(0o755)
    millrace.Strategy(devices=1, **({} if by_variable else {"cache_dir": path}))
    assert cache_statistics().directory == path


def test_the_usual_cache_is_left_out_with_one_warning(own_process, tmp_path, caplog):
    path = tmp_path / "home" / "millrace"
    path.mkdir(parents=True)
    path.chmod(0o777)
    for _ in range(2):
        use_cache()
    assert cache_statistics().directory is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"chmod go-w {path}" in record.getMessage()
    assert "mode 0777" in record.getMessage()
    path.chmod(0o700)
    use_cache()
    assert cache_statistics().directory == path


class Bomb:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (self.mark,)


@pytest.fixture
def exported(tmp_path):
    """A directory with an export that makes another directory when its content is read."""
    path, mark = tmp_path / "exported", tmp_path / "mark"
    path.mkdir()
    header = Header(EXECUTABLE, ProgramKey("m", "p", ()), environment(jax.devices()[0]))
    (path / "one.mrexport").write_bytes(export_file.pack(header, Bomb(str(mark))))
    yield path
    assert not mark.exists()


def test_an_export_in_a_directory_that_others_can_write_is_an_error(strategy, exported):
    exported.chmod(0o775)
    for call in (strategy.load_executables, strategy.export_executables):
        with pytest.raises(OptionError) as error:
            call(exported)
        assert f"chmod go-w {exported}" in str(error.value)
        assert "mode 0775" in str(error.value)


@pytest.mark.parametrize("is_owner", [True, pytest.param(False, marks=needs_root)])
def test_an_exported_file_that_others_can_write_is_an_error(strategy, exported, is_owner):
    path = exported / "one.mrexport"
    if is_owner:
        path.chmod(0o646)
    else:
        os.chown(path, OTHER, OTHER)
    with pytest.raises(OptionError, match=f"{path}.*chmod go-w {path}"):
        strategy.load_executables(exported)


def test_what_an_export_makes_is_private(strategy, tmp_path, umask):
    strategy.export_executables(tmp_path / "new" / "exported")
    assert mode_of(tmp_path / "new") == mode_of(tmp_path / "new" / "exported") == 0o700
