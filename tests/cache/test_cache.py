"""Where the cache is, and what it does for compilations of this process."""

import logging
import pathlib
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from millrace._compat import jax_cache
from millrace.base.records.cache import EntryLabels
from millrace.base.records.compilation import Aspect, KeyField, ProgramKey
from millrace.compilation.cache import files as cache_files
from millrace.compilation.cache import use as cache
from millrace.compilation.cache.entry import pack
from millrace.compilation.cache.lookup import looking_up
from millrace.compilation.cache.use import cache_statistics, known_keys, use_cache
from millrace.errors import OptionError

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True)
def no_decision(monkeypatch, tmp_path):
    """A process that has no cache yet, and a user with a home; JAX is left as it was."""
    monkeypatch.setattr(cache, "_cache", cache._Cache())
    monkeypatch.delenv("MILLRACE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(cache.sys, "platform", "linux")
    monkeypatch.setattr(jax_cache, "loads_quietly", lambda: True)
    yield
    jax_cache.uninstall()


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, "millrace")

    def lines():
        found = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return found

    return lines


def compile_times(number, labels=None):
    """Compiles a program that is another one for each number, whenever it is called."""

    def times(x):
        return x * number

    lowered = jax.jit(times).lower(jax.ShapeDtypeStruct((3,), jnp.float32))
    with looking_up(labels or EntryLabels("net", "train_run", "float32[3]")) as lookup:
        compiled = lowered.compile()
    assert list(np.asarray(compiled(np.ones(3, np.float32)))) == [number] * 3
    return lookup


def directory():
    return cache_statistics().directory


def test_the_second_compilation_is_a_hit(tmp_path):
    use_cache(tmp_path)
    first = compile_times(2, EntryLabels("net", "train_run", "float32[3]", layers=("dense",)))
    second = compile_times(2)
    assert (first.layers, second.layers) == ((), ("dense",))
    assert (first.hit, second.hit) == (False, True)
    found = cache_statistics()
    assert (found.hits, found.misses, found.corrupt, found.evicted) == (1, 1, 0, 0)
    assert found.entries == len(list(tmp_path.glob("*/*.mrx"))) == 1
    assert found.nbytes == sum(path.stat().st_size for path in tmp_path.glob("*/*.mrx"))
    assert (found.directory, found.limit) == (tmp_path, 2 << 30)


def test_without_a_cache_nothing_is_a_hit(tmp_path):
    use_cache(None)
    assert not compile_times(3).hit
    assert not compile_times(3).hit
    assert cache_statistics().directory is None
    assert known_keys("train_run") == []


def test_a_program_that_was_compiled_before_the_cache_came_is_written(tmp_path):
    assert not compile_times(4).hit
    use_cache(tmp_path)
    assert not compile_times(4).hit
    assert compile_times(4).hit


def test_turning_it_off_leaves_jax_as_it_was(tmp_path):
    names = ["jax_compilation_cache_dir", *jax_cache._OPTIONS]
    before = [getattr(jax.config, name) for name in names]
    use_cache(tmp_path)
    compile_times(5)
    assert [getattr(jax.config, name) for name in names] != before
    use_cache(None)
    assert [getattr(jax.config, name) for name in names] == before
    assert not compile_times(5).hit


def test_another_directory_moves_the_cache_and_says_so(tmp_path, log):
    use_cache(tmp_path / "a")
    compile_times(6)
    assert log() == [f"Executables of this process are cached in {tmp_path / 'a'}."]
    use_cache(str(tmp_path / "b"))
    assert log() == [
        f"Executables of this process are cached in {tmp_path / 'b'}, "
        f"no longer in {tmp_path / 'a'}."
    ]
    assert not compile_times(6).hit
    use_cache(tmp_path / "b")
    assert log() == []  # nothing new
    use_cache(tmp_path / "a")
    assert compile_times(6).hit


def test_a_default_leaves_what_an_argument_has_said(tmp_path):
    use_cache(tmp_path)
    use_cache()
    assert directory() == tmp_path
    use_cache(None)
    use_cache()
    assert directory() is None


@pytest.mark.parametrize("told", ["", "0", "off", "OFF", "None"])
def test_the_environment_turns_it_off(monkeypatch, told, log):
    monkeypatch.setenv("MILLRACE_CACHE_DIR", told)
    use_cache()
    assert directory() is None
    assert log() == [f"Executables are not cached: MILLRACE_CACHE_DIR={told}."]


def test_who_decides(monkeypatch, tmp_path, log):
    use_cache()
    assert directory() == tmp_path / "home" / "millrace"
    own = str(tmp_path / "jax")
    jax.config.update("jax_compilation_cache_dir", own)
    try:
        log()
        use_cache()
        assert directory() == pathlib.Path(own)
        assert cache._cache.store is None
        assert log() == [
            f"Executables are cached by JAX in {own}, as jax_compilation_cache_dir says."
        ]
        monkeypatch.setenv("MILLRACE_CACHE_DIR", str(tmp_path / "told"))
        use_cache()
        assert directory() == tmp_path / "told"
        use_cache(tmp_path / "argument")
        assert directory() == tmp_path / "argument"
        use_cache(None)
        assert jax.config.jax_compilation_cache_dir == own
    finally:
        jax.config.update("jax_compilation_cache_dir", None)


