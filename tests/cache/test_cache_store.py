"""The files: verified, bounded, and never in the way."""

import errno
import logging
import os
import pathlib
import threading
import time

import pytest

from millrace.base.records.cache import EntryLabels
from millrace.base.records.compilation import Aspect, KeyField, ProgramKey
from millrace.compilation.cache import files as cache_files
from millrace.compilation.cache import keys as cache_keys
from millrace.compilation.cache.entry import DamagedEntryError, pack, unpack
from millrace.compilation.cache.lookup import Lookup
from millrace.compilation.cache.store import CacheStore, evict

pytestmark = pytest.mark.quick

KEY = "jit_run-" + "0" * 64
LABELS = EntryLabels("net", "train_run", "float32[32,8]")
FIELDS = (
    KeyField(Aspect.ARGUMENT, "argument x", "float32[32,8]"),
    KeyField(Aspect.CODE, "loss()", "a\0b\n\N{GREEK SMALL LETTER ALPHA}" * 100, "file.py:12"),
)


def make(root, limit=1 << 20, labels=LABELS):
    return CacheStore(root, limit, lambda: Lookup(labels))


def key_of(number):
    return f"jit_run-{number:064}"


def path_of(root, key=KEY):
    return root / cache_files.environment() / f"{key}.mrx"


def warnings_of(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_what_was_put_is_found(tmp_path, caplog):
    store = make(tmp_path / "new" / "root")
    assert store.get(KEY) is None
    store.put(KEY, b"payload")
    assert store.get(KEY) == b"payload"
    assert make(tmp_path / "new" / "root").get(KEY) == b"payload"
    store.put(KEY, b"another")
    assert store.get(KEY) == b"another"
    assert not warnings_of(caplog)
    assert (tmp_path / "new" / "root").stat().st_mode & 0o077 == 0  # nobody else's code runs


def test_an_entry_bears_the_layers_that_its_operations_are_named_after(tmp_path):
    lookups = [Lookup(EntryLabels(layers=("dense", "dense_1")))]
    store = CacheStore(tmp_path, 1 << 30, lambda: lookups[-1])
    store.put(KEY, b"payload")
    lookups.append(Lookup(EntryLabels(layers=("dense_2", "dense_3"))))
    assert store.get(KEY) == b"payload"
    assert lookups[-1].layers == ("dense", "dense_1")
    lookups.append(Lookup(EntryLabels(layers=("x" * 100,) * 20_000)))  # more than a header holds
    store.put(KEY, b"payload")
    assert store.get(KEY) == b"payload"
    assert lookups[-1].layers == ()


def test_the_environment_names_version_platform_and_processor(monkeypatch):
    monkeypatch.setattr(cache_files.jax_cache, "jaxlib_version", lambda: "0.12.0.1")
    monkeypatch.setattr(cache_files.jax_cache, "platform", lambda: "cuda")
    monkeypatch.setattr(cache_files, "_processor", lambda: "x86_64 avx")
    name = cache_files.environment()
    assert name.startswith("0.12.0.1-cuda-")
    assert cache_files._ENVIRONMENT.fullmatch(name)
    monkeypatch.setattr(cache_files, "_processor", lambda: "x86_64 avx avx512f")
    assert cache_files.environment() != name


def test_names_of_files_fit_all_file_systems():
    name = cache_files.file_name("jit_" + "x" * 500 + "<lambda>/:" + "-" + "a" * 64)
    assert name.startswith("jit_xxx")
    assert name.endswith("-" + "a" * 64 + ".mrx")
    assert len(name) < 255
    assert not set(name) & set("<>/:")


def test_every_flipped_bit_and_every_missing_byte_is_noticed():
    content = pack(KEY, "here", LABELS, b"the executable")
    assert unpack(content, KEY, "here") == (b"the executable", ())
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(DamagedEntryError):
            unpack(bytes(damaged), KEY, "here")
        with pytest.raises(DamagedEntryError):
            unpack(content[:position], KEY, "here")
    with pytest.raises(DamagedEntryError, match="15 of 14 bytes"):
        unpack(content + b"x", KEY, "here")


def damage(kind, path):
    content = path.read_bytes()
    path.write_bytes(
        {
            "truncated": content[:-3],
            "in its header": content[:40],
            "flipped": content[:-5] + bytes([content[-5] ^ 1]) + content[-4:],
            "emptied": b"",
            "foreign": b"To whom it may concern",
            "of another machine": pack(KEY, "0.1-cpu-00000000", LABELS, b"payload"),
            "of another key": pack(key_of(1), path.parent.name, LABELS, b"payload"),
        }[kind]
    )


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("truncated", "it has 4 of 7 bytes"),
        ("in its header", "its header is damaged"),
        ("flipped", "its checksum is wrong"),
        ("emptied", "it is empty"),
        ("foreign", "it is not a file of millrace, or is of another version"),
        ("of another machine", "it is for 0.1-cpu-00000000"),
        ("of another key", "it is another program"),
    ],
)
def test_a_damaged_file_is_removed_with_one_warning(tmp_path, caplog, kind, reason):
    store = make(tmp_path)
    for number in range(3):
        store.put(key_of(number), b"another")
    store.put(KEY, b"payload")
    path = path_of(tmp_path)
    damage(kind, path)
    assert store.get(KEY) is None
    assert not path.exists()
    assert warnings_of(caplog) == [
        f"{path} cannot be used: {reason}. It was removed, and the program is compiled again. If "
        "this happens again, check the disk, or remove the directory."
    ]
    damage("emptied", path_of(tmp_path, key_of(2)))
    assert store.get(key_of(2)) is None
    assert len(warnings_of(caplog)) == 1
    assert store.statistics().corrupt == 2
    store.put(KEY, b"payload")
    assert store.get(KEY) == b"payload"


