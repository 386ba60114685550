"""The directories of flights that NaNWatch names: unique, private, and not too many of them."""

import os
import time

import pytest

from millrace.base.records.flight import FILES
from millrace.base.records.flight_directory import NEWEST, OLDEST, make_flight, remove_old_flights

pytestmark = pytest.mark.quick


def flight(parent, age=0.0, update=0, model="m", files=FILES):
    """Makes a flight that was written `age` seconds ago."""
    path = make_flight(parent, model, update)
    for name in files:
        (path / name).write_bytes(b"x")
    moment = time.time() - age
    os.utime(path, (moment, moment))
    return path


def test_flights_of_the_same_second_have_directories_of_their_own(tmp_path):
    paths = [make_flight(tmp_path, "net", 5) for _ in range(3)]
    assert len(set(paths)) == 3
    assert all(path.name.startswith("net-update5-20") for path in paths)
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o700] * 3


@pytest.mark.parametrize("model", ["../../x", "a/b", "", "." * 3, "x" * 300, "\n"])
def test_the_name_of_a_model_is_no_path(tmp_path, model):
    path = make_flight(tmp_path, model, 0)
    assert path.parent == tmp_path
    assert flight(tmp_path, model=model).parent == tmp_path
    assert remove_old_flights(tmp_path, 0.0, tmp_path / "new") == 2


def test_the_newest_stay(tmp_path):
    paths = [flight(tmp_path, age=100.0 * k, update=k) for k in range(NEWEST + 5)]
    assert remove_old_flights(tmp_path, None, paths[0]) == 5
    assert sorted(tmp_path.iterdir()) == sorted(paths[:NEWEST])


def test_old_ones_go_where_ages_count(tmp_path):
    old, young = flight(tmp_path, age=OLDEST + 60), flight(tmp_path, age=OLDEST - 60)
    kept = flight(tmp_path, age=OLDEST + 60)
    assert remove_old_flights(tmp_path, None, kept) == 0
    assert remove_old_flights(tmp_path, OLDEST, kept) == 1
    assert (old.exists(), young.exists(), kept.exists()) == (False, True, True)


def test_nothing_else_is_removed(tmp_path):
    """Not what has another name, or another file in it, nor what a link leads to."""
    other = tmp_path / "results"
    other.mkdir()
    (other / "record.json").write_text("{}")
    with_more = flight(tmp_path, age=2 * OLDEST)
    (with_more / "notes.txt").write_text("mine")
    os.utime(with_more, (1, 1))
    elsewhere = flight(other, age=2 * OLDEST)
    link = tmp_path / elsewhere.name.replace("update0", "update1")
    link.symlink_to(elsewhere)
    file = tmp_path / elsewhere.name.replace("update0", "update2")
    file.write_text("mine")
    incomplete = flight(tmp_path, age=2 * OLDEST, update=3, files=FILES[1:3])
    assert remove_old_flights(tmp_path, OLDEST, tmp_path / "new") == 1
    assert not incomplete.exists()
    assert (with_more / "record.json").exists()
    assert elsewhere.exists()
    assert all(each.exists() for each in (other / "record.json", link, file))
    assert remove_old_flights(tmp_path / "missing", OLDEST, tmp_path / "new") == 0