def test_hits_of_jax_s_own_cache_are_counted(tmp_path):
    before = jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax_cache.public.reset_cache()
    try:
        use_cache()
        assert not compile_times(7).hit
        assert compile_times(7).hit
        assert cache_statistics().hits >= 1
        assert not list(tmp_path.rglob("*.mrx"))
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", before)
        jax_cache.public.reset_cache()


@pytest.mark.parametrize(
    ("platform", "variables", "place"),
    [
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/millrace"),
        ("linux", {"XDG_CACHE_HOME": ""}, "/home/me/.cache/millrace"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/millrace"),
        ("darwin", {}, "/home/me/Library/Caches/millrace"),
    ],
)
def test_the_usual_place(monkeypatch, platform, variables, place):
    monkeypatch.setattr(cache.sys, "platform", platform)
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache._usual_root() == pathlib.Path(place)


def test_a_user_without_a_home_has_no_cache(monkeypatch, log):
    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(pathlib.Path, "home", home)
    use_cache()
    assert directory() is None
    assert log() == [
        "Executables are not cached: there is no home directory. Set MILLRACE_CACHE_DIR."
    ]


def test_a_jaxlib_that_prints_errors_has_none_unless_asked(monkeypatch, tmp_path, log):
    monkeypatch.setattr(jax_cache, "loads_quietly", lambda: False)
    monkeypatch.setattr(jax_cache, "jaxlib_version", lambda: "0.10.0")
    use_cache()
    assert directory() is None
    assert log() == [
        "Executables are not cached: jaxlib 0.10.0 prints errors for each that it loads on a CPU. "
        "Set MILLRACE_CACHE_DIR or Strategy(cache_dir=...) to cache them all the same, or install "
        "jaxlib 0.10.2 or later."
    ]
    monkeypatch.setenv("MILLRACE_CACHE_DIR", str(tmp_path))
    use_cache()
    assert directory() == tmp_path


def test_what_jax_itself_has_turned_off_is_said(tmp_path, log):
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        use_cache(tmp_path)
        assert log() == ["Executables are not cached: JAX has jax_enable_compilation_cache=False."]
        assert not compile_times(8).hit
        assert not compile_times(8).hit
    finally:
        jax.config.update("jax_enable_compilation_cache", True)


@pytest.mark.parametrize("wrong", [3, True, b"bytes", "", " ", ["list"]])
def test_what_is_no_directory(wrong):
    message = r"cache_dir must be the path of a directory, or None for no cache\. Received: .*Leave"
    with pytest.raises(OptionError, match=message):
        use_cache(wrong)


@pytest.mark.parametrize("wrong", ["2GB", "-1", "0", "1.5"])
def test_what_is_no_limit(monkeypatch, tmp_path, wrong):
    monkeypatch.setenv("MILLRACE_CACHE_MAX_BYTES", wrong)
    message = r"MILLRACE_CACHE_MAX_BYTES must be .* such as 2147483648 for 2 GiB\. Received: '"
    with pytest.raises(OptionError, match=message + wrong):
        use_cache(tmp_path)


def test_the_limit_is_of_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("MILLRACE_CACHE_MAX_BYTES", " 1000000 ")
    use_cache(tmp_path)
    assert cache_statistics().limit == 1000000


def test_each_thread_has_its_own_lookup(tmp_path):
    use_cache(tmp_path)
    compile_times(10)
    lookups = {}

    def run(number):
        lookups[number] = compile_times(number, EntryLabels(program=f"program {number}"))

    threads = [threading.Thread(target=run, args=(number,)) for number in (10, 11, 12, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: lookup.hit for number, lookup in lookups.items()} == {
        10: True, 11: False, 12: False, 13: False
    }  # fmt: skip
    assert len(list(cache_files.files(tmp_path))) == 4


def test_what_identified_a_program_is_known_afterwards(tmp_path):
    use_cache(tmp_path)
    key = ProgramKey("net", "train_run", (KeyField(Aspect.OPTION, "learning_rate", "0.1"),))
    compile_times(14, EntryLabels("net", "train_run", "float32[3]", key))
    assert known_keys("train_run") == [key]
    assert known_keys("test_run") == []
    for file in tmp_path.glob("keys/*"):
        file.unlink()
    assert compile_times(14, EntryLabels("net", "train_run", "float32[3]", key)).hit
    assert known_keys("train_run") == [key]  # by a hit, too


def test_bytes_that_xla_refuses_are_no_hit_and_are_replaced(tmp_path):
    use_cache(tmp_path)
    compile_times(15)
    (path,) = tmp_path.glob("*/jit_times-*.mrx")
    key, environment = path.stem, path.parent.name
    good = path.read_bytes()
    path.write_bytes(pack(key, environment, EntryLabels(), b"no executable"))
    with pytest.warns(UserWarning, match="Error reading persistent compilation cache entry"):
        assert not compile_times(15).hit
    assert len(path.read_bytes()) > len(good) / 2
    assert compile_times(15).hit