def test_another_version_is_a_miss_without_a_word(tmp_path, caplog):
    make(tmp_path).put(KEY, b"payload")
    path = path_of(tmp_path)
    path.parent.rename(tmp_path / "0.9.0-cpu-12345678")
    store = make(tmp_path)
    assert store.get(KEY) is None
    store.put(KEY, b"payload")
    assert store.statistics().entries == 2
    assert not warnings_of(caplog)


def fill(root, number, limit):
    """Writes entries of 1000 bytes and a header, one minute apart."""
    store = make(root, limit)
    for index in range(number):
        store.put(key_of(index), bytes(1000))
        if path_of(root, key_of(index)).exists():
            used = time.time() - 6000 + 60 * index
            os.utime(path_of(root, key_of(index)), (used, used))
    return store


def numbers(root):
    return sorted(int(file.path.stem.rpartition("-")[2]) for file in cache_files.files(root))


def test_beyond_the_limit_the_least_recently_used_go(tmp_path):
    size = len(pack(key_of(0), cache_files.environment(), LABELS, bytes(1000)))
    store = fill(tmp_path, 10, limit=11 * size)
    assert store.get(key_of(0)) is not None  # used now
    for number in (10, 11):
        store.put(key_of(number), bytes(1000))
    found = numbers(tmp_path)
    assert {0, 9, 10, 11} <= set(found)
    assert not {1, 2} & set(found)
    assert store.statistics().evicted == 12 - len(found)
    assert sum(file.nbytes for file in cache_files.files(tmp_path)) <= 11 * size


def test_what_goes_makes_room_for_a_tenth_of_the_limit(tmp_path):
    fill(tmp_path, 10, limit=1 << 20)
    total = sum(file.nbytes for file in cache_files.files(tmp_path))
    assert evict(tmp_path, total) == (total, 0)
    left, removed = evict(tmp_path, round(0.95 * total))  # nine of ten are more than 0.855
    assert removed == 2
    assert numbers(tmp_path) == [2, 3, 4, 5, 6, 7, 8, 9]
    assert left == sum(file.nbytes for file in cache_files.files(tmp_path))


