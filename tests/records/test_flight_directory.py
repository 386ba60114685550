"""The directories of flights that NaNWatch names: unique, and private."""

import pytest

from millrace.base.records.flight import make_flight

pytestmark = pytest.mark.quick


def test_flights_of_the_same_second_have_directories_of_their_own(tmp_path):
    paths = [make_flight(tmp_path, "net", 5) for _ in range(3)]
    assert len(set(paths)) == 3
    assert all(path.name.startswith("net-update5-20") for path in paths)
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o700] * 3


@pytest.mark.parametrize("model", ["../../x", "a/b", "", "." * 3, "x" * 300, "\n"])
def test_the_name_of_a_model_is_no_path(tmp_path, model):
    path = make_flight(tmp_path, model, 0)
    assert path.parent == tmp_path
    assert make_flight(tmp_path, model, 0).parent == tmp_path