def test_the_limit_is_of_all_versions_together(tmp_path):
    fill(tmp_path, 5, limit=1 << 20)
    (tmp_path / cache_files.environment()).rename(tmp_path / "0.9.0-cpu-12345678")
    total = sum(file.nbytes for file in cache_files.files(tmp_path))
    make(tmp_path, total).put(key_of(7), bytes(1000))
    assert 7 in numbers(tmp_path)
    assert 0 not in numbers(tmp_path)
    assert sum(file.nbytes for file in cache_files.files(tmp_path)) <= total


def test_what_exceeds_the_limit_alone_is_not_written(tmp_path, caplog):
    store = fill(tmp_path, 3, limit=10_000)
    store.put(KEY, bytes(20_000))
    assert numbers(tmp_path) == [0, 1, 2]
    assert not warnings_of(caplog)


def test_files_are_not_counted_at_each_write(tmp_path, monkeypatch):
    counted = []
    monkeypatch.setattr(
        "millrace.compilation.cache.store.evict", lambda *a: counted.append(a) or evict(*a)
    )
    fill(tmp_path, 50, limit=1 << 20)
    assert len(counted) == 1
    fill(tmp_path, 50, limit=20_000)  # what others write is counted now and then
    assert 2 < len(counted) < 40


def test_abandoned_temporary_files_go(tmp_path):
    fill(tmp_path, 1, limit=1 << 20)
    directory = tmp_path / cache_files.environment()
    old, new = directory / ".1-abc.writing", directory / ".2-abc.writing"
    for path in (old, new):
        path.write_bytes(b"x")
    os.utime(old, (1, 1))
    fill(tmp_path, 1, limit=1 << 20)
    assert (old.exists(), new.exists()) == (False, True)


def test_a_file_in_place_of_the_directory(tmp_path, caplog):
    root = tmp_path / "file"
    root.write_text("mine")
    store = make(root)
    for number in range(3):
        assert store.get(key_of(number)) is None
        store.put(key_of(number), b"payload")
    (line,) = warnings_of(caplog)
    assert line.startswith(f"Compiled programs cannot be kept in {root}: ")
    assert line.endswith(
        "This run continues, and later ones will compile them again. Set MILLRACE_CACHE_DIR or "
        "Strategy(cache_dir=...) to a directory that can be written, or MILLRACE_CACHE_DIR=off to "
        "do without."
    )
    assert root.read_text() == "mine"
    assert store.statistics().entries == 0


def refuse(number):
    def replace(*_):
        raise OSError(number, os.strerror(number))

    return replace


def test_a_full_disk(tmp_path, monkeypatch, caplog):
    store = make(tmp_path)
    store.put(key_of(1), b"payload")
    monkeypatch.setattr(os, "replace", refuse(errno.ENOSPC))
    store.put(key_of(2), b"payload")
    store.put(key_of(3), b"payload")
    (line,) = warnings_of(caplog)
    assert f"in {tmp_path}: No space left on device. This run continues" in line
    assert "Free some space, or set MILLRACE_CACHE_DIR" in line
    assert [path.name for path in path_of(tmp_path).parent.iterdir()] == [f"{key_of(1)}.mrx"]
    assert store.get(key_of(1)) == b"payload"


def test_a_directory_that_can_only_be_read_is_read_without_a_word(tmp_path, monkeypatch, caplog):
    key = ProgramKey("net", "train_run", FIELDS)
    labels = EntryLabels("net", "train_run", "", key)
    make(tmp_path).put(KEY, b"payload")
    monkeypatch.setattr(os, "replace", refuse(errno.EROFS))
    monkeypatch.setattr(os, "utime", refuse(errno.EROFS))
    store = make(tmp_path, labels=labels)
    assert store.get(KEY) == b"payload"
    assert not warnings_of(caplog)
    store.put(key_of(1), b"payload")
    store.put(key_of(2), b"payload")
    assert len(warnings_of(caplog)) == 1
    assert "Read-only file system" in warnings_of(caplog)[0]


def test_a_damaged_file_that_cannot_be_removed(tmp_path, monkeypatch, caplog):
    make(tmp_path).put(KEY, b"payload")
    damage("emptied", path_of(tmp_path))
    monkeypatch.setattr(pathlib.Path, "unlink", refuse(errno.EROFS))
    assert make(tmp_path).get(KEY) is None
    (line,) = warnings_of(caplog)
    assert "it is empty. It cannot be removed, and the program is compiled again." in line


def test_a_file_that_cannot_be_read_is_a_miss(tmp_path, caplog):
    path_of(tmp_path).mkdir(parents=True)  # for root, modes do not bind
    store = make(tmp_path)
    assert store.get(KEY) is None
    (line,) = warnings_of(caplog)
    assert line.startswith(f"{path_of(tmp_path)} cannot be read: Is a directory. Remove it, or set")


def test_readers_and_writers_at_once_see_whole_files(tmp_path, caplog):
    payloads = [bytes([number]) * 200_000 for number in range(4)]
    store = make(tmp_path, limit=1 << 30)
    found, stop = set(), threading.Event()

    def write(payload):
        other = make(tmp_path, limit=1 << 30)  # as another process
        while not stop.is_set():
            other.put(KEY, payload)

    def read():
        while not stop.is_set():
            payload = store.get(KEY)
            found.add(None if payload is None else payload[:1] * (len(payload) == 200_000))

    threads = [threading.Thread(target=write, args=(payload,)) for payload in payloads]
    threads += [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    stop.set()
    for thread in threads:
        thread.join()
    assert found - {None} <= {payload[:1] for payload in payloads}
    assert found - {None}
    assert store.statistics().corrupt == 0
    assert not warnings_of(caplog)
    assert [path.name for path in path_of(tmp_path).parent.iterdir()] == [f"{KEY}.mrx"]


def test_keys_are_found_by_program_newest_first(tmp_path):
    first, second = (
        ProgramKey(model, "train_forward of stage 1", (*FIELDS, KeyField(Aspect.MODEL, "n", model)))
        for model in ("a", "b")
    )
    other = ProgramKey("a", "train_forward of stage 10", FIELDS, is_complete=False)
    for key in (first, second, other):
        cache_keys.write_key(tmp_path, key)
    paths = {path.name.split("-")[1][:16]: path for path in tmp_path.glob("keys/*")}
    os.utime(paths[first.digest], (1000, 1000))
    assert cache_keys.read_keys(tmp_path, first.program, 50) == [second, first]
    assert cache_keys.read_keys(tmp_path, first.program, 1) == [second]
    assert cache_keys.read_keys(tmp_path, other.program, 50) == [other]
    os.utime(paths[second.digest], (500, 500))
    assert cache_keys.read_keys(tmp_path, first.program, 50) == [first, second]
    cache_keys.write_key(tmp_path, second)  # used again
    assert cache_keys.read_keys(tmp_path, first.program, 50) == [second, first]


@pytest.mark.parametrize("content", [b"", b"text", None])
def test_a_damaged_key_is_removed(tmp_path, content):
    key = ProgramKey("net", "train_run", FIELDS)
    cache_keys.write_key(tmp_path, key)
    (path,) = tmp_path.glob("keys/*")
    path.write_bytes(path.read_bytes()[:-10] if content is None else content)
    assert cache_keys.read_keys(tmp_path, "train_run", 50) == []
    assert not path.exists()


def test_the_oldest_keys_go(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_keys, "_MOST_FILES", 3)
    for number in range(5):
        cache_keys.write_key(tmp_path, ProgramKey(f"net {number}", f"run {number}", ()))
        (path,) = tmp_path.glob(f"keys/run_{number}-*")
        os.utime(path, (1000 + number, 1000 + number))
    evict(tmp_path, 1 << 20)
    assert len(list(tmp_path.glob("keys/*"))) == 3
    assert not cache_keys.read_keys(tmp_path, "run 1", 50)


def test_no_directory_is_needed_to_look(tmp_path):
    nowhere = tmp_path / "nowhere"
    assert cache_keys.read_keys(nowhere, "train_run", 50) == []
    assert make(nowhere).statistics().entries == 0
    assert not nowhere.exists()
